"""What a partition remembers of its producers: the broker's half of idempotence and transactions.

Pure: no I/O and no clock. For each producer id there is an epoch, the last five batches, the coordinator epoch of
the last marker and, inside a transaction, its first offset. `ProducerAppend` checks the batches of one append against
it and collects what they change; `ProducerState.commit` takes the change over once the bytes are in the log. Source:
KIP-98, KIP-360, KIP-890, KIP-1228; Kafka's ``ProducerStateManager``, ``ProducerAppendInfo``, ``ProducerStateEntry``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import (
    MAX_SEQUENCE,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    next_sequence,
)

BATCHES_REMEMBERED = 5
"""Batches of a producer that a retry is recognised by; hence at most five requests in flight."""

MAX_PRODUCER_EPOCH = 2**15 - 1
NO_TRANSACTION = -1
VERIFICATIONS_MAX = 10_000
"""Verifications that a partition remembers. One that the coordinator refuses stays until it expires, after a day."""


class Origin(IntEnum):
    """Where an append comes from, and so how far its batches are checked."""

    CLIENT = 0
    """Epoch and sequence (full)."""
    COORDINATOR = 1
    """Epoch only: a coordinator's own records carry no sequences."""
    REPLICATION = 2
    """Nothing: the leader did it."""


class OutOfOrderSequenceError(ProtocolError):
    """A sequence that does not follow the last one: ``stale`` if it lies before the expected one, else a gap.

    On the wire both are OUT_OF_ORDER_SEQUENCE_NUMBER, as in Kafka.
    """

    def __init__(self, message: str, *, expected: int, sequence: int) -> None:
        self.expected = expected
        self.sequence = sequence
        self.stale = is_before(sequence, expected)
        what = "stale, it lies before the expected one" if self.stale else "gap, records before it are missing"
        super().__init__(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{message} ({what})")


def is_before(sequence: int, expected: int) -> bool:
    """Tell whether ``sequence`` lies before ``expected`` on the circle of 2^31 sequences."""
    return (sequence - expected) & MAX_SEQUENCE > MAX_SEQUENCE // 2


def _stale_epoch(producer_id: int, epoch: int, last: int) -> ProtocolError:
    return ProtocolError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"epoch {epoch} of producer {producer_id} is older than the last one seen, {last}",
    )


