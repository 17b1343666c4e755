"""DescribeQuorum: the controller as a quorum of one, because oncelog's metadata are in a store, not in a Raft log."""

from __future__ import annotations

from functools import partial

from oncelog.broker.metadata.controller import Controller
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.nodes import Nodes
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.store import StoreError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    RequestedPartition,
    RequestedTopic,
    TopicData,
)

METADATA = "__cluster_metadata"
_ONLY_METADATA = [RequestedTopic(topic_name=METADATA, partitions=[RequestedPartition(partition_index=0)])]


async def handle(
    nodes: Nodes, controller: Controller, cache: MetadataCache, request: DescribeQuorumRequest, ctx: RequestContext
) -> DescribeQuorumResponse:
    """Return the controller as the leader and only voter, and the other running brokers as observers.

    The leader epoch is the controller epoch. The high watermark is the number of changes of the metadata that this
    broker has seen. It does not know what other brokers have seen: their offset is -1. As in Kafka
    (`KafkaRaftClient.handleDescribeQuorumRequest`), another topic or partition gets UNKNOWN_TOPIC_OR_PARTITION, and
    without a controller, the partition gets NOT_LEADER_OR_FOLLOWER.
    """
    ctx.authorize(AclOperation.DESCRIBE, *CLUSTER)
    if request.topics != _ONLY_METADATA:
        return await _refused(request)
    leader, image = nodes.controller, cache.image
    found = PartitionData(leader_id=leader, leader_epoch=-1, high_watermark=-1)
    response = DescribeQuorumResponse(topics=[TopicData(topic_name=METADATA, partitions=[found])])
    if leader < 0:
        found.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return response
    try:
        found.leader_epoch = await controller.current_epoch()
    except StoreError as error:
        return DescribeQuorumResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message=str(error))
    found.high_watermark = image.sequence + 1
    for broker in nodes.running(ctx.session.listener):
        if broker.node_id == leader:
            found.current_voters.append(ReplicaState(replica_id=leader, log_end_offset=found.high_watermark))
            address = Listener(name=ctx.session.listener.name, host=broker.host, port=broker.port)
            response.nodes.append(Node(node_id=leader, listeners=[address]))
        else:
            found.observers.append(ReplicaState(replica_id=broker.node_id, log_end_offset=-1))
    return response


async def _refused(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    yielder = Yielder()
    topics = []
    for topic in request.topics:
        parts = []
        for part in topic.partitions:
            await yielder.next()
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            parts.append(PartitionData(partition_index=part.partition_index, error_code=code))
        topics.append(TopicData(topic_name=topic.topic_name, partitions=parts))
    return DescribeQuorumResponse(topics=topics)


def bind(services: HandlerServices) -> Handler:
    """Return the handler of DescribeQuorum."""
    return partial(handle, services.nodes, services.controller, services.cache)
