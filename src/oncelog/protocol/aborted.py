"""Which batches of an answer a reader of committed records must not see (Kafka's `CompletedFetch`)."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.protocol.records import BatchHeader, decode_control


class AbortedTransactions:
    """Those of one Fetch answer, as (first offset, producer id), followed through its batches."""

    __slots__ = ("_next", "_open", "_waiting")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = sorted(aborted)
        self._next = 0
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, view: memoryview) -> bool:
        """Whether a batch belongs to an aborted transaction; to be asked of every batch, in order.

        It is False for control batches. ProtocolError (INVALID_RECORD) for a damaged marker.
        """
        waiting = self._waiting
        if not waiting or header.producer_id < 0:
            return False
        last_offset = header.last_offset
        while self._next < len(waiting) and waiting[self._next][0] <= last_offset:
            self._open.add(waiting[self._next][1])
            self._next += 1
        if header.producer_id not in self._open:
            return False
        if not header.is_control:
            return header.is_transactional
        # compaction may have taken the marker out of its batch, long after the aborted records
        if header.count and not decode_control(view)[0]:
            self._open.discard(header.producer_id)
        return False
