"""OffsetDelete: delete a group's offsets of some topics (KIP-496)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int16, int32, string


class OffsetDeleteRequestPartition(Message):
    """`Partitions` of OffsetDeleteRequest."""

    partition_index: int = int32()


class OffsetDeleteRequestTopic(Message):
    """`Topics` of OffsetDeleteRequest."""

    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(Message, api_key=47, versions=(0, 0)):
    """The request."""

    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Message):
    """`Partitions` of OffsetDeleteResponse."""

    partition_index: int = int32()
    error_code: int = int16()


class OffsetDeleteResponseTopic(Message):
    """`Topics` of OffsetDeleteResponse."""

    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(Message, api_key=47, versions=(0, 0)):
    """The response."""

    error_code: int = int16()
    throttle_time_ms: int = int32(ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
