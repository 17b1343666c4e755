"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of the classic protocol (KIP-345, 394, 559, 800, 814).

After the classic paths of Kafka's `GroupMetadataManager`; what it checks, in its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oncelog.coordinator.clock import Now
from oncelog.coordinator.effects import Effects, Reply
from oncelog.coordinator.groups import rebalance
from oncelog.coordinator.groups.group import Group
from oncelog.coordinator.groups.member import Member, Protocols
from oncelog.coordinator.groups.records import group_record, new_group_record
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.groups.states import GroupState
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
"""From this version of JoinGroup on, a static leader is told that it need not assign (KIP-814)."""
LEAVES_IN_BATCHES = 3
_REBALANCE_TIMEOUT_SINCE = 1


@dataclass(frozen=True, slots=True)
class Joining:
    """One JoinGroup request on its way through; `client_host` as Kafka writes it, with a slash in front."""

    request: JoinGroupRequest
    version: int
    client_id: str
    client_host: str
    token: Any

    @property
    def protocols(self) -> Protocols:
        """What the member speaks, the best first."""
        return tuple((protocol.name, bytes(protocol.metadata)) for protocol in self.request.protocols)

    @property
    def rebalance_timeout_ms(self) -> int:
        """Version 0 has only the session time-out."""
        if self.version < _REBALANCE_TIMEOUT_SINCE:
            return self.request.session_timeout_ms
        return self.request.rebalance_timeout_ms

    def member(self, member_id: str) -> Member:
        """The member that it makes."""
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
        """The answer with an error; the member id is the request's own unless another is given."""
        known = self.request.member_id if member_id is None else member_id
        return Reply(self.token, JoinGroupResponse(error_code=error, member_id=known, protocol_name=None))


# -- JoinGroup ------------------------------------------------------------------------------------------------------


