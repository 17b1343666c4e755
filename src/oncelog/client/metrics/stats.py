"""Statistics of a stream of numbers in constant memory: totals, rates, averages and maxima (Kafka's SampledStat).

One thread at a time records into a `Stat`. Any thread may read it, without a lock: a reader may miss a number that is
recorded meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

WINDOW_S: Final = 30.0
"""Rates, averages and maxima cover the current window and the one before: 30 to 60 seconds."""

BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
"""Upper bounds of a histogram's buckets. A last bucket has the longer times."""


class _Mark(NamedTuple):
    """The totals at the beginning of a window, and at the beginning of the one before with its maximum."""

    start: float
    numbers: int
    total: float
    earlier: float
    earlier_numbers: int
    earlier_total: float
    earlier_max: float


class Stat:
    """Numbers recorded at times (monotonic seconds). `count` and `total` (their sum) are since the start."""

    __slots__ = ("_end", "_mark", "_max", "count", "total")

    def __init__(self, now: float) -> None:
        self.count = 0
        self.total: float = 0
        self._max: float = 0
        self._mark = _Mark(now, 0, 0, now, 0, 0, 0)
        self._end = now + WINDOW_S

    def record(self, value: float, now: float) -> None:
        """Add a number."""
        if now >= self._end:
            self._begin_window(now)
        self.count += 1
        self.total += value
        if value > self._max:
            self._max = value

    def _begin_window(self, now: float) -> None:
        mark = self._mark
        start = now - (now - mark.start) % WINDOW_S
        if start - mark.start < 1.5 * WINDOW_S:
            self._mark = _Mark(start, self.count, self.total, mark.start, mark.numbers, mark.total, self._max)
        else:  # the window before had no numbers
            self._mark = _Mark(start, self.count, self.total, start - WINDOW_S, self.count, self.total, 0)
        self._max = 0
        self._end = start + WINDOW_S

    def recent(self, now: float) -> Recent:
        """Return what was recorded in the current window and the one before."""
        mark, count, total, largest = self._mark, self.count, self.total, self._max
        windows = (now - mark.start) // WINDOW_S
        if windows <= 0:
            seconds = now - mark.earlier
            return Recent(
                seconds, count - mark.earlier_numbers, total - mark.earlier_total, max(largest, mark.earlier_max)
            )
        if windows == 1:
            return Recent(now - mark.start, count - mark.numbers, total - mark.total, largest)
        return Recent(WINDOW_S, 0, 0, 0)


class Recent(NamedTuple):
    """The numbers of the last windows: over how many seconds, how many, their sum, and the largest."""

    seconds: float
    numbers: int
    total: float
    largest: float

    @property
    def per_second(self) -> float:
        """The sum per second. A client younger than a second counts as one second old."""
        return self.total / max(self.seconds, 1.0)

    @property
    def count_per_second(self) -> float:
        """How many numbers per second."""
        return self.numbers / max(self.seconds, 1.0)

    @property
    def average(self) -> float | None:
        """The average, or None without a number."""
        return self.total / self.numbers if self.numbers else None

    @property
    def maximum(self) -> float | None:
        """The largest number, or None without a number."""
        return self.largest if self.numbers else None


class LatencyStat(Stat):
    """Times in milliseconds, with a histogram since the start."""

    __slots__ = ("_buckets",)

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self._buckets = [0] * (len(BOUNDS_MS) + 1)

    def record(self, value: float, now: float) -> None:
        """Add a time."""
        super().record(value, now)
        self._buckets[bisect_left(BOUNDS_MS, value)] += 1

    def histogram(self) -> Mapping[float, int]:
        """Return upper bound in ms -> number of times up to it and above the next lower bound. The last is infinity."""
        return dict(zip((*map(float, BOUNDS_MS), float("inf")), self._buckets, strict=True))
