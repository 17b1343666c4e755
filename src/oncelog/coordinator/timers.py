"""Deadlines of many keys (transactional ids, groups), at a cost that does not grow with how often they change."""

from __future__ import annotations

import heapq

_SLACK = 64
"""Entries that may be out of date, beside one for each key, before the heap is made anew."""


class Deadlines:
    """At most one wake-up a key, never later than the key's real deadline; who is woken looks whether it is time.

    A deadline that moves into the future costs nothing: the wake-up comes early, and who is woken asks for the next.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._due: dict[str, int] = {}

    def at_latest(self, key: str, due_ms: int) -> None:
        """Wakes `key` at `due_ms` or before."""
        scheduled = self._due.get(key)
        if scheduled is None or due_ms < scheduled:
            self._due[key] = due_ms
            heapq.heappush(self._heap, (due_ms, key))
            if len(self._heap) > 2 * len(self._due) + _SLACK:
                self._heap = [(due, name) for name, due in self._due.items()]
                heapq.heapify(self._heap)

    def next(self) -> int | None:
        """The first wake-up."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # one that was brought forward, or forgotten
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int, limit: int) -> list[str]:
        """At most `limit` of the keys to wake, which have no wake-up any more."""
        keys: list[str] = []
        while len(keys) < limit and (due_ms := self.next()) is not None and due_ms <= now_ms:
            key = heapq.heappop(self._heap)[1]
            del self._due[key]
            keys.append(key)
        return keys

    def forget(self, key: str) -> None:
        """No wake-up for `key`."""
        self._due.pop(key, None)
