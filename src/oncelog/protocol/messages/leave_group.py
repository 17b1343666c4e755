"""LeaveGroup: remove members from a classic group (KIP-345)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int16, int32, string


class MemberIdentity(Message):
    """`Members` of LeaveGroupRequest."""

    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable=3, default=None)
    reason: str | None = string(since=5, nullable=5, default=None, ignorable=True)


class LeaveGroupRequest(Message, api_key=13, versions=(0, 5), flexible=4):
    """The request."""

    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(Message):
    """`Members` of LeaveGroupResponse."""

    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable=3)
    error_code: int = int16(since=3)


class LeaveGroupResponse(Message, api_key=13, versions=(0, 5), flexible=4):
    """The response."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)