class BatchMetadata(NamedTuple):
    """One remembered batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record (before 0 comes 2^31-1)."""
        return next_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """State of one producer id; an empty one has epoch -1."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "touched_ms", "txn_start")

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
        """When the producer last wrote, by the broker's clock: its batches may carry times of long ago."""
        self.txn_start = txn_start
        self.batches: deque[BatchMetadata] = deque(batches, BATCHES_REMEMBERED)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 if no batch is remembered."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the remembered batch of the same epoch, first and last sequence; a partial overlap is none."""
        if header.producer_epoch != self.epoch:
            return None
        last = header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last and batch.first_sequence == header.base_sequence:
                return batch
        return None


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended; ``last_offset`` is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerInfo(NamedTuple):
    """One producer, as DescribeProducers shows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class Verification:
    """A transaction being verified with its coordinator: nobody may append under an older one (KIP-890)."""

    __slots__ = ("epoch", "guard", "lowest_sequence", "strict", "timestamp")

    def __init__(self, guard: int, epoch: int, sequence: int, strict: bool, timestamp: int) -> None:
        self.guard = guard
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.strict = strict
        self.timestamp = timestamp

    def note(self, epoch: int, sequence: int) -> None:
        """Take in one more batch that waits for the same verification."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence
        elif epoch == self.epoch and is_before(sequence, self.lowest_sequence):
            self.lowest_sequence = sequence


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
        """Check a data batch that will get ``base_offset``, and note what it changes."""
        if self.origin != Origin.REPLICATION:
            self._check_epoch(header.producer_epoch)
            if self.origin == Origin.CLIENT:
                self._check_sequence(header.producer_epoch, header.base_sequence, base_offset)
            if self.txn_start >= 0 and not header.is_transactional:
                raise ProtocolError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer {self.current.producer_id} has an open transaction in this partition since offset "
                    f"{self.txn_start}, and may not write outside of it",
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
        """Check a transaction marker that will get ``offset``, and note what it changes."""
        if self.origin != Origin.REPLICATION:
            self._check_marker_epoch(epoch, transaction_version)
            if coordinator_epoch < self.coordinator_epoch:
                raise ProtocolError(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"marker for producer {self.current.producer_id} comes from a coordinator of epoch "
                    f"{coordinator_epoch}, epoch {self.coordinator_epoch} was seen already",
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
        # With transaction version 2 the coordinator raises the epoch for each marker. The same epoch again is a
        # marker sent twice if the transaction is over, and one that came too late if the next has begun.
        if epoch > self.epoch:
            return
        if epoch == self.epoch and (self.txn_start < 0 or epoch == MAX_PRODUCER_EPOCH):
            return
        raise ProtocolError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"marker of epoch {epoch} for producer {self.current.producer_id} is late: the last epoch seen is "
            f"{self.epoch}, and its transaction is not the one that the marker is for",
        )

    def _check_sequence(self, epoch: int, sequence: int, offset: int) -> None:
        self._check_verification(sequence)
        where = f"producer {self.current.producer_id}, epoch {epoch}, at offset {offset}: sequence {sequence}"
        if epoch != self.epoch:
            # A producer that is not known may start anywhere: retention may have taken what it wrote before.
            if sequence != 0 and self.epoch != NO_PRODUCER_EPOCH:
                raise OutOfOrderSequenceError(
                    f"{where}, but the new epoch must start with 0 (the last epoch is {self.epoch})",
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
                f"producer {self.current.producer_id}: sequence {sequence}, but nothing is known of the producer "
                "here, so its transaction must start with 0",
                expected=0,
                sequence=sequence,
            )
        # Round the circle: by number alone (as Kafka compares) what comes before a wrapped 0 would never be let in.
        if is_before(verification.lowest_sequence, sequence):
            raise OutOfOrderSequenceError(
                f"producer {self.current.producer_id}: sequence {sequence}, but {verification.lowest_sequence} is "
                "still waiting for its transaction to be verified",
                expected=verification.lowest_sequence,
                sequence=sequence,
            )

    def apply(self) -> ProducerEntry:
        """Put the changes into the producer's entry and return it."""
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
    """All producers of one partition, and which of their transactions are open or not yet replicated."""

    def __init__(self, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self.entries: dict[int, ProducerEntry] = {}
        self.end_offset = 0
        """Offset up to which the log is taken in (exclusive)."""
        # Keyed by the first offset, in its order: transactions begin in the order of the log.
        self._ongoing: dict[int, int] = {}
        self._unreplicated: dict[int, int] = {}
        self._verifications: dict[int, Verification] = {}
        self._next_guard = 1

    # --- looking in ---

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Tell whether this very epoch of the producer has an open transaction here."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.txn_start >= 0 and entry.epoch == epoch

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH for an epoch older than the last one seen."""
        entry = self.entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _stale_epoch(producer_id, epoch, entry.epoch)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is open, or whose marker the high watermark has not passed."""
        undecided = self.first_undecided_offset
        if self._unreplicated:
            first = next(iter(self._unreplicated)) if len(self._unreplicated) == 1 else min(self._unreplicated)
            return first if undecided is None else min(first, undecided)
        return undecided

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of an open transaction."""
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
            )
            for entry in self.entries.values()
        ]

    # --- verification ---

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, *, strict: bool, now_ms: int
    ) -> int | None:
        """Begin (or join) the verification of a transaction and return its guard; None if it is open already.

        ``strict`` (transaction version 2): a producer of which nothing is known must start with sequence 0.
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
        """Tell whether ``guard`` is that of the verification under way: no marker came in between."""
        verification = self._verifications.get(producer_id)
        return verification is not None and verification.guard == guard

    def end_verification(self, header: BatchHeader) -> None:
        """Forget the verification that an appended transactional batch or marker has settled."""
        verification = self._verifications.get(header.producer_id)
        if verification is None:
            return
        # Under version 2 the marker carries the epoch of the next transaction, which may be the one verified.
        if header.is_control and verification.strict and header.producer_epoch == verification.epoch:
            return
        del self._verifications[header.producer_id]

    # --- changes ---

    def prepare(self, producer_id: int, origin: Origin) -> ProducerAppend:
        """Return a `ProducerAppend` for the producer; nothing changes before `commit`."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = ProducerEntry(producer_id)
        return ProducerAppend(entry, origin, self._verifications.get(producer_id))

    def commit(self, append: ProducerAppend, now_ms: int) -> None:
        """Take over what an append changes. Completed transactions are taken by `complete`."""
        entry = append.apply()
        entry.touched_ms = max(now_ms, entry.last_timestamp)
        self.entries[entry.producer_id] = entry
        for offset in append.started:
            self._ongoing[offset] = entry.producer_id

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """Return the last stable offset once ``completed`` is out of the way, for the transaction index."""
        for first_offset, producer_id in self._ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTransaction) -> None:
        """Count a transaction as decided; it stays unstable until the high watermark passes its marker."""
        del self._ongoing[completed.first_offset]
        self._unreplicated[completed.first_offset] = completed.last_offset

    def advance_high_watermark(self, offset: int) -> None:
        """Let go of the decided transactions whose marker lies before ``offset``."""
        if self._unreplicated:
            done = [first for first, last in self._unreplicated.items() if last < offset]
            for first in done:
                del self._unreplicated[first]

    def advance_log_start(self, offset: int) -> None:
        """Follow the log's start. Producers stay known until they expire, whatever of theirs is deleted (KIP-360)."""
        self.advance_high_watermark(offset)
        self.end_offset = max(self.end_offset, offset)

    def load(self, entries: Iterable[ProducerEntry], end_offset: int, now_ms: int) -> None:
        """Start over from a snapshot taken at ``end_offset``, without the producers that have expired."""
        self.clear(end_offset)
        for entry in entries:
            if not self._is_expired(entry, now_ms):
                self.entries[entry.producer_id] = entry
        open_ones = (entry for entry in self.entries.values() if entry.txn_start >= 0)
        self._ongoing = {
            entry.txn_start: entry.producer_id for entry in sorted(open_ones, key=lambda entry: entry.txn_start)
        }

    def clear(self, end_offset: int) -> None:
        """Forget everything and go on at ``end_offset``."""
        self.entries = {}
        self._ongoing = {}
        self._unreplicated = {}
        self.end_offset = end_offset

    def expire(self, now_ms: int) -> int:
        """Forget the producers that were idle for the expiration time; return how many."""
        expired = [pid for pid, entry in self.entries.items() if self._is_expired(entry, now_ms)]
        for producer_id in expired:
            del self.entries[producer_id]
        for producer_id, verification in list(self._verifications.items()):
            if now_ms - verification.timestamp >= self.expiration_ms:
                del self._verifications[producer_id]
        return len(expired)

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return entry.txn_start < 0 and now_ms - entry.touched_ms >= self.expiration_ms
