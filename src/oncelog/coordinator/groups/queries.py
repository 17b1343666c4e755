"""ListGroups and DescribeGroups (KIP-518, 848, 1043)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from oncelog.coordinator.groups.group import Group, GroupState, Member
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from oncelog.protocol.messages.list_groups import ListedGroup, ListGroupsRequest

GROUP_TYPE = "classic"
"""The only type of group here, spelled as in Kafka's coordinator (`Group.GroupType`)."""
STATE_NAMES = frozenset(state.value.lower() for state in GroupState)
"""The valid states of a filter, in lower case."""
_KNOWS_GROUP_NOT_FOUND = 6


def list_groups(groups: Iterable[Group], request: ListGroupsRequest) -> list[ListedGroup]:
    """Return the groups that pass the filters, which ignore case. An empty filter lets all groups pass."""
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    if types and GROUP_TYPE.lower() not in types:
        return []
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=GROUP_TYPE,
        )
        for group in groups
        if not states or group.state.value.lower() in states
    ]


def describe_group(groups: Mapping[str, Group], group_id: str, version: int) -> DescribedGroup:
    """Return the description of a group. A stable group shows its members' metadata and assignments."""
    group = groups.get(group_id)
    if group is None:
        return unknown(group_id, version)
    stable = group.state is GroupState.STABLE
    describe: Callable[[Member], DescribedGroupMember] = _without_metadata
    if stable and group.protocol is not None:
        protocol = group.protocol

        def describe(member: Member) -> DescribedGroupMember:
            return _with_metadata(member, protocol)

    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=[describe(member) for member in group.members.values()],
    )


def unknown(group_id: str, version: int) -> DescribedGroup:
    """Return the description of a group that does not exist: state Dead, and an error since version 6."""
    group = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if version >= _KNOWS_GROUP_NOT_FOUND:
        group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        group.error_message = f"Group {group_id} not found."
    return group


def _without_metadata(member: Member) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
    )


def _with_metadata(member: Member, protocol: str) -> DescribedGroupMember:
    described_member = _without_metadata(member)
    described_member.member_metadata = member.metadata(protocol)
    described_member.member_assignment = member.assignment
    return described_member