def join(registry: Registry, joining: Joining, effects: Effects, now: Now) -> None:
    """Answers at once, or keeps the request until the join phase is over."""
    request = joining.request
    config = registry.config
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        effects.replies.append(joining.refusal(ErrorCode.INVALID_SESSION_TIMEOUT))
        return
    is_new_group = request.group_id not in registry.groups
    if is_new_group and request.member_id:
        effects.replies.append(joining.refusal(ErrorCode.UNKNOWN_MEMBER_ID))
        return
    group = registry.get_or_make(request.group_id, now.wall_ms)
    if not _has_room(registry, group, request.member_id):
        group.remove(request.member_id)
        effects.replies.append(joining.refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
        rebalance.complete_if_all_joined(registry, group, effects, now)  # it may have been the last one awaited
    elif not request.member_id:
        _join_new(registry, group, joining, effects, now)
    else:
        _join_known(registry, group, joining, effects, now)
    if is_new_group:
        registry.write(new_group_record(group), effects)


def _has_room(registry: Registry, group: Group, member_id: str) -> bool:
    member = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        # The first ones back have a place: a group over its size shrinks at its next rebalance.
        return (member is not None and member.joining is not None) or group.waiting_joins < registry.config.max_size
    return member is not None or len(group.members) < registry.config.max_size


def _join_new(registry: Registry, group: Group, joining: Joining, effects: Effects, now: Now) -> None:
    request = joining.request
    if not group.supports(request.protocol_type, joining.protocols):
        effects.replies.append(joining.refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""))
        return
    instance = request.group_instance_id
    member_id = f"{joining.client_id if instance is None else instance}-{registry.new_uuid()}"
    if len(member_id.encode()) > MAX_STRING:  # no answer or record can contain it; Kafka fails to encode them
        effects.replies.append(joining.refusal(ErrorCode.UNKNOWN_SERVER_ERROR, ""))
        return
    if instance is None and joining.version >= NEEDS_KNOWN_MEMBER_ID:
        due_ms = now.steady_ms + request.session_timeout_ms
        group.pending_joins[member_id] = due_ms
        registry.wake(group, due_ms)
        effects.replies.append(joining.refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    elif instance is not None and instance in group.static_members:
        _replace_static(registry, group, joining, member_id, effects, now)
    else:
        rebalance.admit(registry, group, joining.member(member_id), effects, now)


def _join_known(registry: Registry, group: Group, joining: Joining, effects: Effects, now: Now) -> None:
    request = joining.request
    if not group.supports(request.protocol_type, joining.protocols):
        effects.replies.append(joining.refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    if request.member_id in group.pending_joins and request.group_instance_id is None:
        rebalance.admit(registry, group, joining.member(request.member_id), effects, now)
        return
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
    except ProtocolError as error:
        effects.replies.append(joining.refusal(error.code))
        return
    if _begins_rebalance(group, member, joining):
        if member.joining is not None and member.joining is not joining.token:
            # A retry over another connection: the first request has no reader any more.
            rebalance.refuse_join(member, effects, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        group.update(member, joining.protocols, joining.token)
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        rebalance.rebalance_or_complete(registry, group, effects, now)
    elif group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        # The answer got lost: the member may have it again.
        with_members = group.state is GroupState.COMPLETING_REBALANCE and group.leader == member.member_id
        response = rebalance.join_response(group, member.member_id, with_members=with_members)
        effects.replies.append(Reply(joining.token, response))
    else:
        effects.replies.append(joining.refusal(ErrorCode.UNKNOWN_MEMBER_ID))


def _begins_rebalance(group: Group, member: Member, joining: Joining) -> bool:
    """Whether a member's JoinGroup is news: a changed subscription, or the leader asking for a new assignment."""
    changed = member.protocols != joining.protocols
    return {
        GroupState.PREPARING_REBALANCE: True,
        GroupState.COMPLETING_REBALANCE: changed,
        GroupState.STABLE: changed or group.leader == member.member_id,
    }.get(group.state, False)


def _replace_static(
    registry: Registry, group: Group, joining: Joining, new_id: str, effects: Effects, now: Now
) -> None:
    """A static member is back under a new id; while the group is stable it gets its place without a rebalance."""
    instance = joining.request.group_instance_id
    assert instance is not None
    old_id = group.static_members[instance]
    old = group.members[old_id]
    new = joining.member(new_id)
    new.assignment = old.assignment
    new.client_id, new.client_host = old.client_id, old.client_host  # as Kafka keeps them
    if group.state is GroupState.STABLE and group.select_protocol(instead=(old_id, new)) == group.protocol:
        _replace_in_stable(registry, group, joining, old_id, new, effects, now)
        return
    rebalance.refuse_join(old, effects, ErrorCode.FENCED_INSTANCE_ID, old_id)
    rebalance.answer_sync(registry, group, old, effects, now, error=ErrorCode.FENCED_INSTANCE_ID)
    group.replace(old_id, new)
    registry.heard(group, new, now)
    rebalance.rebalance_or_complete(registry, group, effects, now)


def _replace_in_stable(
    registry: Registry, group: Group, joining: Joining, old_id: str, new: Member, effects: Effects, now: Now
) -> None:
    """The group changes when the record is in the log, and not at all if that fails."""
    new.joining = None
    members = [new if member.member_id == old_id else member for member in group.members.values()]
    leads = group.leader == old_id
    skips = joining.version >= SKIPS_ASSIGNMENT
    response = JoinGroupResponse(
        member_id=new.member_id,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        # Older clients must not take themselves for the leader: their assignment would not be handed out.
        leader=(new.member_id if leads and skips else group.leader) or "",
        members=rebalance.joined_members(group, members) if leads and skips else [],
    )
    if skips:
        response.skip_assignment = leads
    effects.replies.append(Reply(joining.token, response))

    def replaced() -> None:
        old = group.replace(old_id, new)
        old.due_ms = None
        registry.heard(group, new, now)

    assignments = {member.member_id: member.assignment for member in members}
    leader = new.member_id if leads else None
    registry.write(group_record(group, assignments, members=members, leader=leader), effects, replaced)


# -- SyncGroup ------------------------------------------------------------------------------------------------------


def sync(registry: Registry, request: SyncGroupRequest, token: Any, effects: Effects, now: Now) -> None:
    """Keeps a follower's request until the leader's has come."""
    group = registry.groups.get(request.group_id)
    if group is None or group.state is GroupState.EMPTY:
        effects.replies.append(_sync_refusal(token, ErrorCode.UNKNOWN_MEMBER_ID))
        return
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
        _check_sync(group, request)
    except ProtocolError as error:
        effects.replies.append(_sync_refusal(token, error.code))
        return
    if group.state is GroupState.PREPARING_REBALANCE:
        effects.replies.append(_sync_refusal(token, ErrorCode.REBALANCE_IN_PROGRESS))
        return
    group.pending_syncs.discard(member.member_id)
    if not group.pending_syncs:
        group.sync_due_ms = None
    if group.state is GroupState.STABLE:
        response = SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
        )
        effects.replies.append(Reply(token, response))
        return
    if member.syncing is not None and member.syncing is not token:
        rebalance.answer_sync(registry, group, member, effects, now, error=ErrorCode.REBALANCE_IN_PROGRESS)
    member.syncing = token
    if group.leader == member.member_id:
        known = group.members
        assigned = {
            entry.member_id: bytes(entry.assignment) for entry in request.assignments if entry.member_id in known
        }
        _hand_out(registry, group, assigned, effects, now)


def _hand_out(registry: Registry, group: Group, assigned: dict[str, bytes], effects: Effects, now: Now) -> None:
    """Writes the generation with its assignment and answers all who wait for theirs."""
    assignments = {member_id: assigned.get(member_id, b"") for member_id in group.members}
    for member in group.members.values():
        assignment = assignments[member.member_id]
        rebalance.answer_sync(registry, group, member, effects, now, assignment=assignment)

    def stable() -> None:
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
        group.transition_to(GroupState.STABLE, now.wall_ms)

    registry.write(group_record(group, assignments), effects, stable)


def _check_sync(group: Group, request: SyncGroupRequest) -> None:
    if request.generation_id != group.generation:
        message = f"generation {request.generation_id}, but the group is in {group.generation}"
        raise ProtocolError(ErrorCode.ILLEGAL_GENERATION, message)
    for asked, known in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol)):
        if asked is not None and known is not None and asked != known:
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{asked} instead of {known}")


