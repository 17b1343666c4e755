"""TxnOffsetCommit: commit offsets that become visible with a transaction."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from uuid import UUID

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
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponseTopic,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS

_KNOWS_LOADING = 2


async def handle(
    cache: MetadataCache, groups: GroupService, request: TxnOffsetCommitRequest, ctx: RequestContext
) -> TxnOffsetCommitResponse:
    """Pass existing partitions to the group's coordinator. Return an error for each of the others."""
    ctx.authorize(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, request.transactional_id)
    ctx.authorize(AclOperation.READ, AclResource.GROUP, request.group_id)
    ids: dict[str, UUID] = {}
    deleted: list[Refused] = []

    def find(topic: TxnOffsetCommitRequestTopic) -> TopicInfo | None:
        info = cache.image.topic(topic.name)
        if info is not None:
            ids[topic.name] = info.topic_id
        return info

    def may_read(name: str) -> bool:
        return ctx.allowed(AclOperation.READ, AclResource.TOPIC, name)

    def existing(topics: list[TxnOffsetCommitRequestTopic]) -> list[TxnOffsetCommitRequestTopic]:
        return still_existing(
            topics,
            lambda topic: cache.image.topic_by_id(ids[topic.name]) is not None,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            deleted,
        )

    known, refused = await in_turns(take_existing(request.topics, find, may_read))
    response = TxnOffsetCommitResponse()
    if known:
        request.topics = known
        try:
            response = await groups.commit_transactional_offsets(request, ctx.api_version, existing)
            refused += deleted
        except ProtocolError as error:
            code = operation_error(error)
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.api_version < _KNOWS_LOADING:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # KAFKA-7296
            all_refused = (Refused(topic, topic.partitions, code) for topic in known)
            response.topics = await in_turns(answered(all_refused, TxnOffsetCommitResponseTopic))
    if refused:
        others = await in_turns(answered(refused, TxnOffsetCommitResponseTopic))
        await in_turns(merge(response.topics, others, attrgetter("name")))
    return response


def bind(services: HandlerServices) -> Handler:
    """Return the handler of TxnOffsetCommit."""
    return requiring_topic(services.topics, CONSUMER_OFFSETS, partial(handle, services.cache, services.groups))
