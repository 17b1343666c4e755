"""The producers of a partition: the broker's half of idempotence and transactions, without I/O and clock.

For each producer id, the state has an epoch, the last five batches, the coordinator epoch of the last marker and, in a
transaction, its first offset. `ProducerAppend` checks the batches of one append against the state and collects their
changes. `ProducerState.commit` applies the changes after the batches were written. Source: KIP-98, KIP-360, KIP-890,
KIP-1228; Kafka's ``ProducerStateManager``, ``ProducerAppendInfo``, ``ProducerStateEntry``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from oncelog.log.verification import Verification, is_before
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader, next_sequence

BATCHES_REMEMBERED = 5
"""Batches of a producer that are kept to recognize retries. So producers have at most five requests in flight."""

MAX_PRODUCER_EPOCH = 2**15 - 1
NO_TRANSACTION = -1
VERIFICATIONS_MAX = 10_000
"""Verifications that a partition keeps. One that the coordinator rejects expires after a day."""


class Origin(IntEnum):
    """The origin of an append, which determines the checks of its batches."""

    CLIENT = 0
    """Check epoch and sequence."""
    COORDINATOR = 1
    """Check the epoch only: a coordinator's own records have no sequences."""
    REPLICATION = 2
    """Check nothing, because the leader has checked the batches."""


class OutOfOrderSequenceError(ProtocolError):
    """A sequence that does not follow the last one: ``stale`` if it is before the expected one, otherwise a gap.

    On the wire, both are OUT_OF_ORDER_SEQUENCE_NUMBER, as in Kafka.
    """

    def __init__(self, message: str, *, expected: int, sequence: int) -> None:
        self.expected = expected
        self.sequence = sequence
        self.stale = is_before(sequence, expected)
        what = "stale: it is before the expected one" if self.stale else "gap: an earlier batch has not arrived yet"
        super().__init__(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{message} ({what})")


def _stale_epoch(producer_id: int, epoch: int, last: int) -> ProtocolError:
    return ProtocolError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"epoch {epoch} of producer id {producer_id} is older than its current epoch {last}",
    )


