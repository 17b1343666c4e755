"""Which records a query needs at most: partitions, and half-open ranges of offsets and times.

Bounds are never too narrow: a condition that is not understood does not limit them, and of two alternatives they are
the ranges around both. The query checks its conditions again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from oncelog import errors

KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS = "_key", "_partition", "_offset", "_timestamp", "_headers"
OF_RECORD = {KEY: "key", PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp", HEADERS: "headers"}
"""The columns of a topic's table that are not of the value, by their names there, and in a consumer's tables."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
"""The operator for exchanged sides: 5 < x is x > 5."""


@dataclass(frozen=True, slots=True)
class Range:
    """The integers from `low` on and before `high`. None is no limit."""

    low: int | None = None
    high: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no integer is in the range."""
        return self.low is not None and self.high is not None and self.low >= self.high

    def __and__(self, other: Range) -> Range:
        lows = [each for each in (self.low, other.low) if each is not None]
        highs = [each for each in (self.high, other.high) if each is not None]
        return Range(max(lows, default=None), min(highs, default=None))

    def __or__(self, other: Range) -> Range:
        """Return the smallest range around both."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Range(low, high)


def compared(operator: str, number: int) -> Range:
    """Return the integers x for which `x OPERATOR number` is true."""
    return {
        "<": Range(None, number),
        "<=": Range(None, number + 1),
        ">": Range(number + 1, None),
        ">=": Range(number, None),
        "=": Range(number, number + 1),
    }[operator]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The records that a query needs at most. `times` are microseconds since the epoch. No partitions means all."""

    partitions: Range = Range()
    offsets: Range = Range()
    times: Range = Range()

    @property
    def is_empty(self) -> bool:
        """Whether no record is within the bounds."""
        return self.partitions.is_empty or self.offsets.is_empty or self.times.is_empty

    def __and__(self, other: Bounds) -> Bounds:
        return Bounds(self.partitions & other.partitions, self.offsets & other.offsets, self.times & other.times)

    def __or__(self, other: Bounds) -> Bounds:
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return Bounds(self.partitions | other.partitions, self.offsets | other.offsets, self.times | other.times)


ALL = Bounds()


def bound(column: str, operator: str, number: int) -> Bounds:
    """Return the bounds of `column OPERATOR number`. Other columns and operators do not limit them."""
    if operator not in MIRRORED:
        return ALL
    found = compared(operator, number)
    if column == PARTITION:
        return Bounds(partitions=found)
    if column == OFFSET:
        return Bounds(offsets=found)
    return Bounds(times=found) if column == TIMESTAMP else ALL


def all_of(parts: Iterable[Bounds]) -> Bounds:
    """Return the bounds of conditions that must all be true."""
    return reduce(Bounds.__and__, parts, ALL)


def any_of(parts: Iterable[Bounds]) -> Bounds:
    """Return the bounds of conditions of which one must be true. Without a condition, nothing is within them."""
    return reduce(Bounds.__or__, parts, Bounds(Range(0, 0)))


def microseconds(name: str, time: datetime | None) -> int | None:
    """Return a time in microseconds since the epoch. Raises ConfigError, which names it, if it has no time zone."""
    if time is None:
        return None
    if time.tzinfo is None:
        raise errors.ConfigError(f"{name}={time.isoformat()} has no time zone; for example, use datetime.now(UTC)")
    return (time - EPOCH) // timedelta(microseconds=1)
