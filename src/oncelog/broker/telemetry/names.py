"""The names and labels under which Prometheus reads what clients push.

`org.apache.kafka.producer.record.send.total` becomes `kafka_client_producer_record_send_total`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from oncelog.broker.telemetry.otlp import LONGEST_TEXT, Attributes, Point, PushedMetrics

PREFIX = "kafka_client_"
"""The prefix of all exported names. The broker's own metrics do not have it, so no client can imitate them."""
INSTANCE, CLIENT = "client_instance_id", "client_id"
"""The labels of each series that the broker sets."""
TOTAL = "_total"
"""The suffix of all counters, and of nothing else."""

_KAFKA = "org.apache.kafka."
_OTHER = re.compile(r"[^a-zA-Z0-9]+")

Series = tuple[str, Attributes]
"""The exported name and the labels of a series, without those of the client."""


class NamedPoint(NamedTuple):
    """A number to export."""

    series: Series
    delta: bool
    value: float


class NamedMetrics(NamedTuple):
    """What to export of one push."""

    points: list[NamedPoint]
    resource: Attributes
    dropped: int
    truncated: bool


def named(pushed: PushedMetrics, wanted: Callable[[str], bool]) -> NamedMetrics:
    """Return what to export of the points whose names are `wanted`."""
    points = []
    for point in pushed.points:
        series = series_of(point) if wanted(point.name) and _adds_up(point) else None
        if series is not None:
            points.append(NamedPoint(series, point.delta, point.value))
    dropped = pushed.ignored + len(pushed.points) - len(points)
    return NamedMetrics(points, pushed.resource, dropped, pushed.truncated)


def _adds_up(point: Point) -> bool:
    """Return whether the value is possible. A sum with a value that is not a number would never be one again."""
    return not (point.counter or point.delta) or (
        math.isfinite(point.value) and not (point.counter and point.value < 0)
    )


def series_of(point: Point) -> Series | None:
    """Return the exported name and labels of a point, or None if it has no valid name."""
    text = _OTHER.sub("_", point.name.removeprefix(_KAFKA)).strip("_")
    if not text or len(point.name) >= LONGEST_TEXT:
        return None
    if point.counter and not text.endswith(TOTAL):
        text += TOTAL
    elif not point.counter and text.endswith(TOTAL):
        text += "_gauge"
    labels: dict[str, str] = {}
    for key, value in point.attributes:
        label = _OTHER.sub("_", key).strip("_")
        if label and not label[0].isdigit() and label not in (INSTANCE, CLIENT):
            labels.setdefault(label, value)
    return PREFIX + text, tuple(sorted(labels.items()))