class BatchMetadata(NamedTuple):
    """One of the last batches of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Return the sequence of the first record. The one before 0 is 2^31-1."""
        return next_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        """Return the offset of the first record."""
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """The state of one producer id. An empty state has epoch -1."""

    __slots__ = (
        "batches", "coordinator_epoch", "epoch", "generation", "last_timestamp", "producer_id",
        "touched_ms", "txn_start",
    )  # fmt: skip

    def __init__(
        self,
        producer_id: int,
        epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = -1,
        last_timestamp: int = NO_TIMESTAMP,
        txn_start: int = NO_TRANSACTION,
        batches: Iterable[BatchMetadata] = (),
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.touched_ms = last_timestamp
        """When the producer last wrote, by the broker's clock, because batches may have old timestamps."""
        self.txn_start = txn_start
        self.batches: deque[BatchMetadata] = deque(batches, BATCHES_REMEMBERED)
        self.generation = 0
        """The entry may change only in this generation of the state (`ProducerState.freeze`)."""

    def copy(self, generation: int) -> ProducerEntry:
        """Return a copy that may change in this generation."""
        fields = self.producer_id, self.epoch, self.coordinator_epoch, self.last_timestamp, self.txn_start
        copied = ProducerEntry(*fields, self.batches)
        copied.touched_ms, copied.generation = self.touched_ms, generation
        return copied

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record, -1 if there is no batch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the batch with the same epoch, first and last sequence. A partial overlap is not a duplicate."""
        if header.producer_epoch != self.epoch:
            return None
        last = header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last and batch.first_sequence == header.base_sequence:
                return batch
        return None


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended. ``last_offset`` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerInfo(NamedTuple):
    """One producer as in the response to DescribeProducers. `batches` are the remembered ones, the oldest first."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int
    batches: tuple[BatchMetadata, ...]


class ProducerAppend:
    """The changes that one append makes to one producer, checked batch by batch."""

    __slots__ = (
        "_cleared",
        "completed",
        "coordinator_epoch",
        "current",
        "epoch",
        "last_timestamp",
        "new_batches",
        "origin",
        "started",
        "txn_start",
        "verification",
    )

    def __init__(self, current: ProducerEntry, origin: Origin, verification: Verification | None = None) -> None:
        self.current = current
        self.origin = origin
        self.verification = verification
        self.epoch = current.epoch
        self.coordinator_epoch = current.coordinator_epoch
        self.last_timestamp = current.last_timestamp
        self.txn_start = current.txn_start
        self.new_batches: list[BatchMetadata] = []
        self.started: list[int] = []
        self.completed: list[CompletedTransaction] = []
        self._cleared = False

    def append_data(self, header: BatchHeader, base_offset: int) -> None:
        """Check a data batch that will get ``base_offset``, and collect its changes."""
        if self.origin != Origin.REPLICATION:
            self._check_epoch(header.producer_epoch)
            if self.origin == Origin.CLIENT:
                self._check_sequence(header.producer_epoch, header.base_sequence, base_offset)
            if self.txn_start >= 0 and not header.is_transactional:
                raise ProtocolError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer id {self.current.producer_id} has an open transaction in this partition since offset "
                    f"{self.txn_start}, so it may not write outside the transaction",
                )
        self._set_epoch(header.producer_epoch)
        delta = header.last_offset_delta
        self.new_batches.append(BatchMetadata(header.last_sequence, base_offset + delta, delta, header.max_timestamp))
        self.last_timestamp = header.max_timestamp
        if self.txn_start < 0 and header.is_transactional:
            self.txn_start = base_offset
            self.started.append(base_offset)

    def append_marker(
        self,
        commit: bool,
        *,
        epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        transaction_version: int = 0,
    ) -> None:
        """Check a transaction marker that will get ``offset``, and collect its changes."""
        if self.origin != Origin.REPLICATION:
            self._check_marker_epoch(epoch, transaction_version)
            if coordinator_epoch < self.coordinator_epoch:
                raise ProtocolError(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"the marker for producer id {self.current.producer_id} has coordinator epoch {coordinator_epoch}, "
                    f"which is older than the current one, {self.coordinator_epoch}",
                )
        if self.txn_start >= 0:
            self.completed.append(CompletedTransaction(self.current.producer_id, self.txn_start, offset, not commit))
        self._set_epoch(epoch)
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = timestamp
        self.txn_start = NO_TRANSACTION

    def _set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.new_batches.clear()
            self._cleared = True

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise _stale_epoch(self.current.producer_id, epoch, self.epoch)

    def _check_marker_epoch(self, epoch: int, transaction_version: int) -> None:
        if transaction_version < 2:
            self._check_epoch(epoch)
            return
        # In transaction version 2, the coordinator increments the epoch for each marker. The same epoch again is a
        # retry if no transaction is open, and a late marker if the next transaction has begun.
        if epoch > self.epoch:
            return
        if epoch == self.epoch and (self.txn_start < 0 or epoch == MAX_PRODUCER_EPOCH):
            return
        raise ProtocolError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"the marker for producer id {self.current.producer_id} has epoch {epoch} and is late: the producer's "
            f"current epoch is {self.epoch}, and the marker belongs to an earlier transaction",
        )

    def _check_sequence(self, epoch: int, sequence: int, offset: int) -> None:
        self._check_verification(sequence)
        where = f"producer id {self.current.producer_id}, epoch {epoch}, offset {offset}: sequence {sequence}"
        if epoch != self.epoch:
            # An unknown producer may start with any sequence, because retention may have deleted its earlier batches.
            if sequence != 0 and self.epoch != NO_PRODUCER_EPOCH:
                raise OutOfOrderSequenceError(
                    f"{where}, but a new epoch must start with 0 (the last epoch is {self.epoch})",
                    expected=0,
                    sequence=sequence,
                )
            return
        if self.new_batches:
            last = self.new_batches[-1].last_sequence
        elif self._cleared:
            last = NO_SEQUENCE
        else:
            last = self.current.last_sequence
        expected = next_sequence(last)
        if sequence != expected:
            raise OutOfOrderSequenceError(f"{where}, expected {expected}", expected=expected, sequence=sequence)

    def _check_verification(self, sequence: int) -> None:
        verification = self.verification
        if verification is None:
            return
        if verification.strict and sequence != 0 and not self.current.batches:
            raise OutOfOrderSequenceError(
                f"producer id {self.current.producer_id}: sequence {sequence}, but the partition has no state of the "
                "producer, so its transaction must start with 0",
                expected=0,
                sequence=sequence,
            )
        # Compare on the circle. Kafka compares the numbers, so it never accepts the sequences before a wrapped 0.
        if is_before(verification.lowest_sequence, sequence):
            raise OutOfOrderSequenceError(
                f"producer id {self.current.producer_id}: sequence {sequence}, but the coordinator has not yet "
                f"verified the transaction that starts with sequence {verification.lowest_sequence}",
                expected=verification.lowest_sequence,
                sequence=sequence,
            )

    def apply(self) -> ProducerEntry:
        """Apply the changes to the producer's entry, and return it."""
        entry = self.current
        if self._cleared:
            entry.batches.clear()
        entry.batches.extend(self.new_batches)
        entry.epoch = self.epoch
        entry.coordinator_epoch = self.coordinator_epoch
        entry.last_timestamp = self.last_timestamp
        entry.txn_start = self.txn_start
        return entry


