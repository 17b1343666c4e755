"""How often something happened, how long it took altogether, and how long lately, for metrics."""

from __future__ import annotations

from collections import deque

MOST_REMEMBERED = 1000
"""Durations that are remembered, for what is asked about the last seconds."""


class Durations:
    """The durations of one kind of work. All times are in seconds, by the caller's clock."""

    __slots__ = ("_recent", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=MOST_REMEMBERED)

    def add(self, began_s: float, ended_s: float) -> None:
        """Add one duration."""
        self.count += 1
        self.total_s += ended_s - began_s
        self._recent.append((ended_s, ended_s - began_s))

    def since(self, since_s: float) -> list[float]:
        """Return the durations that ended at or after a time, at most the last MOST_REMEMBERED."""
        return [duration for ended, duration in self._recent if ended >= since_s]
