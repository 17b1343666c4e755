"""The source after topics were deleted, created again, or left out of its options. What an error advises is done."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from oncelog import Admin
from oncelog.spark.cluster import partitions
from oncelog.spark.cluster.partitions import list_offsets
from oncelog.spark.reading.older_stream import OlderStreamSource
from oncelog.spark.reading.stream import StreamSource
from oncelog.spark.reading.task import DataLossError
from spark.judges import create
from spark.test_first_batch import KINDS, fill, plan, replay, rest, stored, stream
from spark.test_source import plain, read, topic, write
from support.servers import Server

__all__ = ["topic"]


def create_again(server: Server, topic: str, partitions: int = 2) -> None:
    with Admin(server.bootstrap) as admin:
        admin.delete_topics(topic)
        admin.create_topics(topic, partitions, 1)


def continued(made: Any, end: dict[str, dict[str, int]]) -> list[str]:
    """Return what a restarted query reads after a committed batch."""
    if isinstance(made, OlderStreamSource):
        assert read(made, end, end) == []
    return rest(made, end)


@KINDS
@pytest.mark.parametrize("count", [2, 12], ids=["shorter", "longer"])
def test_topic_that_was_created_again_between_two_runs_is_read_from_its_beginning(
    server: Server, topic: str, kind: type[Any], count: int
) -> None:
    """The advice of the error is failOnDataLoss=false. It skips no record of the new topic."""
    earliest = {"startingOffsets": "earliest"}
    fill(server, topic, 1, 6)
    made = stream(kind, server, topic, earliest)
    end = stored(plan(made)[1])
    made.stop()
    fill(server, topic, 7, 2)
    create_again(server, topic)
    fill(server, topic, 1, count)

    strict = stream(kind, server, topic, earliest)
    said = f"topic '{topic}' was deleted and created again.*so the records of the old topic .* are lost.*reads the new"
    with pytest.raises(DataLossError, match=said):
        continued(strict, end)
    strict.stop()
    lax = stream(kind, server, topic, earliest | {"failOnDataLoss": "false"})
    assert sorted(map(len, continued(lax, end))) == sorted(2 * list(range(1, count + 1)))
    lax.stop()


@KINDS
def test_replay_does_not_read_a_topic_that_was_created_again(
    server: Server, topic: str, kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its records have the offsets of the old ones. The query would read them a second time afterwards."""
    earliest = {"startingOffsets": "earliest"}
    fill(server, topic, 1, 6)
    made = stream(kind, server, topic, earliest)
    end = stored(plan(made)[1])
    made.stop()
    create_again(server, topic)
    fill(server, topic, 1, 9)
    strict = stream(kind, server, topic, earliest)
    with pytest.raises(DataLossError, match=rf"'{topic}' was deleted and created again.* offsets 0 to 5 of {topic}-0"):
        replay(strict, end)
    strict.stop()
    lax = stream(kind, server, topic, earliest | {"failOnDataLoss": "false"})
    assert replay(lax, end) == []
    assert sorted(map(len, rest(lax, end))) == sorted(2 * list(range(1, 10)))
    lax.stop()


def test_new_topic_that_has_lost_its_beginning_is_reported_with_numbers(
    server: Server, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, topic, 1, 6)
    made = stream(StreamSource, server, topic, {"startingOffsets": "earliest", "failOnDataLoss": "false"})
    end = plan(made)[1]
    create_again(server, topic)
    fill(server, topic, 1, 9)
    with Admin(server.bootstrap) as admin:
        admin.delete_records({(topic, 0): 4})
    with caplog.at_level(logging.WARNING, logger="oncelog.spark"):
        assert sorted(map(len, rest(made, end))) == sorted([*range(5, 10), *range(1, 10)])
    assert f"{topic}-0 of the new topic begins at offset 4, so its offsets 0 to 3 are lost" in caplog.text
    made.stop()


