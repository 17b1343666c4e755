"""Count requests, and how long they take, in integers that cost little to change (Kafka's `RequestMetrics`).

Times are kept in classes, four for each power of two, so a quantile is at most a quarter too low. Two periods are kept,
so quantiles describe the last one to two minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

PERIOD_S: Final = 60.0
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""Those of Kafka's histograms. Not `Final`: a default argument of compiled code would not find it."""
_SMALL: Final = 8
_CLASSES: Final = 4 * 40
"""Enough for 2^40 microseconds, about twelve days."""


def _class_of(us: int) -> int:
    """Return the class of a time in microseconds. Each power of two has four classes."""
    if us < _SMALL:
        return max(us, 0)
    bits = us.bit_length()
    return min(4 * (bits - 2) + ((us >> (bits - 3)) & 3), _CLASSES - 1)


def _limit_us(number: int) -> int:
    """Return the smallest time in microseconds of a class."""
    if number < _SMALL:
        return number
    power, quarter = divmod(number, 4)
    return (4 + quarter) << (power - 1)


class Times:
    """How many times were measured in each class, in this period and the one before."""

    __slots__ = ("_before", "_now", "_until")

    def __init__(self) -> None:
        self._now = [0] * _CLASSES
        self._before = [0] * _CLASSES
        self._until = 0.0

    def add(self, seconds: float, now: float) -> None:
        """Count a time that ended at `now`, in seconds of the same clock."""
        if now >= self._until:
            self._turn(now)
        self._now[_class_of(int(seconds * 1e6))] += 1

    def _turn(self, now: float) -> None:
        old = now >= self._until + PERIOD_S
        self._before = [0] * _CLASSES if old else self._now
        self._now = [0] * _CLASSES
        self._until = now + PERIOD_S

    def counts(self, now: float) -> list[int]:
        """Return the number of times in each class, in this period and the one before."""
        if now >= self._until:
            self._turn(now)
        return [this + before for this, before in zip(self._now, self._before, strict=True)]


def quantiles_ms(counts: Sequence[int], wanted: Sequence[float] = QUANTILES) -> list[float]:
    """Return the quantiles in milliseconds of times that were counted in classes, 0 if there are none."""
    total = sum(counts)
    if not total:
        return [0.0] * len(wanted)
    found: list[float] = []
    seen, number = 0, -1
    for quantile in wanted:
        while seen < quantile * total:
            number += 1
            seen += counts[number]
        found.append(_limit_us(number) / 1000)
    return found


class ApiTimes:
    """The requests of one API: their number, and their times. A request without a wait counts in one place only."""

    __slots__ = ("_at_once", "_before_wait", "_late", "_waits", "count")

    def __init__(self) -> None:
        self.count = 0
        self._at_once = Times()
        """The requests that were answered without a wait."""
        self._before_wait = Times()
        """Of the others: the work on the event loop until the first wait,"""
        self._waits = Times()
        """the wait,"""
        self._late = Times()
        """and both together."""

    def answered(self, began: float, now: float) -> None:
        """Count a request that was answered without a wait."""
        self.count += 1
        self._at_once.add(now - began, now)

    def answered_late(self, began: float, waited_from: float, now: float) -> None:
        """Count a request whose response had to wait."""
        self.count += 1
        self._before_wait.add(waited_from - began, now)
        self._waits.add(now - waited_from, now)
        self._late.add(now - began, now)

    def quantiles_ms(self, now: float) -> dict[str, list[float]]:
        """Return the quantiles of the whole times, of the work before a wait, and of the waits."""
        at_once = self._at_once.counts(now)
        no_wait = [sum(at_once), *[0] * (_CLASSES - 1)]
        return {
            name: quantiles_ms([a + b for a, b in zip(without, times.counts(now), strict=True)])
            for name, without, times in (
                ("totaltimems", at_once, self._late),
                ("localtimems", at_once, self._before_wait),
                ("remotetimems", no_wait, self._waits),
            )
        }


class RequestTimes:
    """The requests of all APIs, by the names that Kafka's metrics have."""

    def __init__(self) -> None:
        self._apis: dict[str, ApiTimes] = {}

    def of(self, name: str) -> ApiTimes:
        """Return the times of one API."""
        found = self._apis.get(name)
        if found is None:
            found = self._apis[name] = ApiTimes()
        return found

    def apis(self) -> Iterator[tuple[str, ApiTimes]]:
        """Yield each API that was requested, sorted by name."""
        yield from sorted(self._apis.items())
