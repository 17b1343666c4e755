"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of the classic protocol (KIP-345, 394, 559, 800, 814).

Source: Kafka's `GroupMetadataManager`. The checks are the same, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oncelog.coordinator.effects import Reply
from oncelog.coordinator.groups.classic.group import ClassicGroup, GroupState
from oncelog.coordinator.groups.classic.member import Member, Protocols
from oncelog.coordinator.groups.classic.operation import GroupOperation, join_response, joined_members, sync_response
from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from oncelog.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from oncelog.protocol.schema import MAX_STRING

NEEDS_KNOWN_MEMBER_ID = 4
"""From this version of JoinGroup on, a dynamic member joins in two steps (KIP-394)."""
SKIPS_ASSIGNMENT = 9
"""From this version of JoinGroup on, a static leader need not assign partitions again (KIP-814)."""
LEAVES_IN_BATCHES = 3
_REBALANCE_TIMEOUT_SINCE = 1


@dataclass(frozen=True, slots=True)
class Joining:
    """One JoinGroup request and its token. `client_host` begins with a slash, as in Kafka."""

    request: JoinGroupRequest
    version: int
    client_id: str
    client_host: str
    token: Any

    @property
    def protocols(self) -> Protocols:
        """Return the member's protocols, in its order of preference."""
        return tuple((protocol.name, bytes(protocol.metadata)) for protocol in self.request.protocols)

    @property
    def rebalance_timeout_ms(self) -> int:
        """Return the rebalance timeout. In version 0, it is the session timeout."""
        if self.version < _REBALANCE_TIMEOUT_SINCE:
            return self.request.session_timeout_ms
        return self.request.rebalance_timeout_ms

    def check_session_timeout(self, config: GroupConfig) -> None:
        """Raise INVALID_SESSION_TIMEOUT unless the session timeout is within the broker's limits."""
        least_ms, most_ms = config.min_session_timeout_ms, config.max_session_timeout_ms
        if not least_ms <= self.request.session_timeout_ms <= most_ms:
            message = f"the session timeout must be {least_ms} to {most_ms} ms"
            raise ProtocolError(ErrorCode.INVALID_SESSION_TIMEOUT, message)

    def member(self, member_id: str) -> Member:
        """Create the member that joins."""
        return Member(
            member_id=member_id,
            group_instance_id=self.request.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.request.session_timeout_ms,
            protocol_type=self.request.protocol_type,
            protocols=self.protocols,
            joining=self.token,
        )

    def refusal(self, error: ErrorCode, member_id: str | None = None) -> Reply:
        """Return the response with an error. By default, its member id is that of the request."""
        known = self.request.member_id if member_id is None else member_id
        return Reply(self.token, JoinGroupResponse(error_code=error, member_id=known, protocol_name=None))


# -- JoinGroup ------------------------------------------------------------------------------------------------------


