"""Filters that Spark pushes into a batch read: the partitions and offsets that can hold matching records.

A filter on `partition` or `topic` selects partitions. A filter on `offset` narrows the range. Spark need not evaluate
these again. A lower bound on `timestamp` narrows the range, too, because the broker finds the first record at or after
a time. Later records may be older (producers set timestamps), so Spark evaluates the bound again. An upper bound on
`timestamp` narrows nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from oncelog.spark.commit.names import TopicPartition

if TYPE_CHECKING:  # PySpark 4.0 has no filters
    from pyspark.sql.datasource import Filter

ALWAYS_THERE = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
"""Columns that are never null."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda value, wanted: value in wanted,
    "StringStartsWith": lambda value, wanted: value.startswith(wanted),
    "StringEndsWith": lambda value, wanted: value.endswith(wanted),
    "StringContains": lambda value, wanted: wanted in value,
}
"""Class of the filter -> its test of a value."""

BOUNDS: dict[str, Callable[[int], tuple[int | None, int | None]]] = {
    "EqualTo": lambda value: (value, value + 1),
    "EqualNullSafe": lambda value: (value, value + 1),
    "GreaterThan": lambda value: (value + 1, None),
    "GreaterThanOrEqual": lambda value: (value, None),
    "LessThan": lambda value: (None, value),
    "LessThanOrEqual": lambda value: (None, value + 1),
}
"""Class of the filter -> offsets (first, end) that a comparison with one leaves."""


@dataclass
class Pushed:
    """The selection by the filters taken so far. `since_ms`: the least timestamp that matches."""

    tests: list[Callable[[TopicPartition], bool]] = field(default_factory=list)
    first: int = 0
    end: int | None = None
    since_ms: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle nothing: tasks read the ranges of the plan."""
        return {}

    def wants(self, at: TopicPartition) -> bool:
        """Return whether a partition can hold a matching row."""
        return all(test(at) for test in self.tests)

    def take(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Record each filter. Yield the filters that Spark must still evaluate for each row."""
        for each in filters:
            if not self._take_one(each):
                yield each

    def _take_one(self, given: Filter) -> bool:
        inner: Any = given
        negated = _kind(given) == "Not"
        if negated:
            inner = inner.child
        column = ".".join(inner.attribute)
        if _kind(inner) in ("IsNotNull", "IsNull"):
            return column in ALWAYS_THERE and (_kind(inner) == "IsNotNull") != negated
        if column in ("partition", "topic"):
            return self._by_partition(column, inner, negated)
        if column == "offset" and not negated and _kind(inner) in BOUNDS and isinstance(inner.value, int):
            self._between(*BOUNDS[_kind(inner)](inner.value))
            return True
        if column == "timestamp" and not negated:
            self._since(inner)
        return False

    def _by_partition(self, column: str, inner: Any, negated: bool) -> bool:
        compare = COMPARISONS.get(_kind(inner))
        values = inner.value if _kind(inner) == "In" else (inner.value,)
        if compare is None or any(value is None for value in values):
            return False  # a comparison with null is neither true nor false
        self.tests.append(lambda at: compare(getattr(at, column), inner.value) != negated)
        return True

    def _between(self, first: int | None, end: int | None) -> None:
        self.first = max(self.first, first or 0)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)

    def _since(self, inner: Any) -> None:
        values = inner.value if _kind(inner) == "In" else (inner.value,)
        if _kind(inner) in ("LessThan", "LessThanOrEqual") or not all(map(_is_moment, values)):
            return
        least = min(values)
        since = -((EPOCH - least) // MILLISECOND)  # rounded up: records have milliseconds
        if _kind(inner) == "GreaterThan" and EPOCH + since * MILLISECOND == least:
            since += 1
        self.since_ms = since if self.since_ms is None else max(self.since_ms, since)


def _kind(given: Filter) -> str:
    return type(given).__name__


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None