class ProducerState:
    """All producers of one partition, and their transactions that are open or not committed yet."""

    def __init__(self, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self.entries: dict[int, ProducerEntry] = {}
        self.end_offset = 0
        """The state contains all batches before this offset."""
        self._generation = 0
        # By first offset. Transactions begin in the order of the log, so these are sorted.
        self._ongoing: dict[int, int] = {}
        self._unreplicated: dict[int, int] = {}
        self._verifications: dict[int, Verification] = {}
        self._next_guard = 1

    # --- queries ---

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction with exactly this epoch."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.txn_start >= 0 and entry.epoch == epoch

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH for an epoch older than the last one seen."""
        entry = self.entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _stale_epoch(producer_id, epoch, entry.epoch)

    @property
    def first_unstable_offset(self) -> int | None:
        """Return the first offset of all transactions that are open, or whose marker is not committed yet."""
        undecided = self.first_undecided_offset
        if self._unreplicated:
            first = next(iter(self._unreplicated)) if len(self._unreplicated) == 1 else min(self._unreplicated)
            return first if undecided is None else min(first, undecided)
        return undecided

    @property
    def first_undecided_offset(self) -> int | None:
        """Return the first offset of all open transactions, or None."""
        return next(iter(self._ongoing), None)

    def infos(self) -> list[ProducerInfo]:
        """Return all producers, for DescribeProducers."""
        return [
            ProducerInfo(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_start,
                tuple(entry.batches),
            )
            for entry in self.entries.values()
        ]

    # --- verification ---

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, *, strict: bool, now_ms: int
    ) -> int | None:
        """Start (or join) the verification of a transaction, and return its guard; None if it is open already.

        ``strict`` (transaction version 2): an unknown producer must start with sequence 0.
        Raises INVALID_PRODUCER_EPOCH for an epoch older than the last one seen.
        """
        self.check_epoch(producer_id, epoch)
        if self.has_open_transaction(producer_id, epoch):
            return None
        verification = self._verifications.get(producer_id)
        if verification is None:
            if len(self._verifications) >= VERIFICATIONS_MAX:
                del self._verifications[next(iter(self._verifications))]  # a batch that waits for it is rejected
            verification = Verification(self._next_guard, epoch, sequence, strict, now_ms)
            self._verifications[producer_id] = verification
            self._next_guard += 1
        else:
            verification.note(epoch, sequence)
        return verification.guard

    def is_verified(self, producer_id: int, guard: int) -> bool:
        """Return whether ``guard`` belongs to the current verification. A marker invalidates it."""
        verification = self._verifications.get(producer_id)
        return verification is not None and verification.guard == guard

    def end_verification(self, header: BatchHeader) -> None:
        """End the verification after a transactional batch or a marker was appended."""
        verification = self._verifications.get(header.producer_id)
        if verification is None:
            return
        # In version 2, the marker has the epoch of the next transaction, which may be the one being verified.
        if header.is_control and verification.strict and header.producer_epoch == verification.epoch:
            return
        del self._verifications[header.producer_id]

    def void_verifications(self) -> None:
        """End all verifications. Appends that wait for one are rejected."""
        self._verifications.clear()

    # --- changes ---

    def prepare(self, producer_id: int, origin: Origin) -> ProducerAppend:
        """Return a `ProducerAppend` for the producer. The state does not change before `commit`."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = ProducerEntry(producer_id)
        return ProducerAppend(entry, origin, self._verifications.get(producer_id))

    def freeze(self) -> list[ProducerEntry]:
        """Return the entries of all producers, which do not change any more. Later appends change copies."""
        self._generation += 1
        return list(self.entries.values())

    def commit(self, append: ProducerAppend, now_ms: int) -> None:
        """Apply the changes of an append, except for completed transactions (see `complete`)."""
        if append.current.generation != self._generation:
            append.current = append.current.copy(self._generation)
        entry = append.apply()
        entry.touched_ms = max(now_ms, entry.last_timestamp)
        self.entries[entry.producer_id] = entry
        for offset in append.started:
            self._ongoing[offset] = entry.producer_id

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """Return the last stable offset without the transaction ``completed``, for the transaction index."""
        for first_offset, producer_id in self._ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTransaction) -> None:
        """Mark a transaction as completed. It stays unstable until its marker is committed."""
        del self._ongoing[completed.first_offset]
        self._unreplicated[completed.first_offset] = completed.last_offset

    def advance_high_watermark(self, offset: int) -> None:
        """Drop the completed transactions whose markers are before ``offset``."""
        if self._unreplicated:
            done = [first for first, last in self._unreplicated.items() if last < offset]
            for first in done:
                del self._unreplicated[first]

    def advance_log_start(self, offset: int) -> None:
        """Advance to the log's start. Producers stay until they expire, even if their records are deleted (KIP-360)."""
        self.advance_high_watermark(offset)
        self.end_offset = max(self.end_offset, offset)

    def load(self, entries: Iterable[ProducerEntry], end_offset: int, now_ms: int) -> None:
        """Load a snapshot taken at ``end_offset``, without the expired producers."""
        self.clear(end_offset)
        for entry in entries:
            if not self._is_expired(entry, now_ms):
                self.entries[entry.producer_id] = entry
        open_ones = (entry for entry in self.entries.values() if entry.txn_start >= 0)
        self._ongoing = {
            entry.txn_start: entry.producer_id for entry in sorted(open_ones, key=lambda entry: entry.txn_start)
        }

    def clear(self, end_offset: int) -> None:
        """Drop all producers, and continue at ``end_offset``."""
        self.entries = {}
        self._ongoing = {}
        self._unreplicated = {}
        self._verifications.clear()
        self.end_offset = end_offset

    def replace(self, rebuilt: ProducerState) -> None:
        """Take the content of a state that was built beside this one, and end all verifications."""
        self.entries = rebuilt.entries
        self._ongoing = rebuilt._ongoing
        self._unreplicated = rebuilt._unreplicated
        self._verifications.clear()
        self.end_offset = rebuilt.end_offset

    def expire(self, now_ms: int) -> int:
        """Drop the producers that were idle for the expiration time. Return their number."""
        expired = [pid for pid, entry in self.entries.items() if self._is_expired(entry, now_ms)]
        for producer_id in expired:
            del self.entries[producer_id]
        for producer_id, verification in list(self._verifications.items()):
            if now_ms - verification.timestamp >= self.expiration_ms:
                del self._verifications[producer_id]
        return len(expired)

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return entry.txn_start < 0 and now_ms - entry.touched_ms >= self.expiration_ms
