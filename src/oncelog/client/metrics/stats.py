"""Statistics of streams of numbers in constant memory: totals, rates, averages and maxima (Kafka's SampledStat).

All `Stat`s of a client share its `Windows`. Recording is a few additions, because it happens for each request. Any
thread may read without a lock: a reader may miss a number that is recorded meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    earlier_largest: float


class Stat:
    """Numbers: how many (`count`) and their sum (`total`) since the start, and the `largest` of the current window.

    The recorders change these attributes directly. Only `record` changes all of them.
    """

    __slots__ = ("_mark", "count", "largest", "total")

    def __init__(self, start: float) -> None:
        self.count = 0
        self.total: float = 0
        self.largest: float = 0
        self._mark = _Mark(start, 0, 0, start, 0, 0, 0)

    def record(self, value: float) -> None:
        """Add a number."""
        self.count += 1
        self.total += value
        if value > self.largest:
            self.largest = value

    def begin_window(self, start: float, *, skipped: bool) -> None:
        """Begin a window at `start`. `skipped`: nothing was recorded in the window before."""
        mark, count, total, largest = self._mark, self.count, self.total, self.largest
        if skipped:
            self._mark = _Mark(start, count, total, start - WINDOW_S, count, total, 0)
        else:
            self._mark = _Mark(start, count, total, mark.start, mark.numbers, mark.total, largest)
        self.largest = 0

    def recent(self, now: float) -> Recent:
        """Return what was recorded in the current window and the one before."""
        mark, count, total, largest = self._mark, self.count, self.total, self.largest
        windows = (now - mark.start) // WINDOW_S
        if windows <= 0:
            return Recent(
                now - mark.earlier,
                count - mark.earlier_numbers,
                total - mark.earlier_total,
                max(largest, mark.earlier_largest),
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
    """Times in milliseconds, with a histogram since the start: `buckets` counts them by BOUNDS_MS."""

    __slots__ = ("buckets",)

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.buckets = [0] * (len(BOUNDS_MS) + 1)

    def histogram(self) -> Mapping[float, int]:
        """Return upper bound in ms -> number of times up to it and above the next lower bound. The last is infinity."""
        return dict(zip((*map(float, BOUNDS_MS), float("inf")), self.buckets, strict=True))


class Windows:
    """The windows of one client's `Stat`s. Times are monotonic seconds. `end`: when the current window ends.

    Only the event loop calls `roll`. Any thread may create a `Stat`.
    """

    def __init__(self, now: float) -> None:
        self._start = now
        self.end = now + WINDOW_S
        self._stats: dict[Stat, None] = {}

    def stat(self) -> Stat:
        """Create a `Stat`."""
        return self._added(Stat(self._start))

    def latency(self) -> LatencyStat:
        """Create a `LatencyStat`."""
        made = LatencyStat(self._start)
        self._added(made)
        return made

    def _added(self, stat: Stat) -> Stat:
        self._stats[stat] = None
        return stat

    def drop(self, stats: Iterable[Stat]) -> None:
        """Forget `Stat`s."""
        for stat in stats:
            self._stats.pop(stat, None)

    def roll(self, now: float) -> None:
        """Begin a window, if the current one has ended."""
        if now < self.end:
            return
        passed = (now - self._start) // WINDOW_S
        self._start += passed * WINDOW_S
        self.end = self._start + WINDOW_S
        for stat in self._stats.copy():
            stat.begin_window(self._start, skipped=passed > 1)
