"""ListOffsets: find offsets by timestamp, and the first and last offset (KIP-79).

With `readable_ends`, oncelog's broker adds what only it shows, for the lag of groups: the ends of the records that
consumers can read, and which consumers read. These fields are tagged (KIP-482), so Apache Kafka ignores them.
"""

from __future__ import annotations

from oncelog.protocol.schema import OWN_TAGS, Message, array, boolean, int8, int16, int32, int64, string, struct


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
    readable_ends: bool = boolean(since=6, tag=OWN_TAGS)


class ReadableEnds(Message):
    """oncelog's own: the offset after the last record of a partition that a consumer can read, by isolation level."""

    uncommitted: int = int64()
    committed: int = int64()


class PartitionReader(Message):
    """oncelog's own: a consumer that has a connection to this broker, and the isolation level of its last Fetch."""

    client_id: str = string()
    host: str = string()
    isolation_level: int = int8()


class ListOffsetsPartitionResponse(Message):
    """`Partitions` of ListOffsetsResponse."""

    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(since=1, default=-1)
    offset: int = int64(since=1, default=-1)
    leader_epoch: int = int32(since=4, default=-1)
    readable: ReadableEnds | None = struct(ReadableEnds, since=6, nullable=6, default=None, tag=OWN_TAGS)


class ListOffsetsTopicResponse(Message):
    """`Topics` of ListOffsetsResponse."""

    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Message, api_key=2, versions=(1, 11), flexible=6):
    """The response."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
    readers: list[PartitionReader] = array(PartitionReader, since=6, tag=OWN_TAGS)
