"""OffsetFetch: read the committed offsets of groups (KIP-447, 709)."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, boolean, int16, int32, int64, string, uuid


class OffsetFetchRequestTopic(Message):
    """`Topics` of OffsetFetchRequest."""

    name: str = string(until=7)
    partition_indexes: list[int] = array("int32", until=7)


class OffsetFetchRequestTopics(Message):
    """`Topics` of OffsetFetchRequest."""

    name: str = string(since=8, until=9, ignorable=True)
    topic_id: UUID = uuid(since=10, ignorable=True)
    partition_indexes: list[int] = array("int32", since=8)


class OffsetFetchRequestGroup(Message):
    """`Groups` of OffsetFetchRequest."""

    group_id: str = string(since=8)
    member_id: str | None = string(since=9, nullable=9, default=None, ignorable=True)
    member_epoch: int = int32(since=9, default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, since=8, nullable=8)


class OffsetFetchRequest(Message, api_key=9, versions=(1, 10), flexible=6):
    """The request."""

    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7, nullable=2)
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


class OffsetFetchResponsePartition(Message):
    """`Partitions` of OffsetFetchResponse."""

    partition_index: int = int32(until=7)
    committed_offset: int = int64(until=7)
    committed_leader_epoch: int = int32(since=5, until=7, default=-1, ignorable=True)
    metadata: str | None = string(until=7, nullable=0)
    error_code: int = int16(until=7)


class OffsetFetchResponseTopic(Message):
    """`Topics` of OffsetFetchResponse."""

    name: str = string(until=7)
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, until=7)


class OffsetFetchResponsePartitions(Message):
    """`Partitions` of OffsetFetchResponse."""

    partition_index: int = int32(since=8)
    committed_offset: int = int64(since=8)
    committed_leader_epoch: int = int32(since=8, default=-1, ignorable=True)
    metadata: str | None = string(since=8, nullable=8)
    error_code: int = int16(since=8)


class OffsetFetchResponseTopics(Message):
    """`Topics` of OffsetFetchResponse."""

    name: str = string(since=8, until=9, ignorable=True)
    topic_id: UUID = uuid(since=10, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, since=8)


class OffsetFetchResponseGroup(Message):
    """`Groups` of OffsetFetchResponse."""

    group_id: str = string(since=8)
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, since=8)
    error_code: int = int16(since=8)


class OffsetFetchResponse(Message, api_key=9, versions=(1, 10), flexible=6):
    """The response."""

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)
