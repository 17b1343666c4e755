"""DeleteGroups: delete groups without members (KIP-229)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int16, int32, string


class DeleteGroupsRequest(Message, api_key=42, versions=(0, 2), flexible=2):
    """The request."""

    groups_names: list[str] = array("string")


class DeletableGroupResult(Message):
    """`Results` of DeleteGroupsResponse."""

    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, api_key=42, versions=(0, 2), flexible=2):
    """The response."""

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
