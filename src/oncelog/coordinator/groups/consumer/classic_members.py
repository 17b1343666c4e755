"""Members of a consumer group that use the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup (KIP-848).

While a group moves from one protocol to the other, it has members of both. A classic member joins again for each step
towards its target: Heartbeat tells it to. Source: Kafka's `GroupMetadataManager.classicGroupJoinToConsumerGroup` and
the methods after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from oncelog.coordinator.effects import CoordinatorRecord, Effects, Reply
from oncelog.coordinator.groups.classic.group import CONSUMER_PROTOCOL, NO_TIMESTAMP
from oncelog.coordinator.groups.classic.membership import LEAVES_IN_BATCHES, NEEDS_KNOWN_MEMBER_ID, Joining
from oncelog.coordinator.groups.consumer import moves
from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.consumer.joining import join_dynamic, join_static
from oncelog.coordinator.groups.consumer.member import ClassicMember, ConsumerMember, MemberState
from oncelog.coordinator.groups.consumer.sessions import Sessions, Timer
from oncelog.coordinator.groups.consumer.transition import Change, Transitions
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.groups.topics import Topics
from oncelog.coordinator.timers import Now
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from oncelog.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from oncelog.protocol.schema import DecodeError

Removal = Callable[[ConsumerGroup, Collection[str]], list[CoordinatorRecord]]


class ClassicMembers:
    """Handle the requests of the classic protocol for groups of the consumer protocol."""

    def __init__(
        self, registry: Registry, topics: Topics, sessions: Sessions, transitions: Transitions, remove: Removal
    ) -> None:
        """`remove` returns the records that remove members. They may move the group to the classic protocol."""
        self._registry = registry
        self._topics = topics
        self._sessions = sessions
        self._transitions = transitions
        self._remove = remove

    def join(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str, token: Any, now: Now
    ) -> Effects:
        """Handle JoinGroup: the member takes its next step. Other than in a classic group, it waits for nobody."""
        joining = Joining(request, version, client_id, client_host, token)
        try:
            return self._join(joining, now)
        except ProtocolError as error:
            return Effects(replies=[joining.refusal(error.code, "")])

    def _join(self, joining: Joining, now: Now) -> Effects:
        request, group = joining.request, self._find(joining.request.group_id)
        joining.check_session_timeout(self._registry.config)
        if request.member_id not in group.members and len(group.members) >= self._registry.config.consumer_max_size:
            raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"Group {group.group_id} is full.")
        if not group.supports(request.protocol_type, [name for name, _ in joining.protocols]):
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "The member's protocols are not supported.")
        member_id = request.member_id or self._registry.new_uuid()
        instance = request.group_instance_id
        if not request.member_id and instance is None and joining.version >= NEEDS_KNOWN_MEMBER_ID:
            return Effects(replies=[joining.refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id)])
        try:
            subscription = moves.classic_subscription(joining.protocols)
        except DecodeError as error:
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"malformed subscription: {error}") from error
        if instance is None:
            change = join_dynamic(group, member_id)
        elif request.member_id:
            known = group.check_instance(instance, member_id)
            change = Change(known, known, None)
        else:
            change = join_static(group, member_id, instance, is_classic=True)
        owned = moves.partitions_of(subscription.owned_partitions, self._topics)
        change = change._replace(after=_joined(change.after, joining, subscription), owned=owned)
        moved, found = self._transitions.apply(group, change, now)
        config, moves_back = self._registry.config, False
        if change.replaces is not None and moves.may_downgrade(group, {change.replaces}, config, joining=1):
            others = (each for each in group.members.values() if each.member_id != change.replaces)
            is_stable = group.epoch == group.target_epoch and all(
                each.is_reconciled(group.epoch) for each in (moved, *others)
            )
            since_ms = now.wall_ms if is_stable else NO_TIMESTAMP
            classic = moves.to_classic(group, {change.replaces}, self._topics, joining=moved, since_ms=since_ms)
            moves_back = moves.fits(classic[0], config.record_max_bytes)
            found = classic if moves_back else found
        if not moves_back:
            self._sessions.cancel(group.group_id, member_id, Timer.JOIN)
            self._sessions.touch(group.group_id, moved, now)
            sync_due_ms = now.steady_ms + joining.rebalance_timeout_ms
            self._sessions.start(group.group_id, member_id, Timer.SYNC, sync_due_ms)
        response = JoinGroupResponse(
            member_id=member_id,
            generation_id=moved.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=joining.protocols[0][0],
        )
        return Effects(found, [Reply(joining.token, response)])

    def sync(self, request: SyncGroupRequest, token: Any, now: Now) -> Effects:
        """Handle SyncGroup: the member gets what it owns."""
        try:
            group = self._find(request.group_id)
            member, classic = self._classic_member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
            name, subscription = classic.protocols[0]
            for asked, known in ((request.protocol_type, CONSUMER_PROTOCOL), (request.protocol_name, name)):
                if asked is not None and asked != known:
                    message = f"the group uses protocol {known!r}, but the request has {asked!r}"
                    raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
            if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._ask_to_join(group, member, now)
                message = f"Member {member.member_id} should join group {group.group_id} again."
                raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS, message)
        except ProtocolError as error:
            return Effects(replies=[Reply(token, SyncGroupResponse(error_code=error.code))])
        self._sessions.cancel(group.group_id, member.member_id, Timer.SYNC)
        self._sessions.touch(group.group_id, member, now)
        owned = {topic: frozenset(some) for topic, some in member.assigned.items()}
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=moves.assignment_bytes(owned, subscription, self._topics),
        )
        return Effects(replies=[Reply(token, response)])

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> HeartbeatResponse:
        """Handle Heartbeat. REBALANCE_IN_PROGRESS tells the member to join again for its next step."""
        try:
            group = self._find(request.group_id)
            member, _ = self._classic_member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
        except ProtocolError as error:
            return HeartbeatResponse(error_code=error.code)
        self._sessions.touch(group.group_id, member, now)
        may_step = member.state is MemberState.UNREVOKED_PARTITIONS or (
            member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)
        )
        may_assign = group.epoch > group.target_epoch and self._transitions.may_assign(group, now)
        if member.epoch < group.target_epoch or may_step or may_assign or self._transitions.has_changed(group):
            self._ask_to_join(group, member, now)
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def leave(self, request: LeaveGroupRequest, version: int, token: Any, now: Now) -> Effects:
        """Handle LeaveGroup. An administrator may remove members of both protocols."""
        group = self._find(request.group_id)
        identities = request.members
        if version < LEAVES_IN_BATCHES:
            identities = [MemberIdentity(member_id=request.member_id)]
        leaving: dict[str, None] = {}
        answers = []
        for identity in identities:
            answer = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
            answers.append(answer)
            try:
                member = self._leaving(group, identity)
            except ProtocolError as error:
                answer.error_code = error.code
                continue
            leaving[member.member_id] = None
        found = self._remove(group, leaving) if leaving else []
        response = LeaveGroupResponse(members=answers)
        if version < LEAVES_IN_BATCHES:
            response = LeaveGroupResponse(error_code=answers[0].error_code)
        return Effects(found, [Reply(token, response)])

    @staticmethod
    def _leaving(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
        if identity.group_instance_id is None:
            return group.find_member(identity.member_id)
        known = group.static_member(identity.group_instance_id)
        member_id = identity.member_id or (known.member_id if known is not None else "")
        return group.check_instance(identity.group_instance_id, member_id)

    @staticmethod
    def _classic_member(
        group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerMember, ClassicMember]:
        member = group.identified(member_id, instance_id)
        if member.classic is None:
            message = f"Member {member_id} does not use the classic protocol."
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member, member.classic

    def _ask_to_join(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        due_ms = now.steady_ms + member.rebalance_timeout_ms
        self._sessions.start_if_absent(group.group_id, member.member_id, Timer.JOIN, due_ms)

    def _find(self, group_id: str) -> ConsumerGroup:
        group = self._registry.find(group_id, ConsumerGroup)
        assert group is not None, "the coordinator calls this for consumer groups only"
        return group


def _joined(member: ConsumerMember, joining: Joining, subscription: ConsumerProtocolSubscription) -> ConsumerMember:
    """Return the member with what its JoinGroup says of it."""
    instance = joining.request.group_instance_id
    return replace(
        member,
        instance_id=member.instance_id if instance is None else instance,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=joining.rebalance_timeout_ms,
        topics=frozenset(subscription.topics),
        pattern="",
        client_id=joining.client_id,
        client_host=joining.client_host,
        classic=ClassicMember(joining.request.session_timeout_ms, joining.protocols),
    )


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.epoch:
        message = (
            f"The request generation id {generation} is not equal to the member epoch {member.epoch} of member "
            f"{member.member_id}."
        )
        raise ProtocolError(ErrorCode.ILLEGAL_GENERATION, message)
