"""OffsetCommit: commit the offsets of a group."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, int16, int32, int64, string, uuid


class OffsetCommitRequestPartition(Message):
    """`Partitions` of OffsetCommitRequest."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable=0)


class OffsetCommitRequestTopic(Message):
    """`Topics` of OffsetCommitRequest."""

    name: str = string(until=9, ignorable=True)
    topic_id: UUID = uuid(since=10, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Message, api_key=8, versions=(2, 10), flexible=8):
    """The request."""

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(since=1, default=-1, ignorable=True)
    member_id: str = string(since=1, ignorable=True)
    group_instance_id: str | None = string(since=7, nullable=7, default=None)
    retention_time_ms: int = int64(since=2, until=4, default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Message):
    """`Partitions` of OffsetCommitResponse."""

    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Message):
    """`Topics` of OffsetCommitResponse."""

    name: str = string(until=9, ignorable=True)
    topic_id: UUID = uuid(since=10, ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Message, api_key=8, versions=(2, 10), flexible=8):
    """The response."""

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
