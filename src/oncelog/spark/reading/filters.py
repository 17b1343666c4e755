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

from pyspark.sql import datasource as spark

from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.versions import FILTERS

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

ALWAYS_THERE = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
"""Columns that are never null."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = (
    {}
    if not FILTERS
    else {
        spark.EqualTo: operator.eq,
        spark.EqualNullSafe: operator.eq,
        spark.GreaterThan: operator.gt,
        spark.GreaterThanOrEqual: operator.ge,
        spark.LessThan: operator.lt,
        spark.LessThanOrEqual: operator.le,
        spark.In: lambda value, wanted: value in wanted,
        spark.StringStartsWith: lambda value, wanted: value.startswith(wanted),
        spark.StringEndsWith: lambda value, wanted: value.endswith(wanted),
        spark.StringContains: lambda value, wanted: wanted in value,
    }
)
"""Class of the filter -> its test of a value."""

BOUNDS: dict[type[Filter], Callable[[int], tuple[int | None, int | None]]] = (
    {}
    if not FILTERS
    else {
        spark.EqualTo: lambda value: (value, value + 1),
        spark.EqualNullSafe: lambda value: (value, value + 1),
        spark.GreaterThan: lambda value: (value + 1, None),
        spark.GreaterThanOrEqual: lambda value: (value, None),
        spark.LessThan: lambda value: (None, value),
        spark.LessThanOrEqual: lambda value: (None, value + 1),
    }
)
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
        negated = isinstance(given, spark.Not)
        if negated:
            inner = inner.child
        column = ".".join(inner.attribute)
        if isinstance(inner, spark.IsNotNull | spark.IsNull):
            return column in ALWAYS_THERE and isinstance(inner, spark.IsNotNull) != negated
        if column in ("partition", "topic"):
            return self._by_partition(column, inner, negated)
        if column == "offset" and not negated and type(inner) in BOUNDS and isinstance(inner.value, int):
            self._between(*BOUNDS[type(inner)](inner.value))
            return True
        if column == "timestamp" and not negated:
            self._since(inner)
        return False

    def _by_partition(self, column: str, inner: Any, negated: bool) -> bool:
        compare = COMPARISONS.get(type(inner))
        values = inner.value if isinstance(inner, spark.In) else (inner.value,)
        if compare is None or any(value is None for value in values):
            return False  # a comparison with null is neither true nor false
        self.tests.append(lambda at: compare(getattr(at, column), inner.value) != negated)
        return True

    def _between(self, first: int | None, end: int | None) -> None:
        self.first = max(self.first, first or 0)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)

    def _since(self, inner: Any) -> None:
        values = inner.value if isinstance(inner, spark.In) else (inner.value,)
        if isinstance(inner, spark.LessThan | spark.LessThanOrEqual) or not all(map(_is_moment, values)):
            return
        least = min(values)
        since = -((EPOCH - least) // MILLISECOND)  # rounded up: records have milliseconds
        if isinstance(inner, spark.GreaterThan) and EPOCH + since * MILLISECOND == least:
            since += 1
        self.since_ms = since if self.since_ms is None else max(self.since_ms, since)


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None
