"""Records of `__consumer_offsets` for classic groups."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, data, int32, int64, string


class GroupMetadataKey(Message, versions=(2, 2)):
    """GroupMetadataKey."""

    group: str = string()


class MemberMetadata(Message):
    """Shared by several fields of GroupMetadataValue."""

    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3, default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(since=1, default=-1, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = data()
    assignment: bytes = data()


class GroupMetadataValue(Message, versions=(0, 4), flexible=4):
    """GroupMetadataValue."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable=0)
    leader: str | None = string(nullable=0)
    current_state_timestamp: int = int64(since=2, default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)