def join(operation: GroupOperation, joining: Joining) -> None:
    """Answer a JoinGroup at once, or let it wait for the end of the join phase."""
    group, member_id = operation.group, joining.request.member_id
    if not _has_capacity(group, member_id, operation.registry.config.max_size):
        group.remove(member_id)
        operation.effects.replies.append(joining.refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
        operation.complete_join_if_all_joined()  # the join phase may have waited for this member only
    elif not member_id:
        _join_new(operation, joining)
    else:
        _join_known(operation, joining)


def _has_capacity(group: ClassicGroup, member_id: str, max_size: int) -> bool:
    member = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        # The first members to join keep their places, so a group over its size limit shrinks at its next rebalance.
        return (member is not None and member.joining is not None) or group.waiting_joins < max_size
    return member is not None or len(group.members) < max_size


def _join_new(operation: GroupOperation, joining: Joining) -> None:
    group, request, replies = operation.group, joining.request, operation.effects.replies
    if not group.supports(request.protocol_type, joining.protocols):
        replies.append(joining.refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""))
        return
    instance = request.group_instance_id
    member_id = f"{joining.client_id if instance is None else instance}-{operation.registry.new_uuid()}"
    if len(member_id.encode()) > MAX_STRING:  # no response or record can contain it; Kafka fails to encode them
        replies.append(joining.refusal(ErrorCode.UNKNOWN_SERVER_ERROR, ""))
    elif instance is None and joining.version >= NEEDS_KNOWN_MEMBER_ID:
        due_ms = operation.now.steady_ms + request.session_timeout_ms
        group.pending_joins[member_id] = due_ms
        operation.wake(due_ms)
        replies.append(joining.refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    elif instance is not None and instance in group.static_members:
        _replace_static(operation, joining, group.static_members[instance], joining.member(member_id))
    else:
        operation.admit(joining.member(member_id))


def _join_known(operation: GroupOperation, joining: Joining) -> None:
    group, request, replies = operation.group, joining.request, operation.effects.replies
    if not group.supports(request.protocol_type, joining.protocols):
        replies.append(joining.refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    if request.member_id in group.pending_joins and request.group_instance_id is None:
        operation.admit(joining.member(request.member_id))
        return
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
    except ProtocolError as error:
        replies.append(joining.refusal(error.code))
        return
    if _starts_rebalance(group, member, joining):
        if member.joining is not None and member.joining is not joining.token:
            # A retry over another connection: the client no longer reads the response to its first request.
            operation.refuse_join(member, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        group.update(member, joining.protocols, joining.token)
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        operation.rebalance_or_complete_join()
    elif group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        # A retry after a lost response: send the response again.
        with_members = group.state is GroupState.COMPLETING_REBALANCE and group.leader == member.member_id
        operation.reply(joining.token, join_response(group, member.member_id, with_members=with_members))
    else:
        replies.append(joining.refusal(ErrorCode.UNKNOWN_MEMBER_ID))


def _starts_rebalance(group: ClassicGroup, member: Member, joining: Joining) -> bool:
    """Return whether a member's JoinGroup changes its subscription, or the leader requests a new assignment."""
    changed = member.protocols != joining.protocols
    return {
        GroupState.PREPARING_REBALANCE: True,
        GroupState.COMPLETING_REBALANCE: changed,
        GroupState.STABLE: changed or group.leader == member.member_id,
    }.get(group.state, False)


def _replace_static(operation: GroupOperation, joining: Joining, old_id: str, new: Member) -> None:
    """Replace a static member that restarted. A stable group needs no rebalance for it."""
    group = operation.group
    old = group.members[old_id]
    new.client_id, new.client_host = old.client_id, old.client_host  # Kafka keeps them, too
    if group.state is GroupState.STABLE and group.select_protocol(instead=(old_id, new)) == group.protocol:
        _replace_in_stable(operation, joining, old_id, new)
        return
    operation.refuse_join(old, ErrorCode.FENCED_INSTANCE_ID, old_id)
    operation.refuse_sync(old, ErrorCode.FENCED_INSTANCE_ID)
    group.replace(old_id, new)
    operation.touch_session(new)
    operation.rebalance_or_complete_join()


def _replace_in_stable(operation: GroupOperation, joining: Joining, old_id: str, new: Member) -> None:
    """Replace a static member when the record is in the log. If the append fails, the group stays as it is."""
    group, instance = operation.group, new.group_instance_id
    assert instance is not None
    new.joining = None
    members = [new if member.member_id == old_id else member for member in group.members.values()]
    leads = group.leader == old_id
    skips = joining.version >= SKIPS_ASSIGNMENT
    response = JoinGroupResponse(
        member_id=new.member_id,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        # An older client must not become the leader: the group would not accept its assignment.
        leader=(new.member_id if leads and skips else group.leader) or "",
        members=joined_members(group, members) if leads and skips else [],
    )
    if skips:
        response.skip_assignment = leads
    operation.reply(joining.token, response)
    operation.touch_session(new)
    group.returning[instance] = new
    assignments = {member.member_id: member.assignment for member in group.members.values()}
    assignments[new.member_id] = assignments.pop(old_id)
    leader = new.member_id if leads else None
    operation.write(group.record(assignments, members=members, leader=leader))


# -- SyncGroup ------------------------------------------------------------------------------------------------------


def sync(operation: GroupOperation, request: SyncGroupRequest, token: Any) -> None:
    """Answer a SyncGroup at once, or let it wait for the leader's."""
    group = operation.group
    try:
        member = _check_sync(group, request)
    except ProtocolError as error:
        operation.reply(token, SyncGroupResponse(error_code=error.code))
        return
    group.pending_syncs.discard(member.member_id)
    if group.state is GroupState.STABLE:
        group.end_sync_phase_if_all_synced()
        operation.reply(token, sync_response(group, member.assignment))
        return
    if member.syncing is not None and member.syncing is not token:
        operation.refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
    member.syncing = token
    if group.leader == member.member_id:
        _assign(operation, {entry.member_id: bytes(entry.assignment) for entry in request.assignments})


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> Member:
    """Return the member. Raises ProtocolError if the request is not one of the current generation."""
    if group.state is GroupState.EMPTY:
        raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id!r} has no members")
    member = group.check_member(request.member_id, request.group_instance_id)
    group.check_generation(request.generation_id)
    for asked, known in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol)):
        if asked is not None and known is not None and asked != known:
            message = f"group {group.group_id!r} uses protocol {known!r}, but the request has {asked!r}"
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
    if group.state is GroupState.PREPARING_REBALANCE:
        message = f"group {group.group_id!r} is rebalancing: some members have not joined yet"
        raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS, message)
    return member


