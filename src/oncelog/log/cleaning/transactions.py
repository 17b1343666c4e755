"""Which batches belong to aborted transactions, and which markers have outlived their data.

Source: Kafka's ``CleanedTransactionMetadata``.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.log.txn_index import AbortedTransaction
from oncelog.protocol.records import BatchHeader, decode_control


class CleanedTransactions:
    """Follows the transactions of a log while its batches are read in their order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """``aborted``: those with records in the part of the log that is read."""
        self._coming = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        self.retained: list[AbortedTransaction] = []
        """The aborted transactions whose marker was met and of which a batch is still there."""

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            aborted = self._coming.pop()
            self._aborted.setdefault(aborted.producer_id, (aborted, False))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a data batch; return whether its transaction is aborted, so that its records may go."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        found = self._aborted.get(header.producer_id)
        if found is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = found[0], True
        return True

    def is_spent(self, header: BatchHeader, view: memoryview) -> bool:
        """Take in a marker; return whether no batch of its transaction was met, so that it may go one day."""
        self._advance(header.last_offset)
        if not header.count:  # only there for its offset: the marker itself is gone
            return True
        commit, _ = decode_control(view)
        if commit:
            spent = header.producer_id not in self._committed
            self._committed.discard(header.producer_id)
            return spent
        found, seen = self._aborted.pop(header.producer_id, (None, False))
        if found is None or not seen:
            return True
        self.retained.append(found)
        return False
