"""Heartbeat: keep the session of a classic group's member alive."""

from __future__ import annotations

from oncelog.protocol.schema import Message, int16, int32, string


class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible=4):
    """The request."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3, default=None)


class HeartbeatResponse(Message, api_key=12, versions=(0, 4), flexible=4):
    """The response."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
