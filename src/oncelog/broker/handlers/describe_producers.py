"""DescribeProducers: list the producers that the log of a partition remembers (KIP-664)."""

from __future__ import annotations

from functools import partial

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import AclOperation, AclResource
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Yielder
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


async def handle(
    partitions: Partitions, request: DescribeProducersRequest, ctx: RequestContext
) -> DescribeProducersResponse:
    """Return the producers of each partition that this broker leads, or the partition's error."""
    yielder = Yielder()
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    await _partition(partitions, topic.name, index, ctx, yielder) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


async def _partition(
    partitions: Partitions, topic: str, index: int, ctx: RequestContext, yielder: Yielder
) -> PartitionResponse:
    await yielder.next()
    try:
        ctx.authorize(AclOperation.READ, AclResource.TOPIC, topic)
        log = partitions.require(topic, index).log
    except ProtocolError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=str(error))
    producers = []
    for producer in log.producers():
        await yielder.next()
        producers.append(
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_txn_start_offset,
            )
        )
    return PartitionResponse(partition_index=index, active_producers=producers)


def bind(services: HandlerServices) -> Handler:
    """Return the handler of DescribeProducers."""
    return partial(handle, services.partitions)
