"""OffsetDelete: forgets a group's offsets of topics that it does not read any more (KIP-496)."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from oncelog.broker.groups import operation_error
from oncelog.broker.handlers.offset_topics import Refused, merge, take_existing
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext


async def handle(broker: Broker, request: OffsetDeleteRequest, _ctx: RequestContext) -> OffsetDeleteResponse:
    """An error of the group stands alone; otherwise each partition has its own."""
    request.topics, refused = take_existing(request.topics, lambda topic: broker.metadata.topic(topic.name))
    try:
        response = await broker.groups.delete_offsets(request)
    except ProtocolError as error:
        return OffsetDeleteResponse(error_code=operation_error(error))
    merge(response.topics, [_refuse(each) for each in refused], attrgetter("name"))
    return response


def _refuse(refused: Refused) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=refused.topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=refused.code)
            for partition in refused.partitions
        ],
    )
