"""OffsetCommit: how far a group has read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.groups import operation_error
from oncelog.broker.handlers.offset_topics import Refused, merge, take_existing
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext
    from oncelog.cluster.metadata import TopicInfo

_WITH_TOPIC_IDS = 10


async def handle(broker: Broker, request: OffsetCommitRequest, ctx: RequestContext) -> OffsetCommitResponse:
    """Partitions that do not exist have their error at once; what is left goes to the group's coordinator."""
    by_id = ctx.api_version >= _WITH_TOPIC_IDS

    def find(topic: OffsetCommitRequestTopic) -> TopicInfo | None:
        info = broker.metadata.topic_by_id(topic.topic_id) if by_id else broker.metadata.topic(topic.name)
        if info is not None:
            topic.name, topic.topic_id = info.name, info.topic_id
        return info

    absent = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    known, refused = take_existing(request.topics, find, absent)
    answered = OffsetCommitResponse()
    if known:
        request.topics = known
        try:
            answered = await broker.groups.commit_offsets(request, ctx.api_version)
        except ProtocolError as error:
            code = operation_error(error)
            answered.topics = [_refuse(Refused(topic, topic.partitions, code)) for topic in known]
    if refused:
        merge(answered.topics, [_refuse(each) for each in refused], lambda topic: (topic.name, topic.topic_id))
    return answered


def _refuse(refused: Refused) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=refused.topic.name,
        topic_id=refused.topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=refused.code)
            for partition in refused.partitions
        ],
    )
