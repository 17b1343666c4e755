"""Statistics of streams of numbers in constant memory: totals, rates, averages and maxima (Kafka's SampledStat).

All `Stat`s of a client share its `Windows`. Recorders call `Windows.now` first, which begins a new window if needed.
Recording takes only a few additions, because it happens for each request. Any thread may read without a lock, but it
may miss a number that is recorded at the same time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

WINDOW_S: Final = 30.0
"""Rates, averages and maxima cover the current window and the one before: 30 to 60 seconds."""

BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
"""Upper bounds of a histogram's buckets. One more bucket counts longer times."""


class _Mark(NamedTuple):
    """The totals at the beginning of a window and of the window before it, and the maximum of the latter."""

    start: float
    numbers: int
    total: float
    earlier: float
    earlier_numbers: int
    earlier_total: float
    earlier_largest: float


class Stat:
    """The count and sum (`total`) of numbers since the start, and the `largest` of the current window."""

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

    def add(self, value: float) -> None:
        """Add to the sum only, for a `Stat` of which only total and rate are shown."""
        self.total += value

    def begin_window(self, start: float, *, skipped: bool) -> None:
        """Begin a window at `start`. With `skipped`, nothing was recorded in the window before."""
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
    """Statistics of the last windows: the seconds that they cover, and the count, sum and maximum of their numbers."""

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
        """The count of numbers per second."""
        return self.numbers / max(self.seconds, 1.0)

    @property
    def average(self) -> float | None:
        """The average, or None if no number was recorded."""
        return self.total / self.numbers if self.numbers else None

    @property
    def maximum(self) -> float | None:
        """The largest number, or None if no number was recorded."""
        return self.largest if self.numbers else None


class LatencyStat(Stat):
    """Times in milliseconds, with a histogram since the start. `buckets` has a count for each of BOUNDS_MS."""

    __slots__ = ("buckets",)

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.buckets = [0] * (len(BOUNDS_MS) + 1)

    def record(self, value: float) -> None:
        """Add a time."""
        super().record(value)
        self.buckets[bisect_left(BOUNDS_MS, value)] += 1

    def histogram(self) -> Mapping[float, int]:
        """Return upper bound in ms -> count of times up to it and above the bound before. The last is infinity."""
        return dict(zip((*map(float, BOUNDS_MS), float("inf")), self.buckets, strict=True))


class Windows:
    """The windows of one client's `Stat`s. `clock` returns monotonic seconds. Any thread may call all methods."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._start = clock()
        self._end = self._start + WINDOW_S
        self._stats: dict[Stat, None] = {}
        self._turn = [True]
        """A thread that begins a window takes the item, and then returns it. Others do not wait for it."""

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
        """Remove these `Stat`s, so that no new windows begin for them."""
        for stat in stats:
            self._stats.pop(stat, None)

    def now(self) -> float:
        """Return the current time. If the current window has ended, begin a new one first."""
        now = self.clock()
        if now >= self._end:
            self._roll(now)
        return now

    def _roll(self, now: float) -> None:
        try:
            self._turn.pop()
        except IndexError:
            return  # another thread begins the window
        try:
            passed = (now - self._start) // WINDOW_S
            if passed:  # otherwise another thread has begun it meanwhile
                self._start += passed * WINDOW_S
                for stat in self._stats.copy():
                    stat.begin_window(self._start, skipped=passed > 1)
                self._end = self._start + WINDOW_S
        finally:
            self._turn.append(True)
