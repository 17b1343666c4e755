"""The handle of a prepared transaction, and what is known of how it has ended. No I/O.

Apache Kafka 4.3 has no two-phase commit (KIP-939) yet. EndTxn needs only (transactional id, producer id, epoch), comes
from anywhere, and may be repeated: with them a transaction outlives its process, until its time-out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

import msgspec

from oncelog.errors import UsageError

FORMAT = 1
"""Of the text: `from_text` refuses what is newer."""


class TransactionOutcome(StrEnum):
    """How a prepared transaction has ended, if it has."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The coordinator knows only later transactions, and the log has no marker of this one."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction of which everything is acknowledged, to be ended from anywhere with `Transaction.resume`.

    Picklable, and a line of text: `PreparedTransaction.from_text(handle.to_text())`. The coordinator aborts it
    `timeout_ms` (transaction.timeout.ms) after its first record; a newer producer with its transactional id does so
    at once.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
    """Generation of the protocol (transaction.version: 0, 1 or 2) that it was written under."""
    timeout_ms: int
    spans: tuple[tuple[str, int, int, int], ...] = ()
    """(topic, partition, offset of the first record there, of the last one)."""
    groups: tuple[str, ...] = ()
    """Consumer groups whose offsets are in it."""
    empty: bool = False
    """Nothing was sent: there is nothing to end."""

    def __str__(self) -> str:
        """What `to_text` writes, for whoever prints it to hand it on."""
        return self.to_text()

    def to_text(self) -> str:
        """One line of JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> PreparedTransaction:
        """The handle that `to_text` wrote; UsageError for anything else."""
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
        """What a coordinator's state of the transactional id says of this transaction; None: nothing.

        With transaction.version 2 the epoch moves when a transaction ends; before that it stays, but a time-out's
        abort raises it, as a newer producer does.
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
