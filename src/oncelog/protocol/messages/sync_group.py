"""SyncGroup: send the assignment of a generation, or fetch the member's part of it."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, data, int16, int32, string


class SyncGroupRequestAssignment(Message):
    """`Assignments` of SyncGroupRequest."""

    member_id: str = string()
    assignment: bytes = data()


class SyncGroupRequest(Message, api_key=14, versions=(0, 5), flexible=4):
    """The request."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3, default=None)
    protocol_type: str | None = string(since=5, nullable=5, default=None, ignorable=True)
    protocol_name: str | None = string(since=5, nullable=5, default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message, api_key=14, versions=(0, 5), flexible=4):
    """The response."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable=5, default=None, ignorable=True)
    protocol_name: str | None = string(since=5, nullable=5, default=None, ignorable=True)
    assignment: bytes = data()
