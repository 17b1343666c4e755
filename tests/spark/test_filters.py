"""Pushed filters without Spark: their effect on partitions and offsets, and the filters that Spark still applies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.reading.filters import Pushed

PARTITION, OFFSET, TIMESTAMP, TOPIC = ("partition",), ("offset",), ("timestamp",), ("topic",)
AT_1000 = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def take(*filters: Filter) -> tuple[Pushed, list[Filter]]:
    pushed = Pushed()
    return pushed, list(pushed.take(filters))


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([EqualTo(PARTITION, 2)], [2]),
        ([EqualNullSafe(PARTITION, 2)], [2]),
        ([In(PARTITION, (0, 3))], [0, 3]),
        ([Not(In(PARTITION, (0, 3)))], [1, 2]),
        ([GreaterThan(PARTITION, 0), LessThan(PARTITION, 3)], [1, 2]),
        ([GreaterThanOrEqual(PARTITION, 1), LessThanOrEqual(PARTITION, 1)], [1]),
        ([Not(EqualTo(PARTITION, 1)), IsNotNull(PARTITION)], [0, 2, 3]),
        ([Not(IsNull(TOPIC)), EqualTo(TOPIC, "other")], []),
        ([StringStartsWith(TOPIC, "a"), StringEndsWith(TOPIC, "a"), StringContains(TOPIC, "a")], [0, 1, 2, 3]),
    ],
)
def test_partition_filters_are_fully_handled(filters: list[Filter], wanted: list[int]) -> None:
    pushed, left = take(*filters)
    assert left == []
    assert [n for n in range(4) if pushed.wants(TopicPartition("a", n))] == wanted


OPERATORS = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


@given(st.lists(st.tuples(st.sampled_from(list(OPERATORS)), st.integers(-2, 12)), max_size=3))
def test_offset_filters_select_exactly_their_offsets(wanted: list[tuple[Any, int]]) -> None:
    pushed, left = take(*(kind(OFFSET, value) for kind, value in wanted))
    assert left == []
    after = 10 if pushed.end is None else min(pushed.end, 10)
    expected = [n for n in range(10) if all(OPERATORS[kind](n, value) for kind, value in wanted)]
    assert list(range(pushed.first, after)) == expected


@pytest.mark.parametrize(
    ("given_filter", "since_ms"),
    [
        (GreaterThanOrEqual(TIMESTAMP, AT_1000), 1000),
        (GreaterThan(TIMESTAMP, AT_1000), 1001),
        (GreaterThan(TIMESTAMP, AT_1000 + timedelta(microseconds=1)), 1001),
        (GreaterThanOrEqual(TIMESTAMP, AT_1000 + timedelta(microseconds=1)), 1001),
        (EqualTo(TIMESTAMP, AT_1000), 1000),
        (In(TIMESTAMP, (AT_1000 + timedelta(seconds=5), AT_1000)), 1000),
        (LessThan(TIMESTAMP, AT_1000), None),
        (GreaterThan(TIMESTAMP, datetime(1970, 1, 1)), None),
        (Not(EqualTo(TIMESTAMP, AT_1000)), None),
    ],
)
def test_timestamp_filter_narrows_the_read_and_is_left_to_spark(given_filter: Filter, since_ms: int | None) -> None:
    pushed, left = take(given_filter)
    assert left == [given_filter], "later records may be older"
    assert pushed.since_ms == since_ms


@pytest.mark.parametrize(
    "given_filter",
    [
        EqualTo(PARTITION, None),
        Not(In(PARTITION, (1, None))),
        EqualNullSafe(OFFSET, None),
        In(OFFSET, (1, 5)),
        Not(EqualTo(OFFSET, 1)),
        EqualTo(("value",), b"x"),
        IsNotNull(("key",)),
        IsNull(PARTITION),
        Not(IsNotNull(OFFSET)),
    ],
)
def test_other_filters_are_left_to_spark(given_filter: Filter) -> None:
    pushed, left = take(given_filter)
    assert left == [given_filter]
    assert (pushed.tests, pushed.first, pushed.end) == ([], 0, None)
