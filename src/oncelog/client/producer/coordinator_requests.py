"""The requests of a producer to its coordinators, and the meaning of the responses. No I/O.

`next_request(manager, drained)` returns the next request, if there is one. `handle(manager, asked, response)` processes
its response. Only one request is in flight at a time. The table `VERDICTS` has the meaning of each error code for each
request.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from oncelog import errors
from oncelog.client.producer.transaction_manager import Offsets, TransactionManager
from oncelog.client.producer.transaction_states import OPEN, ManagerState
from oncelog.client.response_errors import error_codes
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS, InitProducerIdRequest, InitProducerIdResponse
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from oncelog.protocol.schema import Message
from oncelog.protocol.topics import TopicPartition

_C = ErrorCode


class CoordinatorRequest(NamedTuple):
    """A request for a coordinator (`kind` "transaction" or "group") or "any" broker, from `min_version` to
    `max_version`.
    """

    kind: str
    key: str
    request: Message
    max_version: int
    min_version: int = 0


class Verdict(Enum):
    """What an error means for the producer."""

    RETRY = "retry the request after a back-off"
    ABORT = "the transaction must be aborted"
    RENEW = "the transaction must be aborted, and the epoch increased"
    FENCED = "a newer producer or a timeout has ended the transaction: ask the coordinator which"
    FATAL = "the producer must be closed"


LOST_ID = {_C.UNKNOWN_PRODUCER_ID: Verdict.RENEW, _C.INVALID_PRODUCER_ID_MAPPING: Verdict.RENEW}
FENCED = {_C.INVALID_PRODUCER_EPOCH: Verdict.FENCED, _C.PRODUCER_FENCED: Verdict.FENCED}
ABORTABLE = {_C.TRANSACTION_ABORTABLE: Verdict.ABORT}

VERDICTS: dict[type[Message], dict[ErrorCode, Verdict]] = {
    InitProducerIdRequest: {
        **FENCED,
        **ABORTABLE,
        _C.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.ABORT,
        _C.CLUSTER_AUTHORIZATION_FAILED: Verdict.ABORT,
    },
    AddPartitionsToTxnRequest: {
        **FENCED,
        **ABORTABLE,
        **LOST_ID,
        _C.INVALID_TXN_STATE: Verdict.FATAL,
        _C.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
        _C.UNSUPPORTED_VERSION: Verdict.FATAL,
        _C.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
    },
    AddOffsetsToTxnRequest: {
        **FENCED,
        **ABORTABLE,
        **LOST_ID,
        _C.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT,
    },
    TxnOffsetCommitRequest: {
        **FENCED,
        **ABORTABLE,
        **LOST_ID,
        _C.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT,
        _C.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORT,
        _C.FENCED_INSTANCE_ID: Verdict.ABORT,
        _C.UNKNOWN_MEMBER_ID: Verdict.ABORT,
        _C.ILLEGAL_GENERATION: Verdict.ABORT,
        _C.STALE_MEMBER_EPOCH: Verdict.ABORT,
        _C.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
        _C.OFFSET_METADATA_TOO_LARGE: Verdict.ABORT,
    },
    EndTxnRequest: {
        **FENCED,
        **ABORTABLE,
        _C.UNKNOWN_PRODUCER_ID: Verdict.RENEW,
    },
}
"""Other retriable codes are RETRY. All others are FATAL, except for the requests in `OTHERWISE`."""

NEEDS_TWO_PHASE = (
    "Two-phase commit needs transaction.two.phase.commit.enable = true in the brokers, and the permission "
    "TWO_PHASE_COMMIT on the transactional id"
)

OTHERWISE: dict[type[Message], Verdict] = {AddPartitionsToTxnRequest: Verdict.ABORT}
"""The meaning of an unexpected error of a partition: the transaction cannot be committed without that partition."""

JOINING = (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest)
"""Requests by which partitions or groups join the transaction."""

RECOVERABLE_ABORT = frozenset(
    {
        _C.INVALID_PRODUCER_EPOCH,
        _C.PRODUCER_FENCED,
        _C.INVALID_TXN_STATE,
        _C.INVALID_PRODUCER_ID_MAPPING,
        _C.UNKNOWN_PRODUCER_ID,
        _C.TRANSACTION_ABORTABLE,
    }
)
"""Responses to an abort that mean that the coordinator has already ended the transaction, usually by its timeout.
InitProducerId with the old epoch then decides whether this producer may continue (KIP-360): it rejects a producer that
another one has fenced.
"""


def next_request(manager: TransactionManager, *, drained: bool) -> CoordinatorRequest | None:
    """Return the next request, or None. A transaction ends only when `drained`: every batch has its outcome."""
    if manager.state is ManagerState.FATAL_ERROR:
        return None
    if not manager.transactional:
        if manager.producer_id >= 0:
            return None
        return CoordinatorRequest(
            "any", "", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TIMEOUT_MS), 5
        )
    if manager.state is ManagerState.INITIALIZING or (manager.state in OPEN and manager.doubted is not None):
        return _init_producer_id(manager)
    if manager.state in OPEN:
        asked = _joining(manager)
        if asked is not None:
            return asked
    if manager.state in (ManagerState.COMMITTING, ManagerState.ABORTING) and drained:
        return _ending(manager)
    return None


def _transaction(manager: TransactionManager, request: Message, max_version: int) -> CoordinatorRequest:
    return CoordinatorRequest("transaction", manager.transactional_id or "", request, max_version)


def _init_producer_id(manager: TransactionManager) -> CoordinatorRequest:
    request = InitProducerIdRequest(
        transactional_id=manager.transactional_id,
        transaction_timeout_ms=manager.timeout_ms,
        producer_id=manager.producer_id,
        producer_epoch=manager.producer_epoch,
        enable2_pc=manager.two_phase,
        keep_prepared_txn=manager.keep and manager.producer_id < 0,
    )
    if request.enable2_pc or request.keep_prepared_txn:
        return _transaction(manager, request, 6)._replace(min_version=6)
    return _transaction(manager, request, 5)


def _joining(manager: TransactionManager) -> CoordinatorRequest | None:
    """Return the request that adds partitions (TV1) or groups, or that commits the groups' offsets."""
    if manager.new_partitions:
        manager.adding |= manager.new_partitions
        manager.new_partitions = set()
    if manager.adding:
        topics = [
            AddPartitionsToTxnTopic(name=topic, partitions=[partition for _, partition in partitions])
            for topic, partitions in groupby(sorted(manager.adding), key=lambda tp: tp[0])
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=manager.transactional_id or "",
            v3_and_below_producer_id=manager.producer_id,
            v3_and_below_producer_epoch=manager.producer_epoch,
            v3_and_below_topics=topics,
        )
        return _transaction(manager, request, 3)
    if not manager.offsets:
        return None
    first = manager.offsets[0]
    if not manager.implicit and not manager.groups[first.group.group_id]:
        add = AddOffsetsToTxnRequest(
            transactional_id=manager.transactional_id or "",
            producer_id=manager.producer_id,
            producer_epoch=manager.producer_epoch,
            group_id=first.group.group_id,
        )
        manager.started = True
        return _transaction(manager, add, 3)
    manager.started = True
    return CoordinatorRequest(
        "group", first.group.group_id, _offset_commit(manager, first), 5 if manager.implicit else 4
    )


