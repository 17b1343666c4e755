"""DescribeGroups: describe the state and the members of classic groups."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, data, int16, int32, string


class DescribeGroupsRequest(Message, api_key=15, versions=(0, 6), flexible=5):
    """The request."""

    groups: list[str] = array("string")
    include_authorized_operations: bool = boolean(since=3)


class DescribedGroupMember(Message):
    """`Members` of DescribeGroupsResponse."""

    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable=4, default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = data()
    member_assignment: bytes = data()


class DescribedGroup(Message):
    """`Groups` of DescribeGroupsResponse."""

    error_code: int = int16()
    error_message: str | None = string(since=6, nullable=6, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=-2147483648)


class DescribeGroupsResponse(Message, api_key=15, versions=(0, 6), flexible=5):
    """The response."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)
