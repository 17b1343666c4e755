"""Measure rates, and compute how long a client must pause to keep its quota. No I/O: the time is an argument, in s.

Source: Kafka's `Rate`, `SampledStat`, `TokenBucket` and `QuotaUtils.throttleTime`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SHORTEST_S = 0.001
"""The shortest time over which a rate is computed."""


class Windows(NamedTuple):
    """The windows over which a rate is measured: `number` windows of `seconds` each. The last one is not complete."""

    number: int = 11
    seconds: float = 1.0

    @property
    def complete_s(self) -> float:
        """The time of all complete windows."""
        return (self.number - 1) * self.seconds


class _Window:
    __slots__ = ("amount", "changed", "start")

    def __init__(self, start: float) -> None:
        self.start = start
        self.changed = start
        self.amount = 0.0


class WindowedRate:
    """The rate of an amount, over the last windows."""

    __slots__ = ("_kept", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._kept: deque[_Window] = deque()

    def record(self, amount: float, now: float) -> None:
        """Add an amount. A negative one takes back what was just recorded."""
        kept = self._kept
        if not kept or now - kept[-1].start >= self._windows.seconds:
            if len(kept) > self._windows.number:
                kept.popleft()
            kept.append(_Window(now))
        kept[-1].amount += amount
        kept[-1].changed = now

    def total(self, now: float) -> float:
        """Return the amount in the windows."""
        self._forget(now)
        return sum(window.amount for window in self._kept)

    def rate(self, now: float) -> float:
        """Return the amount per second."""
        return self.total(now) / self._elapsed(now)

    def delay(self, limit: float, now: float) -> float:
        """Return how many seconds the client must pause until its rate is within the limit. 0 if it is now."""
        total = self.total(now)
        elapsed = self._elapsed(now)
        return max(total / limit - elapsed, 0.0)

    def _forget(self, now: float) -> None:
        """Remove windows without a change within the measured time. One that only overlaps it is kept."""
        age = self._windows.number * self._windows.seconds
        while self._kept and now - self._kept[0].changed >= age:
            self._kept.popleft()

    def _elapsed(self, now: float) -> float:
        """Return the time that the rate refers to: since the oldest window began, but never too few windows."""
        elapsed = now - self._kept[0].start if self._kept else 0.0
        complete = int(elapsed / self._windows.seconds)
        missing = self._windows.number - 1 - complete
        if missing > 0:
            elapsed += missing * self._windows.seconds
        return max(elapsed, SHORTEST_S)


class TokenBucket:
    """Tokens that return at the rate of the limit. A burst may use those of all windows at once (KIP-599)."""

    __slots__ = ("_changed", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = 0.0
        self._changed: float | None = None

    def delay(self, limit: float, now: float) -> float:
        """Return how many seconds the client must pause until it owes no tokens. 0 if it owes none."""
        self._refill(limit, now)
        return max(-self._tokens / limit, 0.0)

    def take(self, amount: float, limit: float, now: float) -> None:
        """Use tokens, even more than there are."""
        self._refill(limit, now)
        self._tokens -= amount

    def _refill(self, limit: float, now: float) -> None:
        burst = self._windows.number * self._windows.seconds * limit
        gained = burst if self._changed is None else limit * (now - self._changed)
        self._tokens = min(burst, self._tokens + gained)
        self._changed = now
