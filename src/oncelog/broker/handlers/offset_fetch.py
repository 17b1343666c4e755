"""OffsetFetch: return the committed offsets of one group, or since version 8 of several.

A request may name a group once, and a partition of a group once. So the response is at most as large as what the broker
keeps, however small the request is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oncelog.broker.coordinators.groups import GroupService, operation_error
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.coordinator_topics import requiring_topic
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder, counted, filtered, in_turns
from oncelog.cluster.image import MetadataCache
from oncelog.coordinator.groups.offsets import no_offset
from oncelog.log.steps import Steps
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS

_WITH_GROUP_ERROR = 2
_WITH_SEVERAL_GROUPS = 8
_WITH_TOPIC_IDS = 10


async def handle(
    cache: MetadataCache, groups: GroupService, request: OffsetFetchRequest, ctx: RequestContext
) -> OffsetFetchResponse:
    """Return each group's offsets, or its error. A group that is named more than once gets INVALID_REQUEST."""
    version = ctx.api_version
    yielder = Yielder()
    if version >= _WITH_SEVERAL_GROUPS:
        answer = OffsetFetchResponse(groups=[])
        named = await counted(group.group_id for group in request.groups)
        for group in request.groups:
            await yielder.next()
            if named[group.group_id] > 1:
                found = OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.INVALID_REQUEST)
            else:
                found = await _fetch(cache, groups, group, request.require_stable, ctx)
            answer.groups.append(found)
        return answer
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    if request.topics is not None:
        asked.topics = []
        for topic in request.topics:
            await yielder.next()
            asked.topics.append(OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes))
    return await in_turns(_single(await _fetch(cache, groups, asked, request.require_stable, ctx)))


async def _fetch(
    cache: MetadataCache,
    groups: GroupService,
    asked: OffsetFetchRequestGroup,
    require_stable: bool,
    ctx: RequestContext,
) -> OffsetFetchResponseGroup:
    version = ctx.api_version
    by_id = version >= _WITH_TOPIC_IDS
    all_topics = asked.topics is None
    permitted = ctx.may if all_topics else ctx.allowed

    def may_describe(name: str) -> bool:
        return permitted(AclOperation.DESCRIBE, AclResource.TOPIC, name)

    try:
        ctx.authorize(AclOperation.DESCRIBE, AclResource.GROUP, asked.group_id)
        await _check_partitions(asked, by_id)
        refused = await in_turns(_take_refused(cache, asked, by_id, may_describe))
        response = await groups.fetch_offsets(asked, require_stable)
    except ProtocolError as error:
        return await in_turns(_error(asked, _fetch_error(error), version))
    if all_topics:
        response.topics = await filtered(response.topics, lambda topic: may_describe(topic.name))
    if by_id and all_topics:
        response.topics = await in_turns(_with_ids(cache, response.topics))
    response.topics += refused
    return response


async def _check_partitions(asked: OffsetFetchRequestGroup, by_id: bool) -> None:
    """Raise INVALID_REQUEST if a partition is named more than once."""
    topics = asked.topics or ()
    named = await counted(
        (topic.topic_id if by_id else topic.name, index) for topic in topics for index in topic.partition_indexes
    )
    if named.total() > len(named):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "the request names a partition more than once")


def _with_ids(cache: MetadataCache, topics: list[OffsetFetchResponseTopics]) -> Steps[list[OffsetFetchResponseTopics]]:
    """Fill in the topic ids. Omit deleted topics, because they have no ids."""
    existing = []
    for topic in topics:
        yield
        info = cache.image.topic(topic.name)
        if info is not None:
            topic.topic_id = info.topic_id
            existing.append(topic)
    return existing


def _take_refused(
    cache: MetadataCache, asked: OffsetFetchRequestGroup, by_id: bool, may_describe: Callable[[str], bool]
) -> Steps[list[OffsetFetchResponseTopics]]:
    """Fill in the topic names. Remove rejected topics from the request, and return their results.

    Rejected are topics with unknown ids, and topics that the client may not describe.
    """
    known, refused = [], []
    for topic in asked.topics or ():
        yield
        code = ErrorCode.NONE
        if by_id:
            info = cache.image.topic_by_id(topic.topic_id)
            topic.name = "" if info is None else info.name
            code = ErrorCode.UNKNOWN_TOPIC_ID if info is None else code
        if code is ErrorCode.NONE and not may_describe(topic.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if code is ErrorCode.NONE:
            known.append(topic)
            continue
        answer = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=[])
        refused.append(answer)
        for index in topic.partition_indexes:
            yield
            answer.partitions.append(no_offset(index, code))
    if asked.topics is not None:
        asked.topics = known
    return refused


def _fetch_error(error: ProtocolError) -> ErrorCode:
    code = operation_error(error)
    # No group can have committed offsets yet. The client looks for the coordinator, and the broker creates the topic.
    return ErrorCode.NOT_COORDINATOR if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code


def _error(asked: OffsetFetchRequestGroup, code: ErrorCode, version: int) -> Steps[OffsetFetchResponseGroup]:
    answer = OffsetFetchResponseGroup(group_id=asked.group_id)
    if version >= _WITH_GROUP_ERROR:
        answer.error_code = code
        return answer
    for topic in asked.topics or ():
        answered = OffsetFetchResponseTopics(name=topic.name, partitions=[])
        answer.topics.append(answered)
        for index in topic.partition_indexes:
            yield
            answered.partitions.append(no_offset(index, code))
        yield
    return answer


def _single(group: OffsetFetchResponseGroup) -> Steps[OffsetFetchResponse]:
    """Return the response in the form of versions that request one group."""
    answer = OffsetFetchResponse(error_code=group.error_code)
    for topic in group.topics:
        answered = OffsetFetchResponseTopic(name=topic.name, partitions=[])
        answer.topics.append(answered)
        for partition in topic.partitions:
            yield
            answered.partitions.append(
                OffsetFetchResponsePartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                    error_code=partition.error_code,
                )
            )
        yield
    return answer


def bind(services: HandlerServices) -> Handler:
    """Return the handler of OffsetFetch."""
    return requiring_topic(services.topics, CONSUMER_OFFSETS, partial(handle, services.cache, services.groups))