def _assign(operation: GroupOperation, assigned: dict[str, bytes]) -> None:
    """Write the generation with the leader's assignment, and answer all members that wait for it."""
    group = operation.group
    assignments = {member_id: assigned.get(member_id, b"") for member_id in group.members}
    for member in group.members.values():
        operation.answer_sync(member, assignments[member.member_id])
    operation.write(group.record(assignments))
    operation.registry.statistics.completed_rebalances += 1


# -- Heartbeat ------------------------------------------------------------------------------------------------------


def heartbeat(operation: GroupOperation, request: HeartbeatRequest) -> ErrorCode:
    """Restart the member's session. Return REBALANCE_IN_PROGRESS if the member has to join again."""
    group = operation.group
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
        group.check_generation(request.generation_id)
    except ProtocolError as error:
        return error.code
    operation.touch_session(member)
    preparing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


# -- LeaveGroup -----------------------------------------------------------------------------------------------------


def leave(operation: GroupOperation | None, request: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
    """Remove members, each with its own error. No operation: the group does not exist.

    Versions before 3 name one member, whose error is that of the response.
    """
    identities = request.members
    if version < LEAVES_IN_BATCHES:
        identities = [MemberIdentity(member_id=request.member_id)]
    responses = []
    for identity in identities:
        error = ErrorCode.UNKNOWN_MEMBER_ID if operation is None else _leave_one(operation, identity)
        responses.append(
            MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error)
        )
    if operation is not None and any(response.error_code == ErrorCode.NONE for response in responses):
        if operation.group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            operation.prepare_rebalance()
        elif operation.group.state is GroupState.PREPARING_REBALANCE:
            operation.complete_join_if_all_joined()
    if version < LEAVES_IN_BATCHES:
        return LeaveGroupResponse(error_code=responses[0].error_code)
    return LeaveGroupResponse(members=responses)


def _leave_one(operation: GroupOperation, identity: MemberIdentity) -> ErrorCode:
    group, member_id = operation.group, identity.member_id
    if not member_id:
        # An administrator removes a static member by its instance id alone.
        found = group.static_members.get(identity.group_instance_id or "")
        if found is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = found
    elif member_id in group.pending_joins:
        group.remove(member_id)
        return ErrorCode.NONE
    else:
        try:
            group.check_member(member_id, identity.group_instance_id)
        except ProtocolError as error:
            return error.code
    member = group.members[member_id]
    operation.refuse_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
    operation.refuse_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
    group.remove(member_id)
    return ErrorCode.NONE
