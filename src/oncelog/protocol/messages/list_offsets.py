"""ListOffsets: find offsets by timestamp, and the first and last offset (KIP-79)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int8, int16, int32, int64, string


class ListOffsetsPartition(Message):
    """`Partitions` of ListOffsetsRequest."""

    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1, ignorable=True)
    timestamp: int = int64()


class ListOffsetsTopic(Message):
    """`Topics` of ListOffsetsRequest."""

    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Message, api_key=2, versions=(1, 11), flexible=6):
    """The request."""

    replica_id: int = int32()
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10, ignorable=True)


class ListOffsetsPartitionResponse(Message):
    """`Partitions` of ListOffsetsResponse."""

    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(since=1, default=-1)
    offset: int = int64(since=1, default=-1)
    leader_epoch: int = int32(since=4, default=-1)


class ListOffsetsTopicResponse(Message):
    """`Topics` of ListOffsetsResponse."""

    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Message, api_key=2, versions=(1, 11), flexible=6):
    """The response."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
