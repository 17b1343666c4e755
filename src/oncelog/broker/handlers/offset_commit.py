"""OffsetCommit: how far a group has read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from oncelog.broker.groups import operation_error
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_WITH_TOPIC_IDS = 10


async def handle(broker: Broker, request: OffsetCommitRequest, ctx: RequestContext) -> OffsetCommitResponse:
    """Partitions that do not exist have their error at once; what is left goes to the group's coordinator."""
    known: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for topic in request.topics:
        if ctx.api_version >= _WITH_TOPIC_IDS:
            info, code = broker.metadata.topic_by_id(topic.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        else:
            info, code = broker.metadata.topic(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if info is None:
            refused.append(_refuse(topic, topic.partitions, code))
            continue
        topic.name, topic.topic_id = info.name, info.topic_id
        count = info.partition_count
        missing = [partition for partition in topic.partitions if not 0 <= partition.partition_index < count]
        topic.partitions = [partition for partition in topic.partitions if 0 <= partition.partition_index < count]
        if missing:
            refused.append(_refuse(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if topic.partitions:
            known.append(topic)
    if not known:
        return OffsetCommitResponse(topics=refused)
    request.topics = known
    try:
        response = await broker.groups.commit_offsets(request, ctx.api_version)
    except ProtocolError as error:
        code = operation_error(error)
        response = OffsetCommitResponse(topics=[_refuse(topic, topic.partitions, code) for topic in known])
    _merge(response.topics, refused)
    return response


def _merge(answered: list[OffsetCommitResponseTopic], refused: list[OffsetCommitResponseTopic]) -> None:
    """A topic that is in both is answered once."""
    by_topic = {(topic.name, topic.topic_id): topic for topic in answered}
    for topic in refused:
        same = by_topic.get((topic.name, topic.topic_id))
        if same is None:
            answered.append(topic)
        else:
            same.partitions += topic.partitions


def _refuse(
    topic: OffsetCommitRequestTopic, partitions: Iterable[OffsetCommitRequestPartition], code: ErrorCode
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            for partition in partitions
        ],
    )
