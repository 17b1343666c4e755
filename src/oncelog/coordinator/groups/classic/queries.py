"""DescribeGroups of classic groups (KIP-848, 1043)."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.coordinator.groups.classic.group import ClassicGroup, GroupState
from oncelog.coordinator.groups.classic.member import Member
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember

_KNOWS_GROUP_NOT_FOUND = 6


def described(group: ClassicGroup) -> DescribedGroup:
    """Return the description of a group. A stable group shows its members' metadata and assignments."""
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


def unknown(group_id: str, version: int, reason: str = "not found") -> DescribedGroup:
    """Return the description of a group that does not exist: state Dead, and an error since version 6."""
    group = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if version >= _KNOWS_GROUP_NOT_FOUND:
        group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        group.error_message = f"Group {group_id} {reason}."
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
