"""DescribeProducers: what a partition's log remembers of its producers (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.turns import Turns
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: DescribeProducersRequest, _ctx: RequestContext) -> DescribeProducersResponse:
    """Each partition has its own error; only its leader answers."""
    turns = Turns()
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[await _partition(broker, topic.name, index, turns) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


async def _partition(broker: Broker, topic: str, index: int, turns: Turns) -> PartitionResponse:
    await turns.next()
    try:
        log = broker.partitions.find(topic, index).log
    except ProtocolError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=str(error))
    producers = []
    for producer in log.producers():
        await turns.next()
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
