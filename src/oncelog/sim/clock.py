"""The clocks of one machine: a wall clock and a monotonic clock, both of which may be wrong."""

from __future__ import annotations

import math

EPOCH_MS = 1_700_000_000_000
"""The wall clock at the start of a world, in ms."""


class Clock:
    """The clocks of one machine, as functions of the world's time.

    The monotonic clock shows `boot_s` at the start of the world, and advances by `rate` seconds a second. The wall
    clock is `wall_ms` wrong at the start, and gains `drift` seconds each second of the monotonic clock.
    """

    __slots__ = ("_boot_s", "_drift", "_rate", "_wall_ms", "exact")

    def __init__(self, *, rate: float = 1.0, boot_s: float = 0.0, drift: float = 0.0, wall_ms: int = 0) -> None:
        if not rate > 0 or not drift > -1:
            raise ValueError(f"a clock needs rate > 0 and drift > -1, not rate {rate} and drift {drift}")
        self._rate = rate
        self._boot_s = boot_s
        self._drift = drift
        self._wall_ms = wall_ms
        self.exact = rate == 1.0 and boot_s == 0.0
        """Whether the monotonic clock shows the world's time."""

    def monotonic(self, now: float) -> float:
        """Return what the monotonic clock shows at the world's time `now`, in seconds."""
        return self._boot_s + now * self._rate

    def when(self, local: float) -> float:
        """Return the world's time at which the monotonic clock shows `local`, or has just passed it."""
        now = (local - self._boot_s) / self._rate
        while self.monotonic(now) < local:  # rounding: a timer that fires too early would be set again forever
            now = math.nextafter(now, math.inf)
        return now

    def wall_ns(self, now: float) -> int:
        """Return what the wall clock shows, in ns."""
        return (EPOCH_MS + self._wall_ms) * 1_000_000 + int(now * self._rate * (1 + self._drift) * 1e9)

    def wall_ms(self, now: float) -> int:
        """Return what the wall clock shows, in ms."""
        return EPOCH_MS + self._wall_ms + int(now * self._rate * (1 + self._drift) * 1000)

    def set_wall(self, by_ms: int) -> None:
        """Move the wall clock forward or back. The monotonic clock does not change."""
        self._wall_ms += by_ms
