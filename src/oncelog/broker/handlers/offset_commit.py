"""OffsetCommit: commit the offsets up to which a group has read."""

from __future__ import annotations

from functools import partial

from oncelog.broker.coordinators.groups import GroupService, operation_error
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.coordinator_topics import requiring_topic
from oncelog.broker.requests.offset_topics import Refused, answered, merge, still_existing, take_existing
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import in_turns
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.topics import TopicInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS

_WITH_TOPIC_IDS = 10


async def handle(
    cache: MetadataCache, groups: GroupService, request: OffsetCommitRequest, ctx: RequestContext
) -> OffsetCommitResponse:
    """Pass existing partitions to the group's coordinator. Return an error for each of the others."""
    ctx.authorize(AclOperation.READ, AclResource.GROUP, request.group_id)
    ctx.session.commits(ctx.client_id, request.group_id)
    by_id = ctx.api_version >= _WITH_TOPIC_IDS
    absent = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    deleted: list[Refused] = []

    def find(topic: OffsetCommitRequestTopic) -> TopicInfo | None:
        info = cache.image.topic_by_id(topic.topic_id) if by_id else cache.image.topic(topic.name)
        if info is not None:
            topic.name, topic.topic_id = info.name, info.topic_id
        return info

    def may_read(name: str) -> bool:
        return ctx.allowed(AclOperation.READ, AclResource.TOPIC, name)

    def existing(topics: list[OffsetCommitRequestTopic]) -> list[OffsetCommitRequestTopic]:
        return still_existing(
            topics, lambda topic: cache.image.topic_by_id(topic.topic_id) is not None, absent, deleted
        )

    known, refused = await in_turns(take_existing(request.topics, find, may_read, absent))
    response = OffsetCommitResponse()
    if known:
        request.topics = known
        try:
            response = await groups.commit_offsets(request, ctx.api_version, existing)
            refused += deleted
        except ProtocolError as error:
            code = operation_error(error)
            all_refused = (Refused(topic, topic.partitions, code) for topic in known)
            response.topics = await in_turns(answered(all_refused, OffsetCommitResponseTopic))
    if refused:
        others = await in_turns(answered(refused, OffsetCommitResponseTopic))
        await in_turns(merge(response.topics, others, lambda topic: (topic.name, topic.topic_id)))
    return response


def bind(services: HandlerServices) -> Handler:
    """Return the handler of OffsetCommit."""
    return requiring_topic(services.topics, CONSUMER_OFFSETS, partial(handle, services.cache, services.groups))
