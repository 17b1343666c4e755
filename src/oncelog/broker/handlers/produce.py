"""Produce: batches to the end of partitions, with idempotence and transactions checked on the way.

A request without transactional batches is answered without a task or a wait: one look-up, one append a partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from oncelog.broker.requests.produce_checks import (
    ALL,
    WITH_IMPLICIT_ADD,
    Resolved,
    Target,
    Unverified,
    check,
    transaction_version,
    translate,
)
from oncelog.broker.requests.refused_items import RefusedItems
from oncelog.broker.turns import ITEMS_A_TURN, NEW_LOG_ITEMS, in_turns
from oncelog.cluster.metadata import INTERNAL_TOPICS
from oncelog.cluster.replica import Replica
from oncelog.log.config import LogConfig
from oncelog.log.producer_state import Origin
from oncelog.log.steps import at_once
from oncelog.log.validate import InvalidRecordsError, ValidBatches, may_take_long, validate
from oncelog.net.server import BadFrameError, Holds
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError, Refusal
from oncelog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from oncelog.protocol.records import ATTRIBUTES_LOW, CODEC_MASK
from oncelog.protocol.schema import NO_UUID

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

OPENED_A_TURN = 20
"""Partitions whose logs are found before others have their turn. Each log may have to be opened."""
_ADMIN_CLIENT_ID = "__admin_client"
_WITH_ZSTD = 7

# Errors of an append with which Kafka does not tell where the log starts (`ReplicaManager.appendRecordsToLeader`).
_NOT_OF_THE_LOG = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE}
    | {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
)

Answer = ProduceResponse | Awaitable[ProduceResponse | None] | Holds | None
_Late = tuple[Target, Replica, PartitionProduceResponse]
"""A partition whose records are appended, but not committed yet."""
_Slow = tuple[Target, memoryview, LogConfig]
"""A partition whose records take long to validate, the records, and the settings of its log."""


def handle(broker: Broker, request: ProduceRequest, ctx: RequestContext) -> Answer:
    """Answer each partition with its own error. With acks=0, return no answer, and raise BadFrameError for any error.

    `Holds` is an answer that waits before the records are appended, for the coordinator or for their validation.

    A few errors apply to the whole request: transactional records without a transactional id, records of several
    producers, and an invalid `acks` (`KafkaApis.handleProduceRequest`, `ReplicaManager.handleProduceAppend`).
    """
    if sum(len(topic_data.partition_data) or 1 for topic_data in request.topic_data) > ITEMS_A_TURN:
        return Holds(_in_turns(broker, request, ctx))
    resolved = at_once(_resolve(broker, request, ctx))
    return _proceed(broker, request, ctx, resolved, at_once(check(broker, request, ctx, resolved)))


async def _in_turns(broker: Broker, request: ProduceRequest, ctx: RequestContext) -> ProduceResponse | None:
    """Answer a request for many partitions, and let the loop serve others in between."""
    resolved = await in_turns(_resolve(broker, request, ctx), OPENED_A_TURN)
    unverified = await in_turns(check(broker, request, ctx, resolved))
    return await _awaited(_proceed(broker, request, ctx, resolved, unverified))


def _proceed(
    broker: Broker, request: ProduceRequest, ctx: RequestContext, resolved: Resolved, unverified: Unverified | None
) -> Answer:
    """Append, after the coordinator has verified the transaction of partitions that do not know it."""
    if unverified:
        return Holds(_verify_then_append(broker, request, ctx, resolved, unverified))
    return _append(broker, request, ctx, resolved)


def _resolve(broker: Broker, request: ProduceRequest, ctx: RequestContext) -> Generator[None, None, Resolved]:
    """Find the logs of all partitions, with a pause after each, and after each topic without partitions."""
    resolved = []
    for topic_data in request.topic_data:
        name = topic_data.name
        refusal = None
        if topic_data.topic_id != NO_UUID:
            info = broker.metadata.topic_by_id(topic_data.topic_id)
            name = info.name if info else ""
            if info is None:
                refusal = Refusal(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_data.topic_id}")
        if name in INTERNAL_TOPICS and ctx.client_id != _ADMIN_CLIENT_ID:
            refusal = Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by its coordinators only")
        targets = []
        for data in topic_data.partition_data:
            target = Target(name, data)
            target.refusal = refusal
            if refusal is None:
                try:
                    target.replica = broker.partitions.find(name, data.index)
                except ProtocolError as error:
                    target.refusal = Refusal.of(error)
            targets.append(target)
            yield
        if not targets:
            yield
        resolved.append((topic_data, targets))
    return resolved


async def _verify_then_append(
    broker: Broker,
    request: ProduceRequest,
    ctx: RequestContext,
    resolved: Resolved,
    unverified: Unverified,
) -> ProduceResponse | None:
    producer_id, epoch, targets = unverified
    assert request.transactional_id is not None
    implicit = ctx.api_version >= WITH_IMPLICIT_ADD
    if not implicit and not broker.config.transaction_partition_verification_enable:
        for target in targets:
            target.verified = True
        return await _awaited(_append(broker, request, ctx, resolved))
    names = [(target.topic, target.data.index) for target in targets]
    results = await broker.transactions.confirm(request.transactional_id, producer_id, epoch, names, implicit=implicit)
    for target in targets:
        code = results[target.topic, target.data.index]
        target.verified = code == ErrorCode.NONE
        if not target.verified:
            target.refusal = translate(code, ctx.api_version)
    return await _awaited(_append(broker, request, ctx, resolved))


async def _awaited(answer: Answer) -> ProduceResponse | None:
    if isinstance(answer, Holds):
        response: ProduceResponse | None = await answer.answer
        return response
    return await answer if isinstance(answer, Awaitable) else answer


def _append(broker: Broker, request: ProduceRequest, ctx: RequestContext, resolved: Resolved) -> Answer:
    """Append to all partitions. Do so at once, unless there are many or the records of one take long to validate."""
    if sum(len(targets) or 1 for _, targets in resolved) > ITEMS_A_TURN:
        return Holds(_append_to_many(broker, request, ctx, resolved))
    slow, items = at_once(_needs(broker, resolved))
    if slow or items > ITEMS_A_TURN:
        return Holds(_append_slowly(broker, request, ctx, resolved, slow))
    response, late = at_once(_append_all(broker, request, ctx, resolved))
    if late:
        return _when_committed(broker, response, late, request.timeout_ms)
    return response if request.acks else None


def _needs(broker: Broker, resolved: Resolved) -> Generator[None, None, tuple[list[_Slow], int]]:
    """Return what takes long to validate, and how many items of turns all appends count for. Pause."""
    now_ms = broker.now_ms()
    slow = []
    items = 0
    for _, targets in resolved:
        for target in targets:
            items += _items(target)
            replica, records = target.replica, target.data.records
            if not records or replica is None or target.refusal is not None:
                continue
            if may_take_long(memoryview(records), replica.log.config, now_ms):
                slow.append((target, memoryview(records), replica.log.config))
            yield
    return slow, items


def _items(target: Target) -> int:
    """Return how many items of a turn the append to a partition counts for."""
    creates = target.replica is not None and target.refusal is None and not target.replica.log.has_files
    return NEW_LOG_ITEMS if creates else 1


async def _append_to_many(
    broker: Broker, request: ProduceRequest, ctx: RequestContext, resolved: Resolved
) -> ProduceResponse | None:
    slow, _ = await in_turns(_needs(broker, resolved))
    return await _append_slowly(broker, request, ctx, resolved, slow)


async def _append_slowly(
    broker: Broker,
    request: ProduceRequest,
    ctx: RequestContext,
    resolved: Resolved,
    slow: list[_Slow],
) -> ProduceResponse | None:
    """Let worker threads validate the records of some partitions and create the files of many. Then append to all."""
    while slow:
        await _validate(broker, *slow.pop())
    accepted = [target.replica for _, targets in resolved for target in targets if target.refusal is None]
    await broker.new_logs.create(replica for replica in accepted if replica is not None)
    response, late = await in_turns(_append_all(broker, request, ctx, resolved))
    if late:
        return await _when_committed(broker, response, late, request.timeout_ms)
    return response if request.acks else None


async def _validate(broker: Broker, target: Target, records: memoryview, config: LogConfig) -> None:
    try:
        result = await broker.compute(_validated, records, config, broker.now_ms())
    except ProtocolError as error:
        target.refusal = Refusal.of(error)
        return
    if isinstance(result, ValidBatches):
        target.validated = result
        return
    target.refusal, target.record_errors = result
    if target.replica is not None and target.refusal.code not in _NOT_OF_THE_LOG:
        target.log_start_offset = target.replica.log.log_start_offset


def _validated(
    records: memoryview, config: LogConfig, now_ms: int
) -> ValidBatches | tuple[Refusal, list[BatchIndexAndErrorMessage]]:
    """Validate a client's batch in a worker thread. Return an error without its traceback, which holds the batch."""
    try:
        return validate(memoryview(bytearray(records)) if records.readonly else records, Origin.CLIENT, config, now_ms)
    except ProtocolError as error:
        return Refusal.of(error), _record_errors(error)


