"""The transaction coordinator of one partition of `__transaction_state`, as a state machine.

Requests read the state and return effects. Only `replay` changes a transaction. The shell replays the records of a
request before the next request, so Kafka's "pending transitions" are the prepared states here. A transaction stays
prepared until its last marker is written; until then, requests get CONCURRENT_TRANSACTIONS. The module `decisions`
decides what each request does to a transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from oncelog.coordinator.effects import CoordinatorRecord, Effects, Markers, Reply
from oncelog.coordinator.timers import Deadlines
from oncelog.coordinator.transactions import decisions
from oncelog.coordinator.transactions.decisions import MarkerResult, marker_result
from oncelog.coordinator.transactions.metadata import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
    check_transition,
)
from oncelog.coordinator.transactions.records import tombstone, transaction_of, transaction_record
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS, InitProducerIdRequest, InitProducerIdResponse
from oncelog.protocol.texts import first_named
from oncelog.protocol.topics import TopicPartition

logger = logging.getLogger(__name__)

RETRY_MS = 1000
"""If a record of a timer could not be written, the coordinator retries after this time."""

TICK_LIMIT = 100
"""Transactional ids that one tick processes, so that its records are a small batch."""


class ProducerIdSource(Protocol):
    """A source of new producer ids."""

    def take(self) -> int:
        """Return a new id. Raises a retriable ProtocolError while none is available."""


@dataclass(slots=True)
class TransactionConfig:
    """Hold the settings that all coordinators of a broker share; times are in ms.

    `transaction_version` is the finalized feature level. The broker changes it while coordinators run.
    """

    transaction_version: int = 2
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    two_phase_commit: bool = False


class _Continued(NamedTuple):
    """A producer that continued with a new epoch (KIP-360), and its previous epoch."""

    producer_id: int
    producer_epoch: int
    last_epoch: int


class TransactionCoordinator:
    """The coordinator of the transactional ids of one partition.

    `coordinator_epoch` is the leader epoch of the partition, which markers carry. `config` may be replaced at any time:
    an open transaction keeps the version of its client.
    """

    def __init__(self, coordinator_epoch: int, producer_ids: ProducerIdSource, config: TransactionConfig) -> None:
        self.transactions: dict[str, TransactionMetadata] = {}
        self._coordinator_epoch = coordinator_epoch
        self._producer_ids = producer_ids
        self.config = config
        self._deadlines = Deadlines()
        self._live = False
        # Soft state, as in Kafka: a failover that loses it costs a retry, never the outcome.
        self._unwritten: dict[str, set[TopicPartition]] = {}
        self._continued: dict[str, _Continued] = {}
        # The replay of a timer's record removes its retry. Only records that could not be written are left.
        self._retries: dict[str, int] = {}

    # -- requests -----------------------------------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerIdRequest, version: int, token: Any, now_ms: int) -> Effects:
        """Start a producer's session: InitProducerId with a transactional id. Reply with InitProducerIdResponse."""
        decision = self._decide_init(request, now_ms)
        if isinstance(decision, ErrorCode):
            return _reply(token, init_error(decision, version))
        if decision.prepared:
            # Abort the open transaction first. The client retries, and gets the next epoch then.
            reply = init_error(ErrorCode.CONCURRENT_TRANSACTIONS, version)
            return self._end(decision, now_ms).then(_reply(token, reply))
        producer_id, producer_epoch = decision.holder
        response = InitProducerIdResponse(producer_id=producer_id, producer_epoch=producer_epoch)
        if decision.kept:
            response.ongoing_txn_producer_id = decision.producer_id
            response.ongoing_txn_producer_epoch = decision.producer_epoch
        return Effects(records=[self._record(decision)], replies=[Reply(token, response)])

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        client_version: int,
        token: Any,
        now_ms: int,
    ) -> Effects:
        """Add partitions to the transaction; the first one starts it. Reply with one ErrorCode for all of them."""
        transaction = self.transactions.get(transactional_id)
        if not transactional_id:
            return _reply(token, ErrorCode.INVALID_REQUEST)
        if transaction is None:
            return _reply(token, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        most_timeout_ms = NO_TIMEOUT_MS if self.config.two_phase_commit else self.config.max_timeout_ms
        decision = decisions.add_partitions(
            transaction, producer_id, producer_epoch, frozenset(partitions), client_version, most_timeout_ms, now_ms
        )
        if isinstance(decision, ErrorCode):
            return _reply(token, decision)
        return Effects(records=[self._record(decision)], replies=[Reply(token, ErrorCode.NONE)])

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return NONE for each partition of the open transaction, and TRANSACTION_ABORTABLE for the others."""
        transaction = self.transactions.get(transactional_id)
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        if transaction is None:
            return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return decisions.verify_partitions(transaction, producer_id, producer_epoch, partitions)

    def end_txn(self, request: EndTxnRequest, version: int, token: Any, now_ms: int) -> Effects:
        """Commit or abort. Reply with EndTxnResponse, since version 5 with the epoch of the next transaction."""
        transaction = self.transactions.get(request.transactional_id)
        if not request.transactional_id:
            return _reply(token, end_error(ErrorCode.INVALID_REQUEST, version))
        if transaction is None:
            return _reply(token, end_error(ErrorCode.INVALID_PRODUCER_ID_MAPPING, version))
        producer = request.producer_id, request.producer_epoch
        epoch_bump = version >= 5
        try:
            decision = (
                decisions.end_transaction_2(transaction, *producer, request.committed, self._producer_ids.take, now_ms)
                if epoch_bump
                else decisions.end_transaction_1(transaction, *producer, request.committed, now_ms)
            )
        except ProtocolError as error:
            decision = error.code
        if isinstance(decision, TransactionMetadata):
            response = _ended(decision.complete(now_ms)) if epoch_bump else EndTxnResponse()
            return self._end(decision, now_ms).then(_reply(token, response))
        if decision is ErrorCode.NONE and epoch_bump:
            return _reply(token, _ended(transaction))
        return _reply(token, end_error(decision, version))

    def _decide_init(self, request: InitProducerIdRequest, now_ms: int) -> decisions.Decision:
        transactional_id = request.transactional_id
        expected = expected_producer(request)
        if isinstance(expected, ErrorCode):
            return expected
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if request.enable2_pc and not self.config.two_phase_commit:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keep_prepared_txn and self.config.transaction_version < 2:
            return ErrorCode.UNSUPPORTED_VERSION  # before version 2, no response to EndTxn has the next epoch
        if not request.enable2_pc and not 0 < request.transaction_timeout_ms <= self.config.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        timeout_ms = NO_TIMEOUT_MS if request.enable2_pc else request.transaction_timeout_ms
        transaction = self.transactions.get(transactional_id)
        try:
            if transaction is None:
                return _created(transactional_id, self._producer_ids.take(), timeout_ms, now_ms)
            named = expected is not None  # a session that names no producer begins also if there is nothing to keep
            if request.keep_prepared_txn and (named or transaction.state is TransactionState.ONGOING):
                return decisions.keep(transaction, expected, timeout_ms, self._producer_ids.take, now_ms)
            decision = decisions.init_producer_id(
                transaction,
                expected,
                self._last_epoch(transaction),
                timeout_ms,
                self._producer_ids.take,
                self.config.transaction_version,
                now_ms,
            )
        except ProtocolError as error:
            return error.code
        if isinstance(decision, TransactionMetadata) and not decision.prepared:
            self._remember_continued(transaction, decision, expected)
        return decision

    def _last_epoch(self, transaction: TransactionMetadata) -> int:
        continued = self._continued.get(transaction.transactional_id)
        if continued is not None and continued[:2] == (transaction.producer_id, transaction.producer_epoch):
            return continued.last_epoch
        return decisions.epoch_before_completion(transaction)

    def _remember_continued(
        self, old: TransactionMetadata, new: TransactionMetadata, expected: tuple[int, int] | None
    ) -> None:
        if expected is None:
            self._continued.pop(new.transactional_id, None)
        elif (old.producer_id, old.producer_epoch) != (new.producer_id, new.producer_epoch):
            self._continued[new.transactional_id] = _Continued(new.producer_id, new.producer_epoch, old.producer_epoch)

    # -- completion ---------------------------------------------------------------------------------------------------

    def _end(self, prepared: TransactionMetadata, now_ms: int) -> Effects:
        """Write the decision, then the markers. Without partitions, complete the transaction at once."""
        effects = Effects(records=[self._record(prepared)])
        if prepared.partitions:
            effects.markers.append(self._markers(prepared))
        else:
            effects.records.append(self._record(prepared.complete(now_ms)))
        return effects

    def _markers(self, transaction: TransactionMetadata) -> Markers:
        return Markers(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=self._coordinator_epoch,
            commit=transaction.commits,
            transaction_version=transaction.client_version,
            partitions=tuple(
                (topic, index) for topic, indexes in transaction.indexes_by_topic().items() for index in indexes
            ),
        )

    def markers_written(
        self,
        markers: Markers,
        results: Mapping[TopicPartition, ErrorCode],
        now_ms: int,
        *,
        deleted: Collection[TopicPartition] = (),
    ) -> Effects:
        """Process the results of some markers. The last marker completes the transaction.

        `deleted` partitions, whose topics no longer exist, need no marker. Each error leaves the transaction prepared,
        whether it is retriable or the marker was fenced. Results of markers that are not current change nothing.
        """
        transaction = self.transactions.get(markers.transactional_id)
        unwritten = self._unwritten.get(markers.transactional_id)
        if transaction is None or unwritten is None or not self._is_current(markers, transaction):
            return Effects()
        unwritten.difference_update(deleted)
        unwritten.difference_update(
            partition for partition, error in results.items() if marker_result(error) is MarkerResult.WRITTEN
        )
        return Effects() if unwritten else self._complete(transaction, now_ms)

    def needs(self, markers: Markers) -> bool:
        """Return whether these markers still have to be written."""
        transaction = self.transactions.get(markers.transactional_id)
        return transaction is not None and self._is_current(markers, transaction)

    def _is_current(self, markers: Markers, transaction: TransactionMetadata) -> bool:
        return (
            transaction.prepared
            and markers.coordinator_epoch == self._coordinator_epoch
            and (markers.producer_id, markers.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)
        )

    def _complete(self, transaction: TransactionMetadata, now_ms: int) -> Effects:
        self._retries[transaction.transactional_id] = now_ms + RETRY_MS
        return Effects(records=[self._record(transaction.complete(now_ms))])

    # -- records ------------------------------------------------------------------------------------------------------

    def _record(self, transaction: TransactionMetadata) -> CoordinatorRecord:
        return transaction_record(transaction, self.config.transaction_version)

    def replay(self, record: CoordinatorRecord, *, producer_id: int | None = None, producer_epoch: int = -1) -> None:
        """Make a record the state. Raises IllegalTransitionError for a record that no request produces.

        The producer is ignored: only the coordinator writes here, and never in a transaction.
        """
        key: Any = record.key
        transactional_id: str = key.transactional_id
        self._retries.pop(transactional_id, None)
        if record.value is None:
            self.transactions.pop(transactional_id, None)
            self._unwritten.pop(transactional_id, None)
            self._continued.pop(transactional_id, None)
            self._deadlines.forget(transactional_id)
            return
        value: Any = record.value
        new = transaction_of(key, value)
        old = self.transactions.get(transactional_id)
        if self._live and old is not None:
            check_transition(old, new)
        if self._live and logger.isEnabledFor(logging.DEBUG):
            _log_transition(old, new)
        self.transactions[transactional_id] = new
        if new.prepared:
            self._unwritten[transactional_id] = set(new.partitions)
        else:
            self._unwritten.pop(transactional_id, None)
        self._schedule(new)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """Ignore a marker: only an operator can have written one here."""

    def loaded(self, now_ms: int) -> Effects:
        """Finish the prepared transactions, after all records were replayed."""
        self._live = True
        effects = Effects()
        for _, transaction in sorted(self.transactions.items()):
            if not transaction.prepared:
                continue
            if transaction.partitions:
                effects.markers.append(self._markers(transaction))
            else:
                effects = effects.then(self._complete(transaction, now_ms))
        return effects

    # -- time ---------------------------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """Return when `tick` is due, in ms of the wall clock."""
        due_ms = self._deadlines.next()
        return min([*self._retries.values(), *([] if due_ms is None else [due_ms])], default=None)

    def tick(self, now_ms: int) -> Effects:
        """Abort transactions after their timeout, expire idle ids, and retry records that were not written."""
        effects = Effects()
        again = [name for name, due_ms in self._retries.items() if due_ms <= now_ms][:TICK_LIMIT]
        for transactional_id in again or self._deadlines.pop_due(now_ms, TICK_LIMIT):
            transaction = self.transactions.get(transactional_id)
            if transaction is None:
                continue
            effects = effects.then(self._on_time(transaction, now_ms))
        return effects

    def _on_time(self, transaction: TransactionMetadata, now_ms: int) -> Effects:
        due_ms = self._due(transaction)
        completes = transaction.prepared and not self._unwritten[transaction.transactional_id]
        if not completes and (due_ms is None or due_ms > now_ms):
            self._retries.pop(transaction.transactional_id, None)
            self._schedule(transaction)
            return Effects()
        if completes:
            return self._complete(transaction, now_ms)
        self._retries[transaction.transactional_id] = now_ms + RETRY_MS
        if transaction.state is not TransactionState.ONGOING:
            return Effects(records=[tombstone(transaction.transactional_id)])
        try:
            prepared = decisions.fencing_abort(
                transaction, self._producer_ids.take, self.config.transaction_version, now_ms
            )
        except ProtocolError:
            return Effects()  # no producer id is available; the retry gets one
        return self._end(prepared, now_ms)

    def _schedule(self, transaction: TransactionMetadata) -> None:
        due_ms = self._due(transaction)
        if due_ms is not None:
            self._deadlines.at_latest(transaction.transactional_id, due_ms)

    def _due(self, transaction: TransactionMetadata) -> int | None:
        expiry_ms = transaction.expiry_due_ms(self.config.id_expiration_ms)
        return transaction.timeout_due_ms if expiry_ms is None else expiry_ms


def _log_transition(old: TransactionMetadata | None, new: TransactionMetadata) -> None:
    logger.debug(
        "transactional id %r: %s, was %s; producer id %d, epoch %d; partitions: %s",
        *(new.transactional_id, new.state.text, "unknown" if old is None else old.state.text),
        *(new.producer_id, new.producer_epoch),
        first_named((f"{topic}-{index}" for topic, index in sorted(new.partitions)), len(new.partitions)) or "none",
    )


def init_error(error: ErrorCode, version: int) -> InitProducerIdResponse:
    """Return an InitProducerId response. Clients before version 4 do not know PRODUCER_FENCED."""
    if version < 4 and error is ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


def end_error(error: ErrorCode, version: int) -> EndTxnResponse:
    """Return an EndTxn response. Clients before version 2 do not know PRODUCER_FENCED."""
    if version < 2 and error is ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=error)


def _ended(completed: TransactionMetadata) -> EndTxnResponse:
    return EndTxnResponse(producer_id=completed.producer_id, producer_epoch=completed.producer_epoch)


def _created(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_ms=-1,
        last_update_ms=now_ms,
        previous_producer_id=producer_id,
    )


def expected_producer(request: InitProducerIdRequest) -> tuple[int, int] | ErrorCode | None:
    """Return the (producer id, epoch) that continues, None for a new session, INVALID_REQUEST if one is missing."""
    absent = (request.producer_id == NO_PRODUCER_ID, request.producer_epoch == NO_EPOCH)
    if all(absent):
        return None
    return ErrorCode.INVALID_REQUEST if any(absent) else (request.producer_id, request.producer_epoch)


def _reply(token: Any, response: Any) -> Effects:
    return Effects(replies=[Reply(token, response)])
