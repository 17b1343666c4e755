"""AlterPartitionReassignments: move partitions to other replicas, or cancel such a move (KIP-455, KIP-860)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int16, int32, string


class ReassignablePartition(Message):
    """`Partitions` of AlterPartitionReassignmentsRequest. Without replicas, it cancels a reassignment."""

    partition_index: int = int32()
    replicas: list[int] | None = array("int32", nullable=0, default=None)


class ReassignableTopic(Message):
    """`Topics` of AlterPartitionReassignmentsRequest."""

    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions=(0, 1), flexible=0):
    """The request."""

    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class ReassignablePartitionResponse(Message):
    """`Partitions` of AlterPartitionReassignmentsResponse."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)


class ReassignableTopicResponse(Message):
    """`Responses` of AlterPartitionReassignmentsResponse."""

    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions=(0, 1), flexible=0):
    """The response."""

    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(since=1, default=True, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)