def _record_errors(error: ProtocolError) -> list[BatchIndexAndErrorMessage]:
    records = error.records if isinstance(error, InvalidRecordsError) else ()
    return [BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason) for index, reason in records]


def _append_all(
    broker: Broker, request: ProduceRequest, ctx: RequestContext, resolved: Resolved
) -> Generator[None, None, tuple[ProduceResponse, list[_Late]]]:
    """Append to each partition, with a pause for each item that it counts for."""
    now_ms = broker.now_ms()
    level = transaction_version(ctx.api_version)
    responses = []
    refused = RefusedItems()
    message: str | None = None
    late: list[_Late] = []
    for topic_data, targets in resolved:
        partitions = []
        for target in targets:
            if ctx.api_version < _WITH_ZSTD:
                _refuse_zstd(target)
            items = _items(target)
            partition = _append_one(target, now_ms, level, request.acks == ALL)
            if partition.error_code:
                message = partition.error_message
                refused.add("%s-%d: %s", target.topic, target.data.index, message)
            elif target.replica is not None and target.last_offset >= target.replica.log.high_watermark:
                late.append((target, target.replica, partition))
            partitions.append(partition)
            for _ in range(items):
                yield
        if not targets:
            yield
        responses.append(
            TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=partitions)
        )
    refused.log(broker.log, "rejected Produce")
    if request.acks == 0:
        if message is not None:
            # The client reads no answer. The closed connection makes it look up the leader again.
            raise BadFrameError(f"produce with acks=0: {message}")
        late = []
    if late:
        _release_records(resolved)
    return ProduceResponse(responses=responses), late


