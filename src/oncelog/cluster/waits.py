"""Waits until records are committed or stored. No I/O, no clock.

A wait that its owner ends early (a time-out, a disconnect) frees its callback at once, and soon its entry in the heap.
`Waits` ends the others in the order of their offsets. If there are many, it ends them in parts, and a new wait whose
outcome is known does not wait for them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import Enum

WAITS_A_PART = 100
"""Waits that end before other requests have their turn."""
_FEW = 64
"""A heap of at most this size is not rebuilt."""


class Outcome(Enum):
    """How a wait for the high watermark ended."""

    COMMITTED = "committed"
    LOST = "lost"
    """The term has ended. The record may still be committed in a later term, or it may be truncated."""
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"


class Wait:
    """A wait until the record at `offset` is committed. The callback gets the outcome, exactly once."""

    __slots__ = ("_callback", "offset", "outcome", "waits")

    def __init__(self, offset: int, callback: Callable[[Outcome], None]) -> None:
        self.offset = offset
        self.outcome: Outcome | None = None
        """The outcome, or None while the wait lasts."""
        self.waits: Waits | None = None
        """The heap with this wait, or None."""
        self._callback: Callable[[Outcome], None] | None = callback

    def finish(self, outcome: Outcome) -> bool:
        """End the wait. Return False if it has already ended. The shell calls this with TIMED_OUT or CANCELLED."""
        callback = self._callback
        if callback is None:
            return False
        self.outcome = outcome
        self._callback = None
        waits = self.waits
        if waits is not None:
            self.waits = None
            waits.finished()
        callback(outcome)
        return True


class Waits:
    """The waits for records of one log, until a watermark passes their offsets, or the term ends."""

    __slots__ = ("_end", "_finished", "_heap", "_later", "_lost", "_number", "_releasing")

    def __init__(self, end: int, later: Callable[[Callable[[], None]], object] | None = None) -> None:
        """The records before `end` are committed. `later` runs a function after other requests have had their turn.

        Without `later`, all waits end in one step.
        """
        self._releasing = False
        """Whether waits whose outcome is fixed have not ended yet."""
        self._end = end
        self._lost = False
        self._later = later
        self._heap: list[tuple[int, int, Wait]] = []
        self._number = 0
        self._finished = 0

    def __len__(self) -> int:
        """Return the number of entries in the heap, which may include ended waits."""
        return len(self._heap)

    def add(self, offset: int, callback: Callable[[Outcome], None]) -> Wait:
        """Call `callback` with the outcome of the record at `offset`, perhaps before this returns."""
        wait = Wait(offset, callback)
        if self._lost or offset < self._end:
            wait.finish(Outcome.COMMITTED if offset < self._end else Outcome.LOST)
        else:
            wait.waits = self
            self._number += 1
            heapq.heappush(self._heap, (offset, self._number, wait))
        return wait

    def commit(self, end: int) -> None:
        """End the waits for records before `end`: they are committed."""
        self._end = end
        if self._heap and not self._releasing and self._heap[0][0] < end:
            self._release()

    def lose(self) -> None:
        """End all waits. The outcome of those that are not committed is LOST."""
        self._lost = True
        if not self._releasing:
            self._release()

    def finished(self) -> None:
        """Count a wait that its owner has ended. Remove such entries at the top, or if they are more than half."""
        self._finished += 1
        heap = self._heap
        while heap and heap[0][2].outcome is not None:
            heapq.heappop(heap)
            self._finished -= 1
        if len(heap) > _FEW and 2 * self._finished > len(heap):
            heap[:] = [entry for entry in heap if entry[2].outcome is None]
            heapq.heapify(heap)
            self._finished = 0

    def _release(self) -> None:
        """End the waits whose outcome is fixed, or a part of them."""
        self._releasing = True
        heap = self._heap
        left = WAITS_A_PART
        try:
            while heap and (self._lost or heap[0][0] < self._end) and (left > 0 or self._later is None):
                left -= 1
                offset, _, wait = heapq.heappop(heap)
                if wait.outcome is None:
                    wait.waits = None
                    wait.finish(Outcome.COMMITTED if offset < self._end else Outcome.LOST)
                else:
                    self._finished -= 1
        finally:  # an error of a callback must not keep the other waits
            if self._later is not None and heap and (self._lost or heap[0][0] < self._end):
                self._later(self._release)
            else:
                self._releasing = False
