"""The segments of a log, read as one sequence of batches.

It stores the positions at which the last reads ended. A consumer that continues there, or waits at the end of the log,
needs no look-up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from oncelog.log.segment import Segment
from oncelog.log.timestamps import SEGMENTS_A_STEP, TimeStep
from oncelog.log.txn_index import AbortedTransaction

_MAX_HINTS = 256


class Segments:
    """The segments by their base offsets: at least one. The last one is the active one."""

    __slots__ = ("_bases", "_hints", "_segments")

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        self._hints: dict[int, tuple[Segment, int]] = {}

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        slot = bisect_right(self._bases, segment.base_offset) - 1
        return slot >= 0 and self._segments[slot] is segment

    @property
    def active(self) -> Segment:
        """Return the segment to append to."""
        return self._segments[-1]

    @property
    def first_offset(self) -> int:
        """Return the base offset of the oldest segment."""
        return self._bases[0]

    def add(self, segment: Segment) -> None:
        """Add a segment after all others."""
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def remove(self, segment: Segment) -> None:
        """Remove a segment. The caller deletes its files."""
        slot = self.index_of(segment.base_offset)
        del self._segments[slot], self._bases[slot]
        self.forget_positions()

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Replace ``old``, which are adjacent, by ``new``."""
        slot = self.index_of(old[0].base_offset)
        self._segments[slot : slot + len(old)] = [new]
        self._bases[slot : slot + len(old)] = [new.base_offset]
        self.forget_positions()

    def forget_positions(self) -> None:
        """Forget the positions at which reads ended, because segments were truncated."""
        self._hints.clear()

    def index_of(self, offset: int) -> int:
        """Return the index of the segment whose range contains ``offset``, 0 if it is before all of them."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def holding(self, offset: int) -> list[Segment]:
        """Return the segment whose range contains ``offset``, and all later ones."""
        return self._segments[self.index_of(offset) :]

    def batch_start(self, offset: int) -> int:
        """Return the base offset of the batch that contains ``offset`` after its first record, or ``offset``."""
        segment = self._segments[self.index_of(offset)]
        for header, _ in segment.headers(segment.position_of(offset)):
            return min(header.base_offset, offset)
        return offset

    def before(self, offset: int) -> list[Segment]:
        """Return the segments that end before ``offset``, but never the active one."""
        return self._segments[: self.index_of(offset)]

    def after(self, offset: int) -> list[Segment]:
        """Return the segments that begin after ``offset``, newest first."""
        return self._segments[: bisect_right(self._bases, offset) - 1 : -1]

    def read(
        self, offset: int, max_bytes: int, *, upto: int, end_offset: int, at_least_one: bool, shared: bool
    ) -> bytes | memoryview:
        """See `Log.read`; ``end_offset`` is that of the log."""
        segment, start = self._locate(offset)
        end = segment.size if upto >= self._end_of(segment, end_offset) else segment.position_of(upto)
        if start >= end:
            return b""
        stop, following = end, upto
        if start + max_bytes < end:
            across = segment.batch_across(start + max_bytes, start)
            stop, following = across.position, across.header.base_offset
            if stop == start:
                if not at_least_one:
                    return b""
                stop, following = start + across.header.size, across.header.next_offset
        data = segment.view(stop - start, start) if shared else segment.pread(stop - start, start)
        if len(self._hints) >= _MAX_HINTS:
            self._hints.clear()
        self._hints[following] = segment, stop
        return data

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """Return the segment and the position of the batch with ``offset``, or of the next one."""
        hint = self._hints.get(offset)
        if hint is not None and hint[1] < hint[0].size:
            return hint
        slot = self.index_of(offset)
        segment = self._segments[slot]
        position = segment.position_of(offset)
        while position >= segment.size and slot + 1 < len(self._segments):
            slot += 1
            segment, position = self._segments[slot], 0
        return segment, position

    def _end_of(self, segment: Segment, end_offset: int) -> int:
        slot = bisect_right(self._bases, segment.base_offset)
        return self._bases[slot] if slot < len(self._bases) else end_offset

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        """See `Log.aborted_transactions`."""
        return [(entry.producer_id, entry.first_offset) for entry in self.aborted_between(start, end)]

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in ``[start, end)``, in the order of their markers."""
        found: list[AbortedTransaction] = []
        for segment in self.holding(start):
            entries, complete = segment.txn_index.collect(start, end)
            found += entries
            if complete:
                break
        return found

    def search_timestamp(self, timestamp: int, start_offset: int) -> TimeStep | None:
        """See `Log.search_timestamp`."""
        for count, segment in enumerate(self.holding(start_offset)):
            if count >= SEGMENTS_A_STEP:
                return TimeStep(segment.base_offset)
            if segment.last_timestamp().timestamp >= timestamp:
                found = segment.search_timestamp(timestamp, start_offset)
                if found is not None:
                    return found
        return None

    def batch_of_max_timestamp(self) -> TimeStep | None:
        """See `Log.batch_of_max_timestamp`."""
        segment = max(self._segments, key=lambda segment: segment.last_timestamp().timestamp)
        return segment.batch_of_max_timestamp() if segment.size else None
