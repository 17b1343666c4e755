"""DescribeTopicPartitions: the partitions of topics, in pages (KIP-966).

Source: Kafka's `DescribeTopicPartitionsRequestHandler`.
"""

from __future__ import annotations

from functools import partial

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.nodes import Nodes, PartitionView
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.topics import INTERNAL_TOPICS, PartitionInfo, TopicInfo, check_topic_name
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


async def handle(
    config: DynamicConfig,
    cache: MetadataCache,
    nodes: Nodes,
    request: DescribeTopicPartitionsRequest,
    ctx: RequestContext,
) -> DescribeTopicPartitionsResponse:
    """Describe topics, sorted by name. If the request names no topics, describe all topics.

    `next_cursor` is the first partition of the next page. If the cursor of the request has a negative partition, or a
    topic that the request does not name, each named topic gets INVALID_REQUEST.
    """
    cursor = request.cursor
    start = cursor.topic_name if cursor is not None else ""
    asked = {topic.name for topic in request.topics}
    names = sorted(name for name in asked or (topic.name for topic in cache.image.topics()) if name >= start)
    if cursor is not None and (cursor.partition_index < 0 or (asked and start not in names)):
        return _refused(request)
    response = DescribeTopicPartitionsResponse()
    left = max(1, min(request.response_partition_limit, config.current.max_request_partition_size_limit))
    yielder = Yielder()
    hidden: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        await yielder.next()
        if not ctx.allowed(AclOperation.DESCRIBE, AclResource.TOPIC, name):
            if asked:
                hidden.append(_hidden(name))
            continue
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        first = cursor.partition_index if cursor is not None and name == start else 0
        topic = cache.image.topic(name)
        if topic is None:
            if asked:
                response.topics.append(_unknown(name, ctx))
            continue
        described = _described(nodes, topic, first, left, ctx)
        response.topics.append(described)
        left -= len(described.partitions)
        following = first + len(described.partitions)
        if following < topic.partition_count:
            response.next_cursor = Cursor(topic_name=name, partition_index=following)
            break
    response.topics += hidden
    return response


def _described(
    nodes: Nodes, topic: TopicInfo, first: int, most: int, ctx: RequestContext
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            _partition(nodes.describe(topic.name, index, info, ctx.session.listener), index, info)
            for index, info in enumerate(topic.partitions[first : first + most], first)
        ],
        topic_authorized_operations=ctx.operations_on(AclResource.TOPIC, topic.name),
    )


def _partition(view: PartitionView, index: int, info: PartitionInfo) -> DescribeTopicPartitionsResponsePartition:
    """Describe a partition. As in Kafka, one without a leader has no error."""
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=view.leader,
        leader_epoch=info.leader_epoch,
        replica_nodes=list(info.replicas),
        isr_nodes=view.isr,
        eligible_leader_replicas=view.eligible,
        last_known_elr=[],
        offline_replicas=view.offline,
    )


def _hidden(name: str) -> DescribeTopicPartitionsResponseTopic:
    """Return the result for a topic that the client may not describe."""
    return DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)


def _unknown(name: str, ctx: RequestContext) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except ProtocolError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=ctx.operations_on(AclResource.TOPIC, name),
    )


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    code = ErrorCode.INVALID_REQUEST
    return DescribeTopicPartitionsResponse(
        topics=[DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name) for topic in request.topics]
    )


def bind(services: HandlerServices) -> Handler:
    """Return the handler of DescribeTopicPartitions."""
    return partial(handle, services.config, services.cache, services.nodes)
