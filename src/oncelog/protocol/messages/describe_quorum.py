"""DescribeQuorum: who keeps the cluster's metadata (KIP-595, KIP-836, KIP-853)."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, int16, int32, int64, string, uint16, uuid


class RequestedPartition(Message):
    """`Partitions` of DescribeQuorumRequest."""

    partition_index: int = int32()


class RequestedTopic(Message):
    """`Topics` of DescribeQuorumRequest."""

    topic_name: str = string()
    partitions: list[RequestedPartition] = array(RequestedPartition)


class DescribeQuorumRequest(Message, api_key=55, versions=(0, 2), flexible=0):
    """The request. Its only topic is `__cluster_metadata`, with partition 0."""

    topics: list[RequestedTopic] = array(RequestedTopic)


class ReplicaState(Message):
    """A voter or an observer. Times are in ms since 1970, -1 if unknown."""

    replica_id: int = int32()
    replica_directory_id: UUID = uuid(since=2)
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(since=1, default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64(since=1, default=-1, ignorable=True)


class PartitionData(Message):
    """`Partitions` of DescribeQuorumResponse."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(since=2, nullable=2, ignorable=True, default=None)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class TopicData(Message):
    """`Topics` of DescribeQuorumResponse."""

    topic_name: str = string()
    partitions: list[PartitionData] = array(PartitionData)


class Listener(Message):
    """`Listeners` of a node."""

    name: str = string()
    host: str = string()
    port: int = uint16()


class Node(Message):
    """`Nodes` of DescribeQuorumResponse: the addresses of the voters."""

    node_id: int = int32()
    listeners: list[Listener] = array(Listener)


class DescribeQuorumResponse(Message, api_key=55, versions=(0, 2), flexible=0):
    """The response."""

    error_code: int = int16()
    error_message: str | None = string(since=2, nullable=2, ignorable=True, default=None)
    topics: list[TopicData] = array(TopicData)
    nodes: list[Node] = array(Node, since=2, ignorable=True)
