"""From one generation to the next: who is waited for, for how long, and what ends the waiting.

After the classic paths of Kafka's `GroupMetadataManager` (prepareRebalance, completeClassicGroupJoin and around).
"""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.coordinator.clock import Now
from oncelog.coordinator.effects import Effects, Reply
from oncelog.coordinator.groups.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from oncelog.coordinator.groups.group import Group, InitialDelay
from oncelog.coordinator.groups.member import Member
from oncelog.coordinator.groups.records import group_record
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.groups.states import GroupState
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from oncelog.protocol.messages.sync_group import SyncGroupResponse


def rebalance_or_complete(registry: Registry, group: Group, effects: Effects, now: Now) -> None:
    """Something about the membership changed: rebalances, or ends the join phase if this was all it waited for."""
    if group.can_rebalance:
        prepare(registry, group, effects, now)
    else:
        complete_if_all_joined(registry, group, effects, now)


def prepare(registry: Registry, group: Group, effects: Effects, now: Now) -> None:
    """Begins the join phase; a new group's lasts as long as the initial delay says."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        for member in group.members.values():
            member.assignment = b""
            answer_sync(registry, group, member, effects, now, error=ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_syncs.clear()
    group.sync_due_ms = None
    initial = group.state is GroupState.EMPTY
    group.transition_to(GroupState.PREPARING_REBALANCE, now.wall_ms)
    if initial:
        delay_ms = registry.config.initial_rebalance_delay_ms
        group.initial_delay = InitialDelay(delay_ms, max(group.rebalance_timeout_ms() - delay_ms, 0))
        _join_until(registry, group, now.steady_ms + delay_ms)
    elif group.all_joined:
        complete(registry, group, effects, now)
    else:
        _join_until(registry, group, now.steady_ms + group.rebalance_timeout_ms())


def complete_if_all_joined(registry: Registry, group: Group, effects: Effects, now: Now) -> None:
    """Ends the join phase when everybody has joined; a new group's ends by time only."""
    initial = group.previous_state is GroupState.EMPTY
    if group.state is GroupState.PREPARING_REBALANCE and not initial and group.all_joined:
        complete(registry, group, effects, now)


def join_phase_over(registry: Registry, group: Group, effects: Effects, now: Now) -> None:
    """The time to join is up; a new group is given more of it while members keep coming."""
    delay = group.initial_delay
    group.join_due_ms = None
    if delay is not None and group.new_member_added and delay.remaining_ms:
        group.new_member_added = False
        next_ms = min(registry.config.initial_rebalance_delay_ms, delay.remaining_ms)
        group.initial_delay = InitialDelay(next_ms, max(delay.remaining_ms - delay.delay_ms, 0))
        _join_until(registry, group, now.steady_ms + next_ms)
        return
    complete(registry, group, effects, now)


def complete(registry: Registry, group: Group, effects: Effects, now: Now) -> None:
    """Makes those who joined the next generation; dynamic members who did not are out."""
    group.join_due_ms = None
    group.initial_delay = None
    for member in tuple(group.members.values()):
        if member.joining is None and not member.is_static:
            group.remove(member.member_id)
    if not group.elect_joined_leader() and group.members:
        # Static members only, and none is back: they keep their places, and there is no one to assign.
        _join_until(registry, group, now.steady_ms + group.rebalance_timeout_ms())
        return
    group.next_generation(now.wall_ms)
    if not group.members:
        registry.write(group_record(group, {}), effects)
        return
    for member in group.members.values():
        group.pending_syncs.add(member.member_id)
        answer_join(registry, group, member, effects, now)
    group.sync_due_ms = now.steady_ms + group.rebalance_timeout_ms()
    registry.wake(group, group.sync_due_ms)


def sync_phase_over(registry: Registry, group: Group, effects: Effects, now: Now) -> None:
    """Members who joined but never asked for their assignment are out (KAFKA-12907)."""
    group.sync_due_ms = None
    if group.pending_syncs:
        for member_id in tuple(group.pending_syncs):
            group.remove(member_id)
        prepare(registry, group, effects, now)


def expire_members(registry: Registry, group: Group, effects: Effects, now: Now) -> None:
    """Members, and member ids handed out, that were not heard of for too long are out."""
    for member_id, due_ms in tuple(group.pending_joins.items()):
        if due_ms <= now.steady_ms and member_id in group.pending_joins:
            group.remove(member_id)
            if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
                complete(registry, group, effects, now)
    for member in tuple(group.members.values()):
        if member.due_ms is None or member.due_ms > now.steady_ms or group.members.get(member.member_id) is not member:
            continue
        if member.heartbeat_satisfied:
            registry.heard(group, member, now)  # it is we who make it wait
        else:
            expel(registry, group, member, effects, now)


def expel(registry: Registry, group: Group, member: Member, effects: Effects, now: Now) -> None:
    """Removes a member; the others rebalance."""
    refuse_join(member, effects, ErrorCode.UNKNOWN_MEMBER_ID)
    group.remove(member.member_id)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare(registry, group, effects, now)
    elif group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
        complete(registry, group, effects, now)


def admit(registry: Registry, group: Group, member: Member, effects: Effects, now: Now) -> None:
    """Takes in a member whose request waits for the end of the join phase."""
    member.is_new = True
    if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
        group.new_member_added = True
    group.add(member)
    registry.heard(group, member, now, NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance_or_complete(registry, group, effects, now)


# -- answers --------------------------------------------------------------------------------------------------------


def join_response(group: Group, member_id: str, *, with_members: bool | None = None) -> JoinGroupResponse:
    """The answer to a member of the current generation; its leader is told the members."""
    if with_members is None:
        with_members = group.leader == member_id
    return JoinGroupResponse(
        member_id=member_id,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        members=joined_members(group, group.members.values()) if with_members else [],
    )


def joined_members(group: Group, members: Iterable[Member]) -> list[JoinGroupResponseMember]:
    """What the leader is told of `members`."""
    assert group.protocol is not None
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(group.protocol),
        )
        for member in members
    ]


def answer_join(registry: Registry, group: Group, member: Member, effects: Effects, now: Now) -> None:
    """Tells a member that its generation has begun."""
    if member.joining is not None:
        effects.replies.append(Reply(member.joining, join_response(group, member.member_id)))
        member.joining = None
    member.is_new = False
    registry.heard(group, member, now)


def refuse_join(member: Member, effects: Effects, error: ErrorCode, member_id: str = "") -> None:
    """Ends a member's waiting for the next generation with an error."""
    if member.joining is not None:
        response = JoinGroupResponse(member_id=member_id, error_code=error, protocol_name=None)
        effects.replies.append(Reply(member.joining, response))
        member.joining = None


def answer_sync(
    registry: Registry,
    group: Group,
    member: Member,
    effects: Effects,
    now: Now,
    *,
    error: ErrorCode = ErrorCode.NONE,
    assignment: bytes = b"",
) -> None:
    """Gives a waiting member its assignment, or an error."""
    if member.syncing is None:
        return
    response = SyncGroupResponse(error_code=error)
    if error is ErrorCode.NONE:
        response = SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
        )
    effects.replies.append(Reply(member.syncing, response))
    member.syncing = None
    registry.heard(group, member, now)


def _join_until(registry: Registry, group: Group, due_ms: int) -> None:
    group.join_due_ms = due_ms
    registry.wake(group, due_ms)