def _sync_refusal(token: Any, error: ErrorCode) -> Reply:
    return Reply(token, SyncGroupResponse(error_code=error))


# -- Heartbeat ------------------------------------------------------------------------------------------------------


def heartbeat(registry: Registry, request: HeartbeatRequest, now: Now) -> ErrorCode:
    """Says whether the member has to join again."""
    group = registry.groups.get(request.group_id)
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
    except ProtocolError as error:
        return error.code
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    registry.heard(group, member, now)
    preparing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


# -- LeaveGroup -----------------------------------------------------------------------------------------------------


def leave(
    registry: Registry, request: LeaveGroupRequest, version: int, effects: Effects, now: Now
) -> LeaveGroupResponse:
    """Each member has its own error; versions before 3 name one member and have its error as their own."""
    identities = request.members
    if version < LEAVES_IN_BATCHES:
        identities = [MemberIdentity(member_id=request.member_id)]
    group = registry.groups.get(request.group_id)
    responses = []
    for identity in identities:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _leave_one(group, identity, effects)
        responses.append(
            MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error)
        )
    if group is not None and any(response.error_code == ErrorCode.NONE for response in responses):
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            rebalance.prepare(registry, group, effects, now)
        elif group.state is GroupState.PREPARING_REBALANCE:
            rebalance.complete_if_all_joined(registry, group, effects, now)
    if version < LEAVES_IN_BATCHES:
        return LeaveGroupResponse(error_code=responses[0].error_code)
    return LeaveGroupResponse(members=responses)


def _leave_one(group: Group, identity: MemberIdentity, effects: Effects) -> ErrorCode:
    member_id = identity.member_id
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
    rebalance.refuse_join(member, effects, ErrorCode.UNKNOWN_MEMBER_ID)
    if member.syncing is not None:
        effects.replies.append(_sync_refusal(member.syncing, ErrorCode.UNKNOWN_MEMBER_ID))
        member.syncing = None
    group.remove(member_id)
    return ErrorCode.NONE