def _release_records(resolved: Resolved) -> None:
    """Release the request's records. They are in the log, and the wait for their sync may be long."""
    for _, targets in resolved:
        for target in targets:
            target.data.records = target.validated = None


async def _when_committed(
    broker: Broker, response: ProduceResponse, late: list[_Late], timeout_ms: int
) -> ProduceResponse:
    """Answer after the required syncs (`flush.messages`), or when the request's timeout expires.

    If a partition is not synced by then, its error is REQUEST_TIMED_OUT, although its records were appended (Kafka's
    `DelayedProduce`).
    """
    waits = [broker.loop.create_future() for _ in late]
    for done, (target, replica, _) in zip(waits, late, strict=True):
        replica.when_committed(target.last_offset, partial(_resolve_once, done))
    timer = broker.loop.call_later(max(timeout_ms, 0) / 1000, _resolve_once, *waits)
    try:
        for done in waits:
            await done
    finally:
        timer.cancel()
    refused = RefusedItems()
    for target, replica, partition in late:
        code = _unacknowledged(replica, target.last_offset)
        if code is not ErrorCode.NONE:
            partition.error_code = code
            partition.error_message = f"{target.topic}-{partition.index}: {code.text}"
            if code is not ErrorCode.REQUEST_TIMED_OUT:
                partition.base_offset = -1
            refused.add("%s", partition.error_message)
    refused.log(broker.log, "did not acknowledge Produce")
    return response


def _unacknowledged(replica: Replica, offset: int) -> ErrorCode:
    """Return why an appended offset is not committed, or NONE."""
    if replica.log.high_watermark > offset:
        return ErrorCode.NONE
    if replica.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if replica.log.closed else ErrorCode.REQUEST_TIMED_OUT


def _resolve_once(*waits: asyncio.Future[None]) -> None:
    for done in waits:
        if not done.done():
            done.set_result(None)


def _refuse_zstd(target: Target) -> None:
    """Reject zstd in versions before KIP-110 (`ProduceRequest.validateRecords`)."""
    records = target.data.records
    zstd = records and len(records) > ATTRIBUTES_LOW and records[ATTRIBUTES_LOW] & CODEC_MASK == Codec.ZSTD
    if zstd and target.refusal is None:
        message = f"zstd compression needs Produce version {_WITH_ZSTD} or later"
        target.refusal = Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)


def _append_one(target: Target, now_ms: int, transaction_version: int, all_replicas: bool) -> PartitionProduceResponse:
    data = target.data
    if target.refusal is not None:
        return _refused(target, target.refusal, target.log_start_offset, target.record_errors)
    replica = target.replica
    assert replica is not None
    if not data.records:
        refusal = Refusal(ErrorCode.INVALID_RECORD, "the partition's records are missing")
        return _refused(target, refusal, replica.log.log_start_offset)
    try:
        result = replica.append(
            memoryview(data.records),
            now_ms=now_ms,
            all_replicas=all_replicas,
            transaction_version=transaction_version,
            verified=target.verified,
            guard=target.guard,
            validated=target.validated,
        )
    except ProtocolError as error:
        log_start = -1 if error.code in _NOT_OF_THE_LOG else replica.log.log_start_offset
        return _refused(target, Refusal.of(error), log_start, _record_errors(error))
    target.last_offset = result.last_offset
    return PartitionProduceResponse(
        index=data.index,
        base_offset=result.first_offset,
        log_append_time_ms=result.append_time_ms,
        log_start_offset=result.log_start_offset,
    )


def _refused(
    target: Target,
    refusal: Refusal,
    log_start_offset: int = -1,
    record_errors: Sequence[BatchIndexAndErrorMessage] = (),
) -> PartitionProduceResponse:
    """Answer a partition with an error. Add the log start offset if the log rejected the records, and their indexes."""
    target.refusal = refusal
    return PartitionProduceResponse(
        index=target.data.index,
        error_code=refusal.code,
        base_offset=-1,
        log_start_offset=log_start_offset,
        record_errors=list(record_errors),
        error_message=refusal.message,
    )
