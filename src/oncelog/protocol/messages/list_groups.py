"""ListGroups: list the groups that a broker coordinates (KIP-518, 848)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int16, int32, string


class ListGroupsRequest(Message, api_key=16, versions=(0, 5), flexible=3):
    """The request."""

    states_filter: list[str] = array("string", since=4)
    types_filter: list[str] = array("string", since=5)


class ListedGroup(Message):
    """`Groups` of ListGroupsResponse."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, ignorable=True)
    group_type: str = string(since=5, ignorable=True)


class ListGroupsResponse(Message, api_key=16, versions=(0, 5), flexible=3):
    """The response."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
