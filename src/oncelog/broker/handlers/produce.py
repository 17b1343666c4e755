"""Produce: append batches to partitions, and check idempotence and transactions.

Most requests without transactional batches are answered without a task or a wait. Each partition takes one look-up and
one append.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.delayed import DelayedCommits
from oncelog.broker.requests.produce_checks import (
    ALL,
    WITH_IMPLICIT_ADD,
    Admitted,
    Target,
    Unverified,
    check,
    is_transactional,
    transaction_version,
    translate,
    unverified,
)
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.new_logs import NewLogs
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import ITEMS_A_TURN, NEW_LOG_ITEMS, Yielder, in_turns
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.leader import Leadership
from oncelog.cluster.replica import Replica
from oncelog.cluster.topics import INTERNAL_TOPICS
from oncelog.log.config import LogConfig
from oncelog.log.producer_state import Origin
from oncelog.log.steps import at_once
from oncelog.log.validate import InvalidRecordsError, ValidBatches, may_take_long, validate
from oncelog.net.repeated_lines import RepeatedLines
from oncelog.net.server import BadFrameError, Deferred
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError, Refusal
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from oncelog.protocol.records import ATTRIBUTES_LOW, CODEC_MASK

OPENED_A_TURN = 20
"""Partitions whose logs are found before other requests have their turn. Each log may have to be opened."""
_WRITE, _TOPIC = AclOperation.WRITE, AclResource.TOPIC
"""Constants, because looking up two enum members for each topic would take longer than the check."""
_ADMIN_CLIENT_ID = "__admin_client"
_WITH_ZSTD = 7
_API_KEY = ApiKey.PRODUCE.to_bytes(2, "big")
"""The first bytes of each Produce."""

# Kafka does not return the log start offset with these errors of an append (`ReplicaManager.appendRecordsToLeader`).
_WITHOUT_LOG_START = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE}
    | {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
)

Answer = ProduceResponse | Deferred | None
_Late = tuple[Target, Replica, Leadership | None, PartitionProduceResponse]
"""A partition whose records are appended, but not committed yet, and the term of the append."""


class ProduceHandler:
    """The handler of Produce."""

    def __init__(
        self,
        cache: MetadataCache,
        partitions: Partitions,
        transactions: TransactionService,
        config: DynamicConfig,
        new_logs: NewLogs,
        runtime: Runtime,
    ) -> None:
        self._cache = cache
        self._partitions = partitions
        self._transactions = transactions
        self._config = config
        self._new_logs = new_logs
        self._workers = runtime.workers
        self._now_ms = runtime.now_ms
        self._lines = RepeatedLines(runtime.logger, "batches")

    def __call__(self, request: ProduceRequest, ctx: RequestContext) -> Answer:
        """Answer each partition with its own error. With acks=0, return no response, and raise BadFrameError on errors.

        The response is deferred, and keeps the frame, if the append may have to wait: for the coordinator, for the
        validation of the records, or because the request is large. It is deferred, too, if the records are appended,
        but not committed: later Produces of the connection may be appended meanwhile.

        A few errors apply to the whole request: transactional records without a transactional id, records of several
        producers, and an invalid `acks` (`KafkaApis.handleProduceRequest`, `ReplicaManager.handleProduceAppend`).
        """
        count = 0
        for topic_data in request.topic_data:
            count += len(topic_data.partition_data) or 1
        if count > ITEMS_A_TURN:
            return Deferred(self._in_turns(request, ctx), keeps_frame=True)
        admitted = at_once(self._admit(request, ctx))
        _authorize(request, ctx, admitted)
        if check(request, admitted) and request.transactional_id is not None:
            found = at_once(unverified(admitted, ctx.api_version, self._now_ms()))
            if found:
                return Deferred(self._verify_then_append(request, ctx, admitted, found), keeps_frame=True)
        if admitted.slow or admitted.items > ITEMS_A_TURN:
            return Deferred(self._append_slowly(request, ctx, admitted), keeps_frame=True)
        response, late = at_once(self._append_all(request, ctx, admitted))
        if late:
            return Deferred(self._when_committed(response, late, request, ctx), admits=_is_produce)
        return response if request.acks else None

    async def _in_turns(self, request: ProduceRequest, ctx: RequestContext) -> ProduceResponse | None:
        """Answer a request for many partitions, and let the loop serve other requests in between."""
        admitted = await in_turns(self._admit(request, ctx), OPENED_A_TURN)
        _authorize(request, ctx, admitted)
        if check(request, admitted) and request.transactional_id is not None:
            found = await in_turns(unverified(admitted, ctx.api_version, self._now_ms()))
            if found:
                return await self._verify_then_append(request, ctx, admitted, found)
        return await self._append_slowly(request, ctx, admitted)

    def _admit(self, request: ProduceRequest, ctx: RequestContext) -> Generator[None, None, Admitted]:
        """Find the logs of all partitions. Pause after each, and after each topic without partitions."""
        admitted = Admitted()
        now_ms = self._now_ms()
        for topic_data in request.topic_data:
            name = topic_data.name
            refusal = None
            if topic_data.topic_id.int:
                info = self._cache.image.topic_by_id(topic_data.topic_id)
                name = info.name if info else ""
                if info is None:
                    refusal = Refusal(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_data.topic_id}")
            if refusal is None:
                try:
                    ctx.authorize(_WRITE, _TOPIC, name)
                except ProtocolError as error:
                    refusal = Refusal.of(error)
            if refusal is None and name in INTERNAL_TOPICS and ctx.client_id != _ADMIN_CLIENT_ID:
                refusal = Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only coordinators may write to {name}")
            targets: list[Target] = []
            admitted.topics.append((topic_data, targets))
            for data in topic_data.partition_data:
                target = Target(name, data)
                target.refusal = refusal
                targets.append(target)
                self._find_log(target, admitted, now_ms)
                yield
            if not targets:
                yield
        return admitted

    def _find_log(self, target: Target, admitted: Admitted, now_ms: int) -> None:
        """Find the log of a partition. Count the items of its append, and note slow and transactional records."""
        admitted.items += 1
        records = target.data.records
        if admitted.transactional is None and is_transactional(records):
            admitted.transactional = target
        if target.refusal is not None:
            return
        try:
            target.replica = self._partitions.require(target.topic, target.data.index)
        except ProtocolError as error:
            target.refusal = Refusal.of(error)
            return
        log = target.replica.log
        if not log.has_files:
            admitted.items += NEW_LOG_ITEMS - 1
        if records and may_take_long(memoryview(records), log.config, now_ms):
            admitted.slow.append(target)

    async def _verify_then_append(
        self, request: ProduceRequest, ctx: RequestContext, admitted: Admitted, found: Unverified
    ) -> ProduceResponse | None:
        """Let the coordinator verify the transaction of partitions that do not know it. Then append."""
        producer_id, epoch, targets = found
        assert request.transactional_id is not None
        implicit = ctx.api_version >= WITH_IMPLICIT_ADD
        if not implicit and not self._config.current.transaction_partition_verification_enable:
            for target in targets:
                target.verified = True
            return await self._append_slowly(request, ctx, admitted)
        names = [(target.topic, target.data.index) for target in targets]
        results = await self._transactions.confirm(
            request.transactional_id, producer_id, epoch, names, implicit=implicit
        )
        for target in targets:
            code = results[target.topic, target.data.index]
            target.verified = code == ErrorCode.NONE
            if not target.verified:
                target.refusal = translate(code, ctx.api_version)
        return await self._append_slowly(request, ctx, admitted)

    async def _append_slowly(
        self, request: ProduceRequest, ctx: RequestContext, admitted: Admitted
    ) -> ProduceResponse | None:
        """Let worker threads validate the records of some partitions and create the files of many. Then append."""
        while admitted.slow:
            target = admitted.slow.pop()
            if target.refusal is None:
                await self._validate(target)
        accepted = [target.replica for target in admitted.targets() if target.refusal is None]
        await self._new_logs.create(replica for replica in accepted if replica is not None)
        response, late = await in_turns(self._append_all(request, ctx, admitted))
        if late:
            return await self._when_committed(response, late, request, ctx)
        return response if request.acks else None

    async def _validate(self, target: Target) -> None:
        assert target.replica is not None
        assert target.data.records is not None
        log = target.replica.log
        try:
            result = await self._workers.compute(
                _validated, memoryview(target.data.records), log.config, self._now_ms()
            )
        except ProtocolError as error:
            target.refusal = Refusal.of(error)
            return
        if isinstance(result, ValidBatches):
            target.validated = result
            return
        target.refusal, target.record_errors = result
        if target.refusal.code not in _WITHOUT_LOG_START:
            target.log_start_offset = log.log_start_offset

    def _append_all(
        self, request: ProduceRequest, ctx: RequestContext, admitted: Admitted
    ) -> Generator[None, None, tuple[ProduceResponse, list[_Late]]]:
        """Append to each partition, with a pause for each item that it counts for."""
        now_ms = self._now_ms()
        level = transaction_version(ctx.api_version)
        all_replicas = request.acks == ALL
        responses = []
        message: str | None = None
        late: list[_Late] = []
        for topic_data, targets in admitted.topics:
            partitions = []
            for target in targets:
                if ctx.api_version < _WITH_ZSTD:
                    _refuse_zstd(target)
                replica = target.replica
                creates = replica is not None and target.refusal is None and not replica.log.has_files
                partition = _append_one(target, now_ms, level, all_replicas)
                if partition.error_code:
                    message = partition.error_message
                    self._log("rejected Produce", target, ErrorCode(partition.error_code), message)
                elif replica is not None and target.last_offset >= (
                    replica.log.high_watermark if all_replicas else replica.stored_end
                ):
                    late.append((target, replica, replica.term, partition))
                partitions.append(partition)
                for _ in range(NEW_LOG_ITEMS if creates else 1):
                    yield
            if not targets:
                yield
            responses.append(
                TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=partitions)
            )
        if request.acks == 0:
            if message is not None:
                # The client reads no response. The closed connection makes it look up the leader again.
                raise BadFrameError(f"Produce with acks=0 failed: {message}")
            late = []
        if late:
            _release_records(admitted)
        return ProduceResponse(responses=responses), late

    async def _when_committed(
        self, response: ProduceResponse, late: list[_Late], request: ProduceRequest, ctx: RequestContext
    ) -> ProduceResponse:
        """Answer when the records are committed, or with acks=1 synced, or when the request's timeout expires.

        If a partition is not ready by then, its error is REQUEST_TIMED_OUT, although its records were appended
        (Kafka's `DelayedProduce`). So it is if too few replicas are in sync, because the high watermark stops then
        (KIP-966). NOT_ENOUGH_REPLICAS_AFTER_APPEND does not occur. If the client disconnects, the wait ends.
        """
        stored = request.acks != ALL
        yielder = Yielder()
        with DelayedCommits(len(late), max(request.timeout_ms, 0), ctx.session) as commits:
            for target, replica, term, _ in late:
                await yielder.next()
                commits.add(replica, target.last_offset, term, stored=stored)
            await commits.ended
        for code, (target, _, _, partition) in zip(commits.errors, late, strict=True):
            if code is not ErrorCode.NONE:
                await yielder.next()
                partition.error_code = code
                partition.error_message = f"{target.topic}-{partition.index}: {code.text}"
                if code is not ErrorCode.REQUEST_TIMED_OUT:
                    partition.base_offset = -1
                self._log("did not acknowledge Produce", target, code, code.text)
        return response

    def _log(self, what: str, target: Target, code: ErrorCode, reason: str | None) -> None:
        """Log an error of a partition. While clients retry, log only counts."""
        partition = f"{target.topic}-{target.data.index}"
        self._lines.log(f"{what} ({code.name})", partition, f"{what}: {partition}: {reason}")


def bind(services: HandlerServices) -> Handler:
    """Return the handler of Produce."""
    return ProduceHandler(
        services.cache,
        services.partitions,
        services.transactions,
        services.config,
        services.new_logs,
        services.runtime,
    )


def _authorize(request: ProduceRequest, ctx: RequestContext, admitted: Admitted) -> None:
    """Raise TRANSACTIONAL_ID_AUTHORIZATION_FAILED if the request has transactional records that it may not write.

    As in Kafka, a transactional id needs no permission if no record is transactional.
    """
    if admitted.transactional is not None and request.transactional_id is not None:
        ctx.authorize(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, request.transactional_id)


def _is_produce(head: memoryview) -> bool:
    return head[:2] == _API_KEY


def _release_records(admitted: Admitted) -> None:
    """Release the request's records. They are in the log, and the wait for their sync may be long."""
    for target in admitted.targets():
        target.data.records = target.validated = None


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


def _refuse_zstd(target: Target) -> None:
    """Reject zstd in versions before KIP-110 (`ProduceRequest.validateRecords`)."""
    records = target.data.records
    zstd = records and len(records) > ATTRIBUTES_LOW and records[ATTRIBUTES_LOW] & CODEC_MASK == Codec.ZSTD
    if zstd and target.refusal is None:
        message = f"zstd compression requires Produce v{_WITH_ZSTD} or later"
        target.refusal = Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)


def _append_one(target: Target, now_ms: int, transaction_version: int, all_replicas: bool) -> PartitionProduceResponse:
    data = target.data
    if target.refusal is not None:
        return _refused(target, target.refusal, target.log_start_offset, target.record_errors)
    replica = target.replica
    assert replica is not None
    replica.traffic.produce_requests += 1
    if not data.records:
        refusal = Refusal(ErrorCode.INVALID_RECORD, "the request has no records for this partition")
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
        replica.traffic.failed_produce_requests += 1
        log_start = -1 if error.code in _WITHOUT_LOG_START else replica.log.log_start_offset
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
    """Return the error of a partition. If the log rejected records, add its start offset and their indexes."""
    target.refusal = refusal
    return PartitionProduceResponse(
        index=target.data.index,
        error_code=refusal.code,
        base_offset=-1,
        log_start_offset=log_start_offset,
        record_errors=list(record_errors),
        error_message=refusal.message,
    )
