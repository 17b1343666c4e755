"""How busy the event loop is: the part of the time that it waits, and how late its timers are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

BEAT_S = 0.25
"""Time between two looks."""
WINDOW = 240
"""Looks that are remembered: one minute."""


class LoopWatch:
    """Look at the loop's thread at intervals. `cpu_s` returns the processor time that the thread has used."""

    def __init__(self, now_s: Callable[[], float], cpu_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._looks: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)
        """Of each look: the time, the processor time until then, and how late it was."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look at the running loop until `stop`."""
        self._look(self._now_s())

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, due_s: float) -> None:
        now = self._now_s()
        self._looks.append((now, self._cpu_s(), max(now - due_s, 0.0)))
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._look, now + BEAT_S)

    @property
    def idle(self) -> float:
        """The part of the last minute, from 0 to 1, in which the thread did not work."""
        first, last = (self._looks[0], self._looks[-1]) if self._looks else ((0.0, 0.0, 0.0),) * 2
        passed = last[0] - first[0]
        return min(max(1 - (last[1] - first[1]) / passed, 0.0), 1.0) if passed > 0 else 1.0

    @property
    def longest_delay_s(self) -> float:
        """The longest delay of a look in the last minute, in seconds."""
        return max((late for _, _, late in self._looks), default=0.0)
