"""One operation on one group, and the steps from one generation to the next.

Source: Kafka's `GroupMetadataManager` (`prepareRebalance`, `completeClassicGroupJoin` and related methods).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oncelog.coordinator.effects import CoordinatorRecord, Effects, Reply
from oncelog.coordinator.groups.classic.group import ClassicGroup, GroupState, InitialDelay
from oncelog.coordinator.groups.classic.member import Member
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.timers import Now
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from oncelog.protocol.messages.sync_group import SyncGroupResponse

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a member that has never been in a generation may wait before it has to join again (KAFKA-7610)."""


class GroupOperation:
    """One request, or one deadline, of one group.

    It holds the group, the registry of all groups, the effects that it adds to, and the time. It changes the group's
    soft state at once. Its durable state changes when the coordinator replays the records (`write`).
    """

    def __init__(self, registry: Registry, group: ClassicGroup, effects: Effects, now: Now) -> None:
        """`effects` may be shared by the operations of one tick."""
        self.registry = registry
        self.group = group
        self.effects = effects
        self.now = now

    # -- effects ------------------------------------------------------------------------------------------------

    def reply(self, token: Any, response: Any) -> None:
        """Answer a request."""
        self.effects.replies.append(Reply(token, response))

    def write(self, record: CoordinatorRecord) -> None:
        """Write a record of the group, which `ClassicGroup.apply` applies when it is in the log."""
        self.effects.records.append(record)

    # -- time ---------------------------------------------------------------------------------------------------

    def wake(self, due_ms: int) -> None:
        """Make sure that `tick` of the group runs at `due_ms` or earlier."""
        self.registry.wake(self.group.group_id, due_ms)

    def touch_session(self, member: Member, timeout_ms: int | None = None) -> None:
        """Restart a member's session, with `timeout_ms` instead of its own timeout if it is given."""
        member.due_ms = self.now.steady_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.wake(member.due_ms)

    def tick(self) -> None:
        """Process all deadlines of the group that have passed."""
        group, now_ms = self.group, self.now.steady_ms
        self._expire_members()
        if group.join_due_ms is not None and group.join_due_ms <= now_ms:
            self._end_join_phase()
        if group.sync_due_ms is not None and group.sync_due_ms <= now_ms:
            self._end_sync_phase()
        next_due_ms = group.next_due_ms()
        if next_due_ms is not None:
            self.wake(next_due_ms)

    def _expire_members(self) -> None:
        """Remove the members, and the member ids without a member, whose time is up."""
        group, now_ms = self.group, self.now.steady_ms
        for member_id, due_ms in tuple(group.pending_joins.items()):
            if due_ms <= now_ms and member_id in group.pending_joins:
                group.remove(member_id)
                if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
                    self._complete_join()
        for member in tuple(group.members.values()):
            if member.due_ms is None or member.due_ms > now_ms or group.members.get(member.member_id) is not member:
                continue
            if member.heartbeat_satisfied:
                self.touch_session(member)
            else:
                self._expel(member)

    def _expel(self, member: Member) -> None:
        """Remove a member. The others rebalance."""
        group = self.group
        self.refuse_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member.member_id)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance()
        elif group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            self._complete_join()

    def _end_join_phase(self) -> None:
        """End the join phase, because its time is up. A new group gets more time while members keep joining."""
        group = self.group
        delay = group.initial_delay
        group.join_due_ms = None
        if delay is not None and group.new_member_added and delay.remaining_ms:
            group.new_member_added = False
            next_ms = min(self.registry.config.initial_rebalance_delay_ms, delay.remaining_ms)
            group.initial_delay = InitialDelay(next_ms, max(delay.remaining_ms - delay.delay_ms, 0))
            self._wait_for_joins(next_ms)
            return
        self._complete_join()

    def _end_sync_phase(self) -> None:
        """Remove the members that joined, but did not send SyncGroup before the deadline (KAFKA-12907).

        If all members have sent it, but the group is not stable, the leader's assignment could not be written, and the
        leader has not sent it again. In this case, Kafka rebalances at once. Here, the leader may retry until this
        deadline.
        """
        group = self.group
        group.sync_due_ms = None
        if group.pending_syncs or group.state is GroupState.COMPLETING_REBALANCE:
            for member_id in tuple(group.pending_syncs):
                group.remove(member_id)
            self.prepare_rebalance()

    # -- rebalance ----------------------------------------------------------------------------------------------

    def admit(self, member: Member) -> None:
        """Add a member, whose request waits for the end of the join phase."""
        group = self.group
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member)
        self.touch_session(member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.rebalance_or_complete_join()

    def rebalance_or_complete_join(self) -> None:
        """Start a rebalance after a change of the members. During a join phase, end it if all have joined."""
        if self.group.can_rebalance:
            self.prepare_rebalance()
        else:
            self.complete_join_if_all_joined()

    def prepare_rebalance(self) -> None:
        """Start the join phase. In a new group, it takes the initial delay."""
        group = self.group
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                self.refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        group.sync_due_ms = None
        initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, self.now.wall_ms)
        if initial:
            delay_ms = self.registry.config.initial_rebalance_delay_ms
            group.initial_delay = InitialDelay(delay_ms, max(group.rebalance_timeout_ms() - delay_ms, 0))
            self._wait_for_joins(delay_ms)
        elif group.all_joined:
            self._complete_join()
        else:
            self._wait_for_joins(group.rebalance_timeout_ms())

    def complete_join_if_all_joined(self) -> None:
        """End the join phase if all members have joined. The first join phase of a group ends by time only."""
        group = self.group
        initial = group.previous_state is GroupState.EMPTY
        if group.state is GroupState.PREPARING_REBALANCE and not initial and group.all_joined:
            self._complete_join()

    def _complete_join(self) -> None:
        """Start the next generation with the members that have joined. Remove the dynamic ones that have not."""
        group = self.group
        group.join_due_ms = None
        group.initial_delay = None
        for member in tuple(group.members.values()):
            if member.joining is None and not member.is_static:
                group.remove(member.member_id)
        if not group.elect_joined_leader() and group.members:
            # All members are static and none has rejoined. They stay, but no member can assign partitions yet.
            self._wait_for_joins(group.rebalance_timeout_ms())
            return
        group.next_generation(self.now.wall_ms)
        if not group.members:
            self.write(group.record({}))
            return
        for member in group.members.values():
            group.pending_syncs.add(member.member_id)
            self._answer_join(member)
        group.sync_due_ms = self.now.steady_ms + group.rebalance_timeout_ms()
        self.wake(group.sync_due_ms)

    def _wait_for_joins(self, wait_ms: int) -> None:
        self.group.join_due_ms = self.now.steady_ms + wait_ms
        self.wake(self.group.join_due_ms)

    # -- responses to waiting members -----------------------------------------------------------------------------

    def _answer_join(self, member: Member) -> None:
        if member.joining is not None:
            self.reply(member.joining, join_response(self.group, member.member_id))
            member.joining = None
        member.is_new = False
        self.touch_session(member)

    def refuse_join(self, member: Member, error: ErrorCode, member_id: str = "") -> None:
        """Answer a member's waiting JoinGroup, if there is one, with an error."""
        if member.joining is not None:
            self.reply(member.joining, JoinGroupResponse(member_id=member_id, error_code=error, protocol_name=None))
            member.joining = None

    def answer_sync(self, member: Member, assignment: bytes) -> None:
        """Answer a member's waiting SyncGroup, if there is one, with its assignment."""
        self._end_sync(member, sync_response(self.group, assignment))

    def refuse_sync(self, member: Member, error: ErrorCode) -> None:
        """Answer a member's waiting SyncGroup, if there is one, with an error."""
        self._end_sync(member, SyncGroupResponse(error_code=error))

    def _end_sync(self, member: Member, response: SyncGroupResponse) -> None:
        if member.syncing is not None:
            self.reply(member.syncing, response)
            member.syncing = None
            self.touch_session(member)


def join_response(group: ClassicGroup, member_id: str, *, with_members: bool | None = None) -> JoinGroupResponse:
    """Return the response to a member of the current generation. By default, only the leader gets the members."""
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


def joined_members(group: ClassicGroup, members: Iterable[Member]) -> list[JoinGroupResponseMember]:
    """Return `members` as the leader gets them."""
    assert group.protocol is not None
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(group.protocol),
        )
        for member in members
    ]


def sync_response(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    """Return the response with a member's assignment."""
    return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment)
