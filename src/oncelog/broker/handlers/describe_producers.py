"""DescribeProducers: list the producers that the log of a partition remembers (KIP-664).

A request may name a partition once. If it asks for the remembered batches, which only oncelog has, it may name only
one. So the response is at most as large as what the broker keeps, however small the request is.
"""

from __future__ import annotations

from functools import partial

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Yielder, counted
from oncelog.cluster.topics import check_topic_name
from oncelog.log.log import Log, ProducerInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionCounters,
    PartitionResponse,
    ProducerState,
    RememberedBatch,
    TopicResponse,
)

_ONE_PARTITION = "a request for the remembered batches may name one partition; send one request for each partition"


async def handle(
    partitions: Partitions, request: DescribeProducersRequest, ctx: RequestContext
) -> DescribeProducersResponse:
    """Return the producers of each partition that this broker leads or follows, or the partition's error."""
    named = await counted((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
    with_batches = request.include_batches
    topics = []
    yielder = Yielder()
    for topic in request.topics:
        found = []
        for index in topic.partition_indexes:
            await yielder.next()
            try:
                check_topic_name(topic.name)
                ctx.authorize(AclOperation.READ, AclResource.TOPIC, topic.name)
                if named[topic.name, index] > 1:
                    raise ProtocolError(ErrorCode.INVALID_REQUEST, "the request names this partition more than once")
                if with_batches and len(named) > 1:
                    raise ProtocolError(ErrorCode.INVALID_REQUEST, _ONE_PARTITION)
                log = partitions.require_any(topic.name, index).log
            except ProtocolError as error:
                found.append(PartitionResponse(partition_index=index, error_code=error.code, error_message=str(error)))
            else:
                found.append(await _partition(index, log, with_batches, yielder))
        topics.append(TopicResponse(name=topic.name, partitions=found))
    return DescribeProducersResponse(topics=topics)


async def _partition(index: int, log: Log, with_batches: bool, yielder: Yielder) -> PartitionResponse:
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
