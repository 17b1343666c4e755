"""Find the batches of a Fetch response that a reader of committed records must not see (Kafka's `CompletedFetch`)."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.protocol.records import BatchHeader, decode_control


class AbortedTransactions:
    """Track the aborted transactions of one Fetch response from batch to batch.

    `aborted` has the (first offset, producer id) of each.
    """

    __slots__ = ("_next", "_open", "_waiting")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = sorted(aborted)
        self._next = 0
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, view: memoryview) -> bool:
        """Return whether a batch belongs to an aborted transaction. Call this for every batch, in order.

        Return False for control batches. Raises ProtocolError (INVALID_RECORD) for a damaged marker.
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
        # compaction may have removed the marker from its batch, long after it removed the aborted records
        if header.count and not decode_control(view)[0]:
            self._open.discard(header.producer_id)
        return False