def _offset_commit(manager: TransactionManager, offsets: Offsets) -> TxnOffsetCommitRequest:
    topics = [
        TxnOffsetCommitRequestTopic(
            name=topic,
            partitions=[
                TxnOffsetCommitRequestPartition(
                    partition_index=tp[1],
                    committed_offset=offsets.offsets[tp][0],
                    committed_leader_epoch=offsets.offsets[tp][1],
                    committed_metadata=offsets.offsets[tp][2],
                )
                for tp in partitions
            ],
        )
        for topic, partitions in groupby(sorted(offsets.offsets), key=lambda tp: tp[0])
    ]
    return TxnOffsetCommitRequest(
        transactional_id=manager.transactional_id or "",
        group_id=offsets.group.group_id,
        producer_id=manager.producer_id,
        producer_epoch=manager.producer_epoch,
        generation_id=offsets.group.generation_id,
        member_id=offsets.group.member_id,
        group_instance_id=offsets.group.group_instance_id,
        topics=topics,
    )


def _ending(manager: TransactionManager) -> CoordinatorRequest | None:
    """Return EndTxn. A transaction that the coordinator does not know ends without it (KAFKA-18401)."""
    if manager.skip_end or not manager.started:
        manager.ended()
        return next_request(manager, drained=True)
    request = EndTxnRequest(
        transactional_id=manager.transactional_id or "",
        producer_id=manager.producer_id,
        producer_epoch=manager.producer_epoch,
        committed=manager.state is ManagerState.COMMITTING,
    )
    return _transaction(manager, request, 5 if manager.implicit else 4)


def sent(manager: TransactionManager, asked: CoordinatorRequest) -> None:
    """Record that the request is sent: from now on, the coordinator may know the transaction."""
    if isinstance(asked.request, AddPartitionsToTxnRequest):
        manager.started = True


def not_found(manager: TransactionManager, error: errors.KafkaError) -> None:
    """Handle a permanent failure to find the coordinator. Without a group's, the transaction can still be aborted."""
    if error.code in (_C.GROUP_AUTHORIZATION_FAILED, _C.TRANSACTION_ABORTABLE) and manager.state in OPEN:
        manager.offsets.clear()
        manager.abortable(error)
    else:
        manager.fatal(error)


