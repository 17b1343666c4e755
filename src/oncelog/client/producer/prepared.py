"""The handle of a prepared transaction, and what a coordinator's state says about its end. No I/O.

Apache Kafka 4.3 does not support two-phase commit (KIP-939) yet. EndTxn needs only (transactional id, producer id,
epoch), works from any process, and may be repeated. So a transaction survives its process, until its time-out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

import msgspec

from oncelog.errors import UsageError

FORMAT = 1
"""The version of the text. `from_text` rejects newer ones."""


class TransactionOutcome(StrEnum):
    """How a prepared transaction has ended, if it has."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The coordinator knows only later transactions, and the log has no marker of this one."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction whose records are all acknowledged. `Transaction.resume` ends it from any process.

    The handle can be pickled, and stored as a line of text: `PreparedTransaction.from_text(handle.to_text())`. The
    coordinator aborts the transaction `timeout_ms` (transaction.timeout.ms) after its first record, or as soon as a
    newer producer uses its transactional id.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
    """The protocol under which it was written (transaction.version: 0, 1 or 2)."""
    timeout_ms: int
    spans: tuple[tuple[str, int, int, int], ...] = ()
    """(topic, partition, offset of the first record there, of the last one)."""
    groups: tuple[str, ...] = ()
    """The consumer groups whose offsets are in it."""
    empty: bool = False
    """Whether nothing was sent, so that there is nothing to end."""

    def __str__(self) -> str:
        """Return `to_text()`, for programs that print the handle."""
        return self.to_text()

    def to_text(self) -> str:
        """Return one line of JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> PreparedTransaction:
        """Return the handle that `to_text` wrote. Raises UsageError for any other text."""
        try:
            fields = json.loads(text)
            known = fields.pop("format")
            made = None if known != FORMAT else msgspec.convert(fields, cls)
        except (ValueError, TypeError, KeyError, AttributeError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"this is not the text of a prepared transaction, as its to_text() writes it: {text[:80]!r} ({error})"
            ) from None
        if made is None:
            raise UsageError(f"the handle has format {known}, and this version of oncelog knows {FORMAT}: upgrade it")
        return made

    def ended_in(self, state: str, producer_id: int, epoch: int) -> TransactionOutcome | None:
        """Return what the coordinator's state of the transactional id says about this transaction, or None.

        With transaction.version 2, each end of a transaction raises the epoch. Before that, only a time-out's abort and
        a newer producer raise it.
        """
        if producer_id != self.producer_id:
            return None
        moved = 1 if self.transaction_version >= 2 else 0
        if not self.producer_epoch <= epoch <= self.producer_epoch + moved:
            return None
        if state == "Ongoing":
            return TransactionOutcome.OPEN if epoch == self.producer_epoch else None
        return _ENDS.get(state)


_ENDS = {
    "PrepareCommit": TransactionOutcome.COMMITTED,
    "CompleteCommit": TransactionOutcome.COMMITTED,
    "PrepareAbort": TransactionOutcome.ABORTED,
    "PrepareEpochFence": TransactionOutcome.ABORTED,
    "CompleteAbort": TransactionOutcome.ABORTED,
}