@KINDS
def test_advice_for_a_log_without_known_id_that_ends_before_the_query_loses_nothing(
    server: Server, topic: str, name: str, kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint of Spark's connector or of an older version has no ids, so the offsets are all there is."""
    other = f"{name}-other"
    create(server.bootstrap, other, 1)
    both = {"subscribe": f"{topic},{other}"}
    for number in range(1, 4):
        write(server, topic, number, size=number)
        write(server, other, number, size=10 + number)
    end = {other: {"0": 2}, topic: {"0": 9, "1": 0}}
    strict = stream(kind, server, topic, both)
    with pytest.raises(DataLossError, match="ends at offset 3, but the query has read up to 9") as caught:
        continued(strict, end)
    strict.stop()
    assert "takeOver=true" in str(caught.value)
    with caplog.at_level(logging.WARNING, logger="oncelog.spark"):
        lax = stream(kind, server, topic, both | {"failOnDataLoss": "false"})
        assert list(map(len, continued(lax, end))) == [13]
        lax.stop()
    assert f"the query continues at offset 3 of {topic}-0, and skips offsets 0 to 2" in caplog.text

    advised = re.search(r"startingOffsets='(\{.*?\}\})'", str(caught.value))
    assert advised, caught.value
    assert json.loads(advised[1]) == {other: {"0": 2}, topic: {"0": -2, "1": 0}}
    new = stream(kind, server, topic, both | {"startingOffsets": advised[1]})
    start, first = plan(new)
    assert sorted(map(len, read(new, start, first))) == [1, 2, 3, 13]
    new.stop()


def test_log_of_the_same_topic_that_ends_before_the_query_is_named_as_such(
    server: Server, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unclean election truncates a log. It is the same topic, so its beginning has been read."""
    fill(server, topic, 1, 3)
    made = stream(StreamSource, server, topic, {"startingOffsets": "earliest"})
    end = plan(made)[1] | {topic: {"0": 9, "1": 3}}
    said = rf"{topic}-0 ends at offset 3, but the query has read up to 9: the log has lost its end"
    with pytest.raises(DataLossError, match=said) as caught:
        made.latestOffset(end, ReadAllAvailable())
    assert "takeOver" not in str(caught.value)
    made.stop()


@KINDS
@pytest.mark.parametrize("option", ["subscribe", "subscribePattern", "assign"])
def test_topic_that_the_options_no_longer_select_is_not_called_deleted(
    server: Server, topic: str, name: str, kind: type[Any], option: str
) -> None:
    other = f"{name}-other"
    create(server.bootstrap, other, 1)
    selected = {"subscribe": other, "subscribePattern": f".*{name}-other", "assign": json.dumps({other: [0]})}[option]
    given = {"subscribe": "", option: selected}
    end = {other: {"0": 0}, topic: {"0": 0, "1": 0}}
    strict = stream(kind, server, topic, given)
    said = (
        rf"option {option} no longer selects {topic}-0, {topic}-1, which the query has read; select them again, or, "
        "to continue without .*failOnDataLoss=false"
    )
    with pytest.raises(DataLossError, match=said):
        continued(strict, end)
    strict.stop()
    lax = stream(kind, server, topic, given | {"failOnDataLoss": "false"})
    write(server, other, 5, size=5)
    assert list(map(len, continued(lax, end))) == [5]
    lax.stop()


@KINDS
@pytest.mark.parametrize("option", ["subscribe", "subscribePattern", "assign"])
def test_query_continues_after_one_of_its_topics_is_deleted(
    server: Server, topic: str, name: str, kind: type[Any], option: str
) -> None:
    other = f"{name}-other"
    create(server.bootstrap, other, 1)
    selected = {
        "subscribe": f"{topic},{other}",
        "subscribePattern": f"({topic}|{other})",
        "assign": json.dumps({topic: [0, 1], other: [0]}),
    }[option]
    given = {"subscribe": "", option: selected, "startingOffsets": "earliest"}
    fill(server, topic, 1, 3)
    made = stream(kind, server, topic, given | {"failOnDataLoss": "false"})
    start, end = plan(made)
    assert len(read(made, start, end)) == 6
    with Admin(server.bootstrap) as admin:
        admin.delete_topics(topic)
    write(server, other, 5, size=15)
    strict = stream(kind, server, topic, given)
    with pytest.raises(DataLossError, match=f"no longer exist: {topic}-0, {topic}-1"):
        continued(strict, stored(end))
    strict.stop()
    assert list(map(len, rest(made, end))) == [15]
    again = stream(kind, server, topic, given | {"failOnDataLoss": "false"})
    assert list(map(len, continued(again, stored(end)))) == [15]
    create(server.bootstrap, topic, 2)
    write(server, topic, 6, size=16)
    write(server, other, 6, size=16)
    for query in (made, again):
        query.stop()
    last = stream(kind, server, topic, given | {"failOnDataLoss": "false"})
    assert sorted(map(len, continued(last, {other: {"0": 1}}))) == [16, 16], "the new topic from its beginning"
    last.stop()


@pytest.mark.parametrize("option", ["subscribe", "subscribePattern"])
@pytest.mark.parametrize("when", ["first batch", "later batch"])
def test_topic_that_is_deleted_while_a_batch_is_planned_does_not_end_the_query(
    server: Server, topic: str, name: str, option: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{name}-other"
    create(server.bootstrap, other, 1)
    selected = {"subscribe": f"{topic},{other}", "subscribePattern": f"({topic}|{other})"}[option]
    given = {"subscribe": "", option: selected, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    fill(server, topic, 1, 3)
    write(server, other, 5, size=15)
    made = stream(StreamSource, server, topic, given)
    start = made.initialOffset()
    if when == "later batch":
        first, start = start, plan(made)[1]
        assert len(read(made, first, start)) == 7
    write(server, other, 6, size=16)
    asked: list[int] = []

    def deleted_before(*arguments: Any) -> Any:
        if not asked:
            asked.append(1)
            with Admin(server.bootstrap) as admin:
                admin.delete_topics(topic)
        return list_offsets(*arguments)

    monkeypatch.setattr(partitions, "list_offsets", deleted_before)
    after = made.latestOffset(start, ReadAllAvailable())
    assert asked
    assert plain(after) == {other: {"0": 2}}
    assert [len(value) for value in read(made, start, after)] == ([15, 16] if when == "first batch" else [16])
    made.stop()
