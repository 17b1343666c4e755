"""OffsetFetch: the committed offsets of one group, or since version 8 of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.groups import operation_error
from oncelog.coordinator.groups.commits import no_offset
from oncelog.protocol.errors import ErrorCode, ProtocolError
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
from oncelog.protocol.schema import NO_UUID

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_WITH_ERROR_OF_ITS_OWN = 2
_OF_SEVERAL_GROUPS = 8
_WITH_TOPIC_IDS = 10


async def handle(broker: Broker, request: OffsetFetchRequest, ctx: RequestContext) -> OffsetFetchResponse:
    """One group's error says nothing of the others."""
    version = ctx.api_version
    if version >= _OF_SEVERAL_GROUPS:
        groups = [await _fetch(broker, group, request.require_stable, version) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    topics = request.topics
    asked = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics],
    )
    return _single(await _fetch(broker, asked, request.require_stable, version))


async def _fetch(
    broker: Broker, asked: OffsetFetchRequestGroup, require_stable: bool, version: int
) -> OffsetFetchResponseGroup:
    by_id = version >= _WITH_TOPIC_IDS
    all_topics = asked.topics is None
    unknown = [] if asked.topics is None or not by_id else _take_unknown(broker, asked.topics)
    try:
        response = await broker.groups.fetch_offsets(asked, require_stable)
    except ProtocolError as error:
        return _error(asked, _fetch_error(error), version)
    if by_id and all_topics:
        for topic in response.topics:
            info = broker.metadata.topic(topic.name)
            topic.topic_id = info.topic_id if info else NO_UUID
        # One that has no id any more cannot be told of.
        response.topics = [topic for topic in response.topics if topic.topic_id != NO_UUID]
    response.topics += unknown
    return response


def _take_unknown(broker: Broker, topics: list[OffsetFetchRequestTopics]) -> list[OffsetFetchResponseTopics]:
    """Fills in the names; topics whose ids are not known leave the list and are answered."""
    unknown = []
    for topic in tuple(topics):
        info = broker.metadata.topic_by_id(topic.topic_id)
        if info is not None:
            topic.name = info.name
            continue
        topics.remove(topic)
        partitions = [no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes]
        unknown.append(OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=partitions))
    return unknown


def _fetch_error(error: ProtocolError) -> ErrorCode:
    code = operation_error(error)
    # A group that nobody could have committed to yet: the client looks for the coordinator, which makes the topic.
    return ErrorCode.NOT_COORDINATOR if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code


def _error(asked: OffsetFetchRequestGroup, code: ErrorCode, version: int) -> OffsetFetchResponseGroup:
    if version >= _WITH_ERROR_OF_ITS_OWN:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=code)
    topics = [
        OffsetFetchResponseTopics(
            name=topic.name, partitions=[no_offset(index, code) for index in topic.partition_indexes]
        )
        for topic in asked.topics or ()
    ]
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


def _single(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """The answer to versions that ask for one group."""
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )
