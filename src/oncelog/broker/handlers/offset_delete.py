"""OffsetDelete: delete a group's offsets of topics that it does not read any more (KIP-496)."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from oncelog.broker.coordinators.groups import operation_error
from oncelog.broker.handlers.offset_topics import answered, merge, take_existing
from oncelog.broker.turns import in_turns
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: OffsetDeleteRequest, _ctx: RequestContext) -> OffsetDeleteResponse:
    """Return the error of the group, or an error for each partition."""
    request.topics, refused = await in_turns(
        take_existing(request.topics, lambda topic: broker.metadata.topic(topic.name))
    )
    try:
        response = await broker.groups.delete_offsets(request)
    except ProtocolError as error:
        return OffsetDeleteResponse(error_code=operation_error(error))
    others = await in_turns(answered(refused, OffsetDeleteResponseTopic))
    await in_turns(merge(response.topics, others, attrgetter("name")))
    return response
