"""Records of `__consumer_offsets` for committed offsets."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, int32, int64, string, uuid


class OffsetCommitKey(Message, versions=(0, 1)):
    """OffsetCommitKey."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions=(0, 4), flexible=4):
    """OffsetCommitValue."""

    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=-1, ignorable=True)
    topic_id: UUID = uuid(since=4, tag=0, ignorable=True)
