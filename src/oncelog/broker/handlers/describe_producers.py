"""DescribeProducers: list the producers that the log of a partition remembers (KIP-664).

If a client asks for the remembered batches, which only oncelog has, the request may name only one partition. So the
response is as large as what the broker keeps of that partition, however small the request is.
"""

from __future__ import annotations

from functools import partial

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import AclOperation, AclResource
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Yielder
from oncelog.log.log import Log, ProducerInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionCounters,
    PartitionResponse,
    ProducerState,
    RememberedBatch,
    TopicResponse,
)


async def handle(
    partitions: Partitions, request: DescribeProducersRequest, ctx: RequestContext
) -> DescribeProducersResponse:
    """Return the producers of each partition that this broker leads or follows, or the partition's error."""
    yielder = Yielder()
    several = sum(len(topic.partition_indexes) for topic in request.topics) > 1
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    await _partition(partitions, topic.name, index, ctx, yielder, request.include_batches, several)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


async def _partition(
    partitions: Partitions,
    topic: str,
    index: int,
    ctx: RequestContext,
    yielder: Yielder,
    with_batches: bool,
    several: bool,
) -> PartitionResponse:
    await yielder.next()
    try:
        ctx.authorize(AclOperation.READ, AclResource.TOPIC, topic)
        if with_batches and several:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                "a request for the remembered batches may name one partition; send one request for each partition",
            )
        log = partitions.require_any(topic, index).log
    except ProtocolError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=str(error))
    producers = []
    for producer in log.producers():
        await yielder.next(1 + len(producer.batches) if with_batches else 1)
        producers.append(_producer(producer, with_batches))
    return PartitionResponse(
        partition_index=index, active_producers=producers, counters=_counters(log) if with_batches else None
    )


def _producer(producer: ProducerInfo, with_batches: bool) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.current_txn_start_offset,
        batches=[
            RememberedBatch(
                first_sequence=batch.first_sequence,
                last_sequence=batch.last_sequence,
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                timestamp=batch.timestamp,
            )
            for batch in (producer.batches if with_batches else ())
        ],
    )


def _counters(log: Log) -> PartitionCounters:
    counted = log.statistics
    return PartitionCounters(
        duplicate_batches=counted.duplicate_batches,
        sequence_gaps=counted.sequence_gaps,
        stale_sequences=counted.stale_sequences,
    )


def bind(services: HandlerServices) -> Handler:
    """Return the handler of DescribeProducers."""
    return partial(handle, services.partitions)
