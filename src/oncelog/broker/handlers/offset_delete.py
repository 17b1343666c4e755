"""OffsetDelete: delete a group's offsets of topics that it no longer reads (KIP-496)."""

from __future__ import annotations

from functools import partial
from operator import attrgetter

from oncelog.broker.coordinators.groups import GroupService, operation_error
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.coordinator_topics import requiring_topic
from oncelog.broker.requests.offset_topics import answered, merge, take_existing
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import in_turns
from oncelog.cluster.image import MetadataCache
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponseTopic,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS


async def handle(
    cache: MetadataCache, groups: GroupService, request: OffsetDeleteRequest, ctx: RequestContext
) -> OffsetDeleteResponse:
    """Return the error of the group, or an error for each partition."""
    ctx.authorize(AclOperation.DELETE, AclResource.GROUP, request.group_id)
    request.topics, refused = await in_turns(
        take_existing(
            request.topics,
            lambda topic: cache.image.topic(topic.name),
            lambda name: ctx.allowed(AclOperation.READ, AclResource.TOPIC, name),
        )
    )
    try:
        response = await groups.delete_offsets(request)
    except ProtocolError as error:
        return OffsetDeleteResponse(error_code=operation_error(error))
    others = await in_turns(answered(refused, OffsetDeleteResponseTopic))
    await in_turns(merge(response.topics, others, attrgetter("name")))
    return response


def bind(services: HandlerServices) -> Handler:
    """Return the handler of OffsetDelete."""
    return requiring_topic(services.topics, CONSUMER_OFFSETS, partial(handle, services.cache, services.groups))
