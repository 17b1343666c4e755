"""DescribeTopicPartitions: partitions of topics, page by page (KIP-966).

Source: Kafka's `DescribeTopicPartitionsRequestHandler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.requests import operations
from oncelog.broker.turns import Turns
from oncelog.cluster.metadata import INTERNAL_TOPICS, NO_LEADER, PartitionInfo, TopicInfo, check_topic_name
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(
    broker: Broker, request: DescribeTopicPartitionsRequest, ctx: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Topics in the order of their names; `next_cursor` says where the next page begins. No names mean all topics.

    INVALID_REQUEST, for every topic asked for, when the cursor's topic is not among them or its partition is negative.
    """
    cursor = request.cursor
    start = cursor.topic_name if cursor is not None else ""
    asked = {topic.name for topic in request.topics}
    names = sorted(name for name in asked or (topic.name for topic in broker.metadata.topics()) if name >= start)
    if cursor is not None and (cursor.partition_index < 0 or (asked and start not in names)):
        return _refused(request)
    response = DescribeTopicPartitionsResponse()
    left = max(1, min(request.response_partition_limit, broker.config.max_request_partition_size_limit))
    turns = Turns()
    for name in names:
        await turns.next()
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        first = cursor.partition_index if cursor is not None and name == start else 0
        topic = broker.metadata.topic(name)
        if topic is None:
            if asked:
                response.topics.append(_unknown(name))
            continue
        described = _described(broker, topic, first, left)
        response.topics.append(described)
        left -= len(described.partitions)
        behind = first + len(described.partitions)
        if behind < topic.partition_count:
            response.next_cursor = Cursor(topic_name=name, partition_index=behind)
            break
    return response


def _described(broker: Broker, topic: TopicInfo, first: int, most: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            _partition(broker, topic.name, index, info)
            for index, info in enumerate(topic.partitions[first : first + most], first)
        ],
        topic_authorized_operations=operations.OF_TOPIC,
    )


def _partition(broker: Broker, topic: str, index: int, info: PartitionInfo) -> DescribeTopicPartitionsResponsePartition:
    offline = broker.partitions.is_offline(topic, index)
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=NO_LEADER if offline else info.leader,
        leader_epoch=info.leader_epoch,
        replica_nodes=list(info.replicas),
        isr_nodes=[] if offline else list(info.isr),
        eligible_leader_replicas=list(info.isr) if offline else [],
        last_known_elr=[],
        offline_replicas=[broker.node_id] if offline else [],
    )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except ProtocolError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=operations.OF_TOPIC,
    )


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    code = ErrorCode.INVALID_REQUEST
    return DescribeTopicPartitionsResponse(
        topics=[DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name) for topic in request.topics]
    )
