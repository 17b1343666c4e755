"""The classic groups of one coordinator: their requests, and what they do at a deadline and after a load."""

from __future__ import annotations

from typing import Any, ClassVar

from oncelog.coordinator.effects import Effects, Reply
from oncelog.coordinator.groups.classic import membership
from oncelog.coordinator.groups.classic.group import KEY_VERSION, NO_TIMESTAMP, ClassicGroup, GroupState
from oncelog.coordinator.groups.classic.membership import Joining
from oncelog.coordinator.groups.classic.operation import GroupOperation
from oncelog.coordinator.groups.classic.queries import described, unknown
from oncelog.coordinator.groups.group import Layouts
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.timers import Now
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.describe_groups import DescribedGroup
from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey, GroupMetadataValue
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.join_group import JoinGroupRequest
from oncelog.protocol.messages.leave_group import LeaveGroupRequest
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class ClassicGroups:
    """Handle the requests of the classic protocol. Each becomes a `GroupOperation`, which `membership` carries out.

    An empty group of another kind becomes a classic group with its first member. The other requests do not find it, so
    their error is UNKNOWN_MEMBER_ID. Source: Kafka's `GroupMetadataManager`.
    """

    name = ClassicGroup.KIND
    layouts: ClassVar[Layouts] = {KEY_VERSION: (GroupMetadataKey, GroupMetadataValue)}

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    # -- requests -----------------------------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str, token: Any, now: Now
    ) -> Effects:
        """Handle JoinGroup. The reply often waits for other members, or for the initial rebalance delay."""
        joining = Joining(request, version, client_id, client_host, token)
        try:
            joining.check_session_timeout(self._registry.config)
        except ProtocolError as error:
            return Effects(replies=[joining.refusal(error.code)])
        group = self._find(request.group_id)
        other = self._registry.groups.get(request.group_id) if group is None else None
        if other is not None and not other.is_empty:
            return Effects(replies=[joining.refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")])
        is_new_group = group is None
        if group is None:
            if request.member_id:
                return Effects(replies=[joining.refusal(ErrorCode.UNKNOWN_MEMBER_ID)])
            group = self._registry.add(ClassicGroup(request.group_id, now.wall_ms))
        operation = self._operation(group, now)
        if other is not None:
            operation.effects.records += other.tombstones()
        membership.join(operation, joining)
        if is_new_group:
            operation.write(group.new_record())
        return operation.effects

    def sync(self, request: SyncGroupRequest, token: Any, now: Now) -> Effects:
        """Handle SyncGroup. A follower's reply waits for the leader."""
        group = self._find(request.group_id)
        if group is None:
            return Effects(replies=[Reply(token, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))])
        operation = self._operation(group, now)
        membership.sync(operation, request, token)
        return operation.effects

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> HeartbeatResponse:
        """Handle Heartbeat. It never writes, so it returns the response instead of Effects."""
        group = self._find(request.group_id)
        if group is None:
            return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        return HeartbeatResponse(error_code=membership.heartbeat(self._operation(group, now), request))

    def leave(self, request: LeaveGroupRequest, version: int, token: Any, now: Now) -> Effects:
        """Handle LeaveGroup of one member or several."""
        group = self._find(request.group_id)
        if group is None:
            return Effects(replies=[Reply(token, membership.leave(None, request, version))])
        operation = self._operation(group, now)
        operation.reply(token, membership.leave(operation, request, version))
        return operation.effects

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """Handle DescribeGroups for one group."""
        group = self._find(group_id)
        if group is None:
            is_other = self._is_of_another_kind(group_id)
            return unknown(group_id, version, "is not a classic group" if is_other else "not found")
        return described(group)

    # -- the kind -----------------------------------------------------------------------------------------------

    def replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Apply a record: a group's newest generation, or its deletion."""
        if value is not None:
            is_new = self._find(key.group) is None
            self.find_or_create(key.group).apply(value)
            if is_new:
                self._registry.wake_new(key.group)
            return
        group = self._registry.drop(key.group, ClassicGroup)
        if group is not None:
            group.transition_to(GroupState.DEAD, NO_TIMESTAMP)

    def find_or_create(self, group_id: str) -> ClassicGroup:
        """Return the group. If there is none, create it, with NO_TIMESTAMP."""
        return self._find(group_id) or self._registry.add(ClassicGroup(group_id))

    def loaded(self, group: ClassicGroup, effects: Effects, now: Now) -> None:
        """Start the members' sessions. Rebalance a group that exceeds the size limit, which may have changed.

        A group that has just moved from the consumer protocol rebalances, too.
        """
        operation = GroupOperation(self._registry, group, effects, now)
        for member in group.members.values():
            operation.touch_session(member)
        is_too_large = len(group.members) > self._registry.config.max_size
        if group.has_moved or (group.state is GroupState.STABLE and is_too_large):
            operation.prepare_rebalance()

    def tick(self, group: ClassicGroup, effects: Effects, now: Now) -> None:
        """End the join or sync phase, and expire members and their ids."""
        if group.has_moved or any(member.due_ms is None for member in group.members.values()):
            self.loaded(group, effects, now)
        GroupOperation(self._registry, group, effects, now).tick()

    def committed_by(self, group: ClassicGroup, member_id: str, now: Now) -> None:
        """Restart the member's session, as in Kafka."""
        member = group.members.get(member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._operation(group, now).touch_session(member)

    def topics_changed(self, topics: frozenset[str], effects: Effects, now: Now) -> None:
        """Do nothing: the members watch the topics, and join again."""

    def _find(self, group_id: str) -> ClassicGroup | None:
        return self._registry.find(group_id, ClassicGroup)

    def _is_of_another_kind(self, group_id: str) -> bool:
        group = self._registry.groups.get(group_id)
        return group is not None and not isinstance(group, ClassicGroup)

    def _operation(self, group: ClassicGroup, now: Now) -> GroupOperation:
        return GroupOperation(self._registry, group, Effects(), now)