def handle(manager: TransactionManager, asked: CoordinatorRequest, response: Message) -> ErrorCode | None:
    """Process a response. Return the error code if the request has to be sent again, otherwise None."""
    code, text = next(iter(sorted(error_codes(response), key=lambda found: found[0].retriable)), (_C.NONE, None))
    request = asked.request
    if code is _C.NONE and _is_complete(request, response):
        _succeeded(manager, asked, response)
        return None
    if isinstance(request, EndTxnRequest):
        if not request.committed and code is _C.INVALID_TXN_STATE and manager.was_prepared:
            manager.fatal(
                errors.TransactionCommittedError(
                    f"abort of transactional id {manager.transactional_id!r}: another process has already committed "
                    "the prepared transaction; close this producer"
                )
            )
            return None
        if not request.committed and code in RECOVERABLE_ABORT:
            manager.bump_required = True
            manager.ended()
            return None
        if request.committed and code is _C.INVALID_TXN_STATE:
            # The coordinator answers a repeated commit with success, so this commit never took place: the coordinator
            # has aborted the transaction (its timeout, or a call of the process that resumed it).
            manager.bump_required = True
            about = f"commit: the coordinator has already aborted the transaction, {manager.why_ended}"
            manager.abortable(errors.error_for(code, about))
            return None
    otherwise = Verdict.RETRY if code.retriable else OTHERWISE.get(type(request), Verdict.FATAL)
    verdict = VERDICTS[type(request)].get(code, otherwise)
    if manager.state is ManagerState.ABORTING and isinstance(request, JOINING):
        manager.adding.clear()  # the abort in progress does not need them
        manager.offsets.clear()
        return None
    if code is _C.NONE:
        return _C.UNKNOWN_SERVER_ERROR
    if verdict is Verdict.RETRY:
        return code
    name = type(request).__name__.removesuffix("Request")
    about = f"{name} of {manager.transactional_id!r}" if manager.transactional else name
    error = errors.error_for(code, f"{about}: {text or _described(request, code)}")
    if verdict is Verdict.FENCED:
        if isinstance(request, InitProducerIdRequest):
            manager.fatal(errors.FencedError(error.message, code))
        else:
            manager.doubted = error
    elif verdict is Verdict.FATAL:
        manager.fatal(error)
    else:
        if verdict is Verdict.RENEW:
            manager.bump_required = True
        manager.offsets.clear()
        manager.adding.clear()
        manager.abortable(error)
        if manager.state is not ManagerState.ABORTABLE_ERROR:
            manager.fatal(error)
    return None


def _described(request: Message, code: ErrorCode) -> str:
    two_phase = isinstance(request, InitProducerIdRequest) and request.enable2_pc
    needs_more = two_phase and code is _C.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return f"{code.text.rstrip('.')}. {NEEDS_TWO_PHASE}" if needs_more else code.text


def _is_complete(request: Message, response: Message) -> bool:
    """Return whether a response contains every partition. A missing partition is not in the transaction."""
    asked: Iterable[TopicPartition] = ()
    answered: set[TopicPartition] = set()
    if isinstance(request, AddPartitionsToTxnRequest) and isinstance(response, AddPartitionsToTxnResponse):
        asked = [(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions]
        for topic in response.results_by_topic_v3_and_below:
            answered |= {(topic.name, item.partition_index) for item in topic.results_by_partition}
    elif isinstance(request, TxnOffsetCommitRequest) and isinstance(response, TxnOffsetCommitResponse):
        asked = [(topic.name, item.partition_index) for topic in request.topics for item in topic.partitions]
        for found in response.topics:
            answered |= {(found.name, item.partition_index) for item in found.partitions}
    return answered.issuperset(asked)


def _succeeded(manager: TransactionManager, asked: CoordinatorRequest, response: Message) -> None:
    if isinstance(response, InitProducerIdResponse):
        if manager.doubted is not None or manager.state is ManagerState.ABORTING:
            manager.timed_out(response.producer_id, response.producer_epoch)
        elif manager.transactional:
            ongoing = response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
            kept = None if response.ongoing_txn_producer_id < 0 else ongoing
            manager.initialized(response.producer_id, response.producer_epoch, kept)
        else:
            manager.sequences.set_producer(response.producer_id, response.producer_epoch)
    elif isinstance(response, EndTxnResponse):
        manager.ended(response.producer_id, response.producer_epoch)
    elif isinstance(asked.request, AddPartitionsToTxnRequest):
        manager.partitions |= manager.adding
        manager.adding.clear()
    elif isinstance(asked.request, AddOffsetsToTxnRequest):
        manager.groups[asked.request.group_id] = True
    elif manager.offsets:
        manager.offsets.pop(0)
