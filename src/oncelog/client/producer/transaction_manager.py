"""The producer's part of exactly-once delivery, without I/O (KIP-98, 360, 447, 588, 890).

`Sequences` has the sequence numbers of an idempotent producer. `TransactionManager` has them, and the state of a
transactional producer, which `transaction_states` draws. In `coordinator_requests`, `next_request` returns what to send
to the coordinator, and `handle` processes its responses.

With transaction.version 2 ("TV2"), partitions join a transaction when a record is written to them. Each end of a
transaction returns a new epoch, and an empty commit is not sent. Before that ("TV1"), a request adds partitions, and
InitProducerId renews the epoch after an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from oncelog import errors
from oncelog.client.producer import error_meanings
from oncelog.client.producer.batch import Batch
from oncelog.client.producer.prepared import PreparedTransaction
from oncelog.client.producer.sequences import Sequences
from oncelog.client.producer.transaction_states import CURES, LEGAL, OPEN, ManagerState
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.group_offsets import GroupMetadata


logger = logging.getLogger(__name__)


class TransactionEnd:
    """The end of a transaction for which a commit or an abort waits.

    The manager sets `done` when the transaction has ended as wanted (`error` is None) or failed. A call that has timed
    out can be repeated: it gets the same end.
    """

    __slots__ = ("commit", "done", "error")

    def __init__(self, *, commit: bool) -> None:
        self.commit = commit
        self.done = False
        self.error: errors.KafkaError | None = None


class Offsets(NamedTuple):
    """Offsets of a group in the transaction: partition -> (next offset, leader epoch, metadata)."""

    group: GroupMetadata
    offsets: dict[TopicPartition, tuple[int, int, str]]


FATAL_FOR_PRODUCE = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class TransactionManager:
    """The state of one producer with idempotence. If `transactional_id` is None, it has no transactions.

    With `two_phase`, its transactions have no timeout. With `keep`, its first request keeps the open transaction of the
    former producer (KIP-939).
    """

    def __init__(
        self,
        transactional_id: str | None,
        transaction_timeout_ms: int = 60_000,
        *,
        two_phase: bool = False,
        keep: bool = False,
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = NO_TIMEOUT_MS if two_phase else transaction_timeout_ms
        self.two_phase = two_phase
        self.keep = keep
        self.kept: tuple[int, int] | None = None
        """The (producer id, epoch) of the predecessor's transaction that this producer has to end."""
        self.state = ManagerState.UNINITIALIZED
        self.error: errors.KafkaError | None = None
        self.sequences = Sequences()
        self.version = 0
        """The cluster's transaction.version, as far as this client supports it: 0, 1 or 2."""
        self.bump_required = False
        """TV1: InitProducerId must renew the epoch after the transaction."""
        self.started = False
        """Whether the coordinator may know the transaction, so that it must end it."""
        self.partitions: set[TopicPartition] = set()
        self.new_partitions: set[TopicPartition] = set()
        self.adding: set[TopicPartition] = set()
        self.groups: dict[str, bool] = {}
        """Groups of the transaction; True once the coordinator knows them."""
        self.offsets: list[Offsets] = []
        self.skip_end = False
        """Whether the coordinator has already ended the transaction."""
        self.doubted: errors.KafkaError | None = None
        """The error of a coordinator that reports this producer as fenced. After a timeout, it reports the same.
        InitProducerId with the old epoch decides, because the coordinator rejects it for a fenced producer
        (KIP-360, 588).
        """
        self.end: TransactionEnd | None = None
        """The end in progress, or one that no call has returned yet: the call timed out and may be repeated."""
        self.first_offsets: dict[TopicPartition, int] = {}
        self.last_offsets: dict[TopicPartition, int] = {}
        self.was_prepared = False
        """Whether the transaction has a handle, so that another process may have ended it."""

    # -- what a producer asks -------------------------------------------------------------------------------------

    @property
    def transactional(self) -> bool:
        """Whether the producer has a transactional id."""
        return self.transactional_id is not None

    @property
    def producer_id(self) -> int:
        """The producer id, or -1."""
        return self.sequences.producer_id

    @property
    def producer_epoch(self) -> int:
        """The epoch, or -1."""
        return self.sequences.epoch

    @property
    def implicit(self) -> bool:
        """Whether partitions join when a record is written to them (TV2)."""
        return self.version >= 2

    def to(self, state: ManagerState) -> None:
        """Change the state. Raises UsageError if the transition is not legal."""
        if state is not ManagerState.FATAL_ERROR and state not in LEGAL[self.state]:
            self.require_no_error()
            cure = f"; {CURES[self.state]}" if self.state in CURES else ""
            raise errors.UsageError(f"the transaction is {self.state.value}, so it cannot become {state.value}{cure}")
        name = self.transactional_id or self.producer_id
        logger.debug("producer %s: %s, was %s; error: %s", name, state.value, self.state.value, self.error)
        self.state = state
        end = self.end
        if end is not None and not end.done:
            end.done = state in (ManagerState.READY, ManagerState.ABORTABLE_ERROR, ManagerState.FATAL_ERROR)
            end.error = None if state is ManagerState.READY else self.error

    def require_no_error(self) -> None:
        """Raise the error of an error state."""
        if self.state in (ManagerState.FATAL_ERROR, ManagerState.ABORTABLE_ERROR) and self.error is not None:
            raise self.error.with_traceback(None)

    def initialize(self) -> None:
        """Request producer id and epoch (`init_transactions`). May be called again while the request is in progress."""
        if self.state is not ManagerState.INITIALIZING:
            self.to(ManagerState.INITIALIZING)

    def begin(self) -> None:
        """Begin a transaction. The coordinator learns of it with the first record or offset."""
        if self.state is ManagerState.IN_TRANSACTION:
            raise errors.UsageError("a transaction is already in progress; commit or abort it first")
        if self.state is ManagerState.UNINITIALIZED:
            raise errors.UsageError(
                "the producer is not initialized; call init_transactions() before the first transaction"
            )
        self.to(ManagerState.IN_TRANSACTION)
        self.end = None
        self.was_prepared = False
        self.first_offsets, self.last_offsets = {}, {}

    def begin_prepare(self) -> None:
        """Accept no more records, so that another process may end the transaction.

        In the old protocol, the next transaction gets a new epoch, because a late EndTxn of a handle would end it.
        """
        if self.state is ManagerState.PREPARED:
            return
        if self.state in (ManagerState.UNINITIALIZED, ManagerState.READY):
            raise errors.UsageError("there is no transaction to prepare; begin one first")
        self.to(ManagerState.PREPARED)
        self.bump_required |= not self.implicit

    @property
    def joined(self) -> bool:
        """Whether the coordinator knows all partitions and offsets of the transaction."""
        return self.doubted is None and not (self.new_partitions or self.adding or self.offsets)

    def prepared(self, cluster_id: str) -> PreparedTransaction:
        """Return the handle of the transaction. Raises UsageError if it is not prepared."""
        if self.kept is not None:
            raise errors.UsageError("a predecessor prepared this transaction; end it with complete_transaction()")
        if self.state is not ManagerState.PREPARED:
            raise errors.UsageError(f"the transaction was ended while prepare() waited; it is {self.state.value}")
        self.was_prepared = True
        return PreparedTransaction(
            self.transactional_id or "",
            self.producer_id,
            self.producer_epoch,
            self.version,
            self.timeout_ms,
            tuple(sorted((*tp, first, self.last_offsets[tp]) for tp, first in self.first_offsets.items())),
            tuple(sorted(self.groups)),
            not self.started,
            cluster_id,
        )

    def decision_for(self, handle: PreparedTransaction | None) -> bool | None:
        """Return True to commit the prepared or kept transaction, which is the handle's, and False to abort it.

        Return None if there is no transaction. Raises UsageError if the transaction is not prepared, or if the handle
        belongs to another transactional id.
        """
        if handle is not None and handle.transactional_id != self.transactional_id:
            raise errors.UsageError(
                f"the handle belongs to transactional id {handle.transactional_id!r}, not {self.transactional_id!r}"
            )
        self.require_no_error()
        if self.state is ManagerState.READY:
            return None if self.end is None else self.end.commit  # of a call that has timed out
        if self.state is ManagerState.IN_TRANSACTION:
            raise errors.UsageError("the transaction is not prepared; call prepare() first")
        ours = self.kept or (self.producer_id, self.producer_epoch)
        if handle is None:
            return False
        # The transaction after an empty one has its epoch, because nothing was sent to end the empty one.
        return ours == (handle.producer_id, handle.producer_epoch) and handle.empty is not self.started

    def begin_commit(self) -> TransactionEnd:
        """Commit once everything sent is acknowledged. Return the end to wait for."""
        if self.end is not None and self.end.commit:
            return self.end
        if self.state is ManagerState.READY:
            raise errors.UsageError("there is no transaction to commit; begin one first")
        self.to(ManagerState.COMMITTING)
        self.end = TransactionEnd(commit=True)
        return self.end

    def begin_abort(self) -> TransactionEnd:
        """Abort; also the way out of an abortable error. Return the end to wait for."""
        if self.end is not None and not self.end.commit:
            return self.end
        if self.state is ManagerState.READY:
            raise errors.UsageError("there is no transaction to abort; begin one first")
        mapping_lost = self.error is not None and self.error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        self.to(ManagerState.ABORTING)
        self.end = TransactionEnd(commit=False)
        self.error = self.doubted = None
        self.skip_end |= mapping_lost
        self.bump_required |= mapping_lost
        self.offsets.clear()
        self.new_partitions.clear()
        return self.end

    def set_version(self, version: int) -> None:
        """Set the cluster's transaction.version, between transactions. An upgrade needs a new epoch first."""
        if version >= 2 and self.version == 1:
            self.bump_required = True
        self.version = version

    def may_append(self, tp: TopicPartition) -> None:
        """Check that a record may be sent now, and add its partition. Raises UsageError and KafkaError."""
        if self.state is ManagerState.FATAL_ERROR and self.error is not None:
            raise self.error.with_traceback(None)
        if not self.transactional:
            return
        if self.state is not ManagerState.IN_TRANSACTION:
            self.require_no_error()
            raise errors.UsageError(
                f"a transactional producer sends records only in a transaction, but it is {self.state.value}; call "
                "begin_transaction(), or use `with producer.transaction()`"
            )
        if tp in self.partitions or tp in self.new_partitions or tp in self.adding:
            return
        if self.implicit:
            self.partitions.add(tp)
            self.started = True
        else:
            self.new_partitions.add(tp)

    def add_offsets(self, group: GroupMetadata, offsets: Mapping[TopicPartition, tuple[int, int, str]]) -> None:
        """Commit offsets of a group with the transaction."""
        if self.state is not ManagerState.IN_TRANSACTION:
            self.require_no_error()
            raise errors.UsageError(f"send_offsets needs a transaction, but this producer is {self.state.value}")
        if offsets:
            self.groups.setdefault(group.group_id, False)
            self.offsets.append(Offsets(group, dict(offsets)))

    # -- batches --------------------------------------------------------------------------------------------------

    def holds_back(self, batch: Batch) -> bool:
        """Return whether a batch must wait: for a producer id, for its partition to join, or for sequences in doubt."""
        if self.state is ManagerState.FATAL_ERROR or self.sequences.producer_id < 0:
            return True
        if self.transactional and batch.tp not in self.partitions:
            return True
        return self.sequences.holds_back(batch)

    def assign(self, batch: Batch) -> None:
        """Give a drained batch its sequence, unless it has one."""
        self.sequences.assign(batch, transactional=self.transactional)

    def delivered(self, batch: Batch, base_offset: int) -> None:
        """Record that a batch is in the log."""
        self.sequences.delivered(batch, base_offset)
        if self.transactional and base_offset >= 0:
            first = self.first_offsets.get(batch.tp)
            if first is None or base_offset < first:
                self.first_offsets[batch.tp] = base_offset
            last = base_offset + batch.count - 1
            self.last_offsets[batch.tp] = max(self.last_offsets.get(batch.tp, -1), last)

    def can_retry(self, batch: Batch, code: ErrorCode, log_start_offset: int) -> bool:
        """Return whether to send a batch again after an error (TransactionManager.canRetry)."""
        sequences = self.sequences
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if self.transactional and self.state in (ManagerState.ABORTABLE_ERROR, ManagerState.ABORTING):
                # A batch before it has failed, so it can never be appended, and the abort discards it.
                self.bump_required |= not self.implicit
                return False
            unresolved = sequences.is_unresolved(batch.tp)
            waits = batch.sequence_reset or not (sequences.is_next(batch) or sequences.is_overtaken(batch))
            if waits and not unresolved:
                return True  # an earlier batch has to be sent again first
            if not self.transactional:
                if not unresolved or sequences.follows_unresolved(batch):
                    sequences.request_bump(batch.tp, "records before the batch are not in the log")
                return True
            return False
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset < 0 or batch.sequence_reset:
                return True
            if not self.transactional:
                sequences.request_bump(batch.tp, "the broker does not know the producer any more")
                return True
            if sequences.last_acked_offset(batch.tp) < log_start_offset:
                sequences.restart(batch.tp)
                return True
            return False
        if code is ErrorCode.INVALID_PRODUCER_EPOCH and not self.transactional:
            if batch.producer_epoch == sequences.epoch:
                sequences.request_bump(batch.tp, "the broker knows a later epoch")
            return True
        return code.retriable

    def failed(self, batch: Batch, error: errors.KafkaError) -> errors.KafkaError:
        """Give up a batch that will not be resent. Return the error for its records."""
        self.sequences.remove(batch)
        meaning = self.fail_with(error, in_doubt=batch.in_doubt)
        if self.state is not ManagerState.FATAL_ERROR and not self.transactional and batch.base_sequence >= 0:
            self.sequences.request_bump(batch.tp, f"a batch has failed: {error.code.name}")
        return meaning

    def expired(self, batch: Batch, error: errors.KafkaError) -> errors.KafkaError:
        """Give up a batch whose delivery timeout has expired. Return the error for its records.

        If it was sent, it may be in the log, and its sequences are in doubt.
        """
        self.sequences.remove(batch)
        meaning = self.fail_with(error) if self.transactional else error
        if batch.base_sequence >= 0:
            self.sequences.mark_unresolved(batch)
        return meaning

    def resolve(self) -> list[Batch]:
        """Settle sequences in doubt at the beginning of a turn, and renew the epoch if needed.

        Return the batches to give up: they may or may not be in the log.
        """
        lost = self.sequences.resolve()
        if lost and self.transactional:
            self.bump_required |= not self.implicit
            if self.state in OPEN:
                self.fail_with(errors.AbortableError("a batch has expired, and its sequence numbers are in doubt"))
        elif lost:
            for tp in lost:
                self.sequences.request_bump(tp, "a batch was given up, and is not in the log")
        return [] if self.transactional else self.sequences.bump_if_requested()

    # -- errors ---------------------------------------------------------------------------------------------------

    def fail_with(self, error: errors.KafkaError, *, in_doubt: bool = False) -> errors.KafkaError:
        """Handle an error of a batch: it is fatal, or makes the transaction abortable.

        Without a transaction, nothing changes. Return the error for the records. `in_doubt`: an earlier attempt may be
        in the log.
        """
        if error.code in FATAL_FOR_PRODUCE or isinstance(error, errors.FencedError):
            return self.fatal(error)
        if not self.transactional:
            return error_meanings.outside_transaction(error, in_doubt=in_doubt)
        if not self.implicit and self.state is not ManagerState.ABORTING:
            self.bump_required = True
        return self.abortable(error)

    def fatal(self, error: errors.KafkaError) -> errors.KafkaError:
        """Enter the fatal state: the producer cannot continue. Return the error that its calls raise from now on."""
        meaning = error if isinstance(error, errors.TransactionEndedError) else error_meanings.fatal(error)
        if self.state is not ManagerState.FATAL_ERROR:
            self.error = meaning
            self.to(ManagerState.FATAL_ERROR)
        return meaning

    def abortable(self, error: errors.KafkaError) -> errors.AbortableError:
        """Require an abort: the transaction cannot be committed. If an abort is in progress, nothing changes.

        Return the error that the transaction's calls raise until the abort.
        """
        meaning = error_meanings.abortable(error)
        if self.state in OPEN or self.state is ManagerState.INITIALIZING:
            self.error = meaning if self.state in OPEN else error_meanings.fatal(error)  # there is nothing to abort yet
            self.to(ManagerState.ABORTABLE_ERROR)
        return meaning

    # -- ends -----------------------------------------------------------------------------------------------------

    def ended(self, producer_id: int = -1, epoch: int = -1) -> None:
        """Record that the transaction has ended. With TV2, the coordinator returns the next epoch."""
        if producer_id >= 0:
            self.sequences.set_producer(producer_id, epoch)
        self.started = self.skip_end = False
        self.kept = None
        self.partitions.clear()
        self.new_partitions.clear()
        self.adding.clear()
        self.groups.clear()
        self.offsets.clear()
        self.error = self.doubted = None
        self.to(ManagerState.INITIALIZING if self.bump_required else ManagerState.READY)

    def timed_out(self, producer_id: int, epoch: int) -> None:
        """Record that the coordinator has aborted the transaction, and that no producer has fenced this one.

        Continue with a new epoch. An abort in progress has nothing left to end.
        """
        self.sequences.set_producer(producer_id, epoch)
        self.doubted = None
        self.bump_required = False
        self.skip_end = True
        self.abortable(
            errors.AbortableError(
                f"the coordinator has aborted the transaction, {self.why_ended}", ErrorCode.INVALID_TXN_STATE
            )
        )

    @property
    def why_ended(self) -> str:
        """Why a coordinator ends a transaction that this producer has not ended, for messages."""
        holder = "another process with its handle, or " if self.was_prepared else ""
        ended_by = "an administrator" if self.two_phase else f"transaction_timeout_ms = {self.timeout_ms}"
        return f"usually because of {holder}{ended_by}"

    def initialized(self, producer_id: int, epoch: int, kept: tuple[int, int] | None = None) -> None:
        """Set producer id and epoch, the response to `initialize`, and the transaction that it has kept."""
        self.sequences.set_producer(producer_id, epoch)
        self.bump_required = False
        self.error = None
        self.kept = kept
        self.started = self.was_prepared = kept is not None
        self.to(ManagerState.READY if kept is None else ManagerState.PREPARED)
