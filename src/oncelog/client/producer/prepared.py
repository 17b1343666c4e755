"""The handle of a prepared transaction, and how a coordinator's state determines its outcome. No I/O.

EndTxn needs only (transactional id, producer id, epoch). It works from any process and can be repeated. So a
transaction survives its process, until its timeout. With two-phase commit (KIP-939), it has none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

import msgspec

from oncelog.errors import UsageError

FORMAT = 1
"""The version of the handle's text. `from_text` rejects newer versions."""


class TransactionOutcome(StrEnum):
    """The outcome of a prepared transaction. OPEN: it has not ended yet."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The coordinator knows only later transactions, and the log has no marker of this one."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """The handle of a transaction whose records are all acknowledged. `Producer.prepare` returns it.

    Any process can end the transaction with `Transaction.resume(handle, ...)`. The handle can be pickled, or stored as
    a line of text: `PreparedTransaction.from_text(handle.to_text())`. The coordinator aborts the transaction
    `timeout_ms` (transaction.timeout.ms) after its first record, or when a newer producer uses its transactional id.
    With two-phase commit, it has no timeout, and a newer producer may keep it (`keep_prepared_transaction`).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
    """The level of the feature transaction.version when it was written: 0, 1 or 2."""
    timeout_ms: int
    spans: tuple[tuple[str, int, int, int], ...] = ()
    """(topic, partition, offset of its first record there, offset of its last record there)."""
    groups: tuple[str, ...] = ()
    """The consumer groups whose offsets it contains."""
    empty: bool = False
    """Whether it contains neither records nor offsets. Then it need not be ended."""
    cluster_id: str = ""
    """The cluster of the transaction. "" in handles of older versions."""

    def __str__(self) -> str:
        """Return `to_text()`, for programs that print the handle."""
        return self.to_text()

    def to_text(self) -> str:
        """Return one line of JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def of(cls, handle: PreparedTransaction | str) -> PreparedTransaction:
        """Return the handle, or the one that a text contains. Raises UsageError for anything else."""
        if isinstance(handle, str):
            return cls.from_text(handle)
        if not isinstance(handle, cls):
            raise UsageError(f"handle must be a PreparedTransaction or its text, not {type(handle).__name__}")
        return handle

    @classmethod
    def from_text(cls, text: str) -> PreparedTransaction:
        """Return the handle that `to_text` wrote. Raises UsageError for any other text."""
        try:
            fields = json.loads(text)
            known = fields.pop("format")
            made = None if known != FORMAT else msgspec.convert(fields, cls)
        except (ValueError, TypeError, KeyError, AttributeError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"{text[:80]!r} is not the text of a prepared transaction; pass what its to_text() returned ({error})"
            ) from None
        if made is None:
            raise UsageError(f"the handle has format {known}, but this oncelog supports only {FORMAT}; upgrade oncelog")
        return made

    def ended_in(self, state: str, producer_id: int, epoch: int) -> TransactionOutcome | None:
        """Return the outcome that follows from the coordinator's state of the transactional id, or None.

        With transaction.version 2, each end of a transaction increases the epoch. Before that, only a timeout and a
        newer producer increase it.
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
