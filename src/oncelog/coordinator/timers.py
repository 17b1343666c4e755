"""Time in coordinators: the two clocks of an operation, and the deadlines of many keys."""

from __future__ import annotations

import heapq
from typing import NamedTuple

_SLACK = 64
"""The heap is rebuilt if it has more entries than twice the number of keys plus this number."""


class Now(NamedTuple):
    """The time in ms. All timers use `steady_ms`, so a change of the wall clock expires no member."""

    wall_ms: int
    """The time since the epoch. Timestamps in records use it."""
    steady_ms: int
    """The time on a clock that never jumps. Its start is arbitrary."""


class Deadlines:
    """The deadlines of many keys (transactional ids, groups). Their cost does not depend on how often they change.

    Each key has at most one wake-up, which is never later than the key's real deadline.

    A deadline that moves into the future costs nothing. The wake-up is early then, so the caller checks the deadline,
    and schedules the next wake-up.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._due: dict[str, int] = {}

    def at_latest(self, key: str, due_ms: int) -> None:
        """Wake `key` at `due_ms` or earlier."""
        scheduled = self._due.get(key)
        if scheduled is None or due_ms < scheduled:
            self._due[key] = due_ms
            heapq.heappush(self._heap, (due_ms, key))
            if len(self._heap) > 2 * len(self._due) + _SLACK:
                self._heap = [(due, name) for name, due in self._due.items()]
                heapq.heapify(self._heap)

    def next(self) -> int | None:
        """Return the time of the first wake-up, or None."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # an outdated entry: the key has an earlier one, or was forgotten
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int, limit: int) -> list[str]:
        """Return at most `limit` of the keys to wake, and remove their wake-ups."""
        keys: list[str] = []
        while len(keys) < limit and (due_ms := self.next()) is not None and due_ms <= now_ms:
            key = heapq.heappop(self._heap)[1]
            del self._due[key]
            keys.append(key)
        return keys

    def forget(self, key: str) -> None:
        """Remove the wake-up of `key`."""
        self._due.pop(key, None)
