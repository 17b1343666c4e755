"""Measure how often connections begin, and how long the next one must wait. No I/O.

Source: Kafka's `Rate`, `SampledStat` and `QuotaUtils.throttleTime`, with the default `quota.window.num` and
`quota.window.size.seconds`.
"""

from __future__ import annotations

from collections import deque

WINDOWS = 11
"""The number of windows that a rate covers. The last one is not over yet."""
WINDOW_S = 1.0
"""The length of a window, and the longest wait."""


class Rate:
    """The events of the last windows. Times are seconds."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: deque[list[float]] = deque()
        """The start and the number of events of each window, oldest first."""

    def record(self, now: float, events: int = 1) -> None:
        """Count events. A negative number takes earlier ones back."""
        if not self._windows or now - self._windows[-1][0] >= WINDOW_S:
            self._windows.append([now, 0])
            if len(self._windows) > WINDOWS:
                self._windows.popleft()
        self._windows[-1][1] += events

    def wait_s(self, now: float, limit: int) -> float:
        """Return how long to wait until the rate is at most `limit` events a second; 0 if it is."""
        while self._windows and now - self._windows[0][0] >= WINDOWS * WINDOW_S:
            self._windows.popleft()
        if not self._windows:
            return 0.0
        elapsed = now - self._windows[0][0]
        missing = WINDOWS - 1 - int(elapsed / WINDOW_S)
        span = elapsed + max(missing, 0) * WINDOW_S
        rate = sum([events for _, events in self._windows]) / span
        if rate <= limit:
            return 0.0
        return WINDOW_S if limit <= 0 else min((rate - limit) / limit * span, WINDOW_S)
