"""The stories that need no brokers of their own, on Apache Kafka."""

from __future__ import annotations

import pytest

from oncelog.stories.catalog import STORIES, show
from support.apache_kafka import ApacheKafka


@pytest.mark.parametrize(
    "number",
    [number for number, story in STORIES.items() if not story.own_brokers and not story.place.startswith("inside:")],
)
def test_story_ends_as_told(apache_kafka: ApacheKafka, number: int) -> None:
    lines: list[str] = []
    shown = show(number, lines.append, apache_kafka.bootstrap)
    assert shown.as_told, "\n".join(lines)
