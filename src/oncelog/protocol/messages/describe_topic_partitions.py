"""DescribeTopicPartitions: list the partitions of topics, in pages (KIP-966)."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, boolean, int16, int32, string, struct, uuid


class TopicRequest(Message):
    """`Topics` of DescribeTopicPartitionsRequest."""

    name: str = string()


class Cursor(Message):
    """`Cursor` of the request, and `NextCursor` of the response: the first partition of a page."""

    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(Message, api_key=75, versions=(0, 0), flexible=0):
    """The request."""

    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = struct(Cursor, nullable=0, default=None)


class DescribeTopicPartitionsResponsePartition(Message):
    """`Partitions` of DescribeTopicPartitionsResponse."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1, ignorable=True)
    replica_nodes: list[int] = array("int32")
    isr_nodes: list[int] = array("int32")
    eligible_leader_replicas: list[int] | None = array("int32", nullable=0, default=None)
    last_known_elr: list[int] | None = array("int32", nullable=0, default=None)
    offline_replicas: list[int] = array("int32", ignorable=True)


class DescribeTopicPartitionsResponseTopic(Message):
    """`Topics` of DescribeTopicPartitionsResponse."""

    error_code: int = int16()
    name: str | None = string(nullable=0)
    topic_id: UUID = uuid(ignorable=True)
    is_internal: bool = boolean(ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = int32(default=-2147483648)


class DescribeTopicPartitionsResponse(Message, api_key=75, versions=(0, 0), flexible=0):
    """The response."""

    throttle_time_ms: int = int32(ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = struct(Cursor, nullable=0, default=None)
