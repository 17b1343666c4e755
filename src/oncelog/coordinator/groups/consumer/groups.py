"""The groups of the consumer protocol of one coordinator: heartbeats, sessions, and their records (KIP-848).

Source: Kafka's `GroupMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from oncelog.coordinator.effects import CoordinatorRecord, Effects, Reply
from oncelog.coordinator.groups.classic.group import ClassicGroup, GroupState
from oncelog.coordinator.groups.classic.operation import GroupOperation
from oncelog.coordinator.groups.consumer import moves, records, replay, requests
from oncelog.coordinator.groups.consumer.classic_members import ClassicMembers
from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.consumer.joining import check_epoch, join_dynamic, join_static
from oncelog.coordinator.groups.consumer.matching import Matches
from oncelog.coordinator.groups.consumer.member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH, ConsumerMember
from oncelog.coordinator.groups.consumer.queries import described
from oncelog.coordinator.groups.consumer.sessions import Sessions
from oncelog.coordinator.groups.consumer.transition import Change, Transitions
from oncelog.coordinator.groups.group import Layouts
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.groups.topics import Topics
from oncelog.coordinator.patterns import subscription
from oncelog.coordinator.timers import Now
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.consumer_group_describe import DescribedGroup
from oncelog.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from oncelog.protocol.messages.consumer_group_records import ConsumerGroupMetadataKey


class ConsumerGroups:
    """Handle the requests of the consumer protocol."""

    name = ConsumerGroup.KIND
    layouts: ClassVar[Layouts] = records.LAYOUTS

    def __init__(self, registry: Registry, topics: Topics) -> None:
        self._registry = registry
        self._topics = topics
        self._sessions = Sessions(registry)
        self._transitions = Transitions(registry, topics)
        self.matches = Matches(registry, self._transitions)
        self.classic_members = ClassicMembers(registry, topics, self._sessions, self._transitions, self._removal)

    # -- requests -----------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client_id: str,
        client_host: str,
        token: Any,
        now: Now,
    ) -> Effects:
        """Handle ConsumerGroupHeartbeat. Raises ProtocolError."""
        requests.check(request, version, self._registry.config.consumer_assignors)
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request, token, now)
        effects = Effects()
        group = self._group(request, effects, now)
        member_id = request.member_id or self._registry.new_uuid()
        most = self._registry.config.consumer_max_size
        if member_id not in group.members and len(group.members) >= most:
            message = f"The consumer group has reached its maximum capacity of {most} members."
            raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        change = _changed(_find(group, request, member_id), request, client_id, client_host)
        if change.after.pattern and change.after.pattern not in group.pattern_users:
            subscription(change.after.pattern)
        moved, found = self._transitions.apply(group, change, now)
        effects.records += found
        known = self._registry.groups.get(request.group_id)
        if known is group and member_id in group.members:  # a new member's session begins when its records are written
            self._sessions.touch(group.group_id, moved, now)
            if moved != change.after:
                self._sessions.moved(group.group_id, moved, now)
        if isinstance(known, ClassicGroup):
            self._refuse_waiting(known, effects, now)
        says_all = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.topic_partitions is not None
        )
        is_told = request.member_epoch == 0 or says_all or _partitions(moved) != _partitions(change.before)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=moved.epoch,
            heartbeat_interval_ms=self._registry.consumer_settings(group.group_id).heartbeat_interval_ms,
            assignment=_assignment(moved) if is_told else None,
        )
        effects.replies.append(Reply(token, response))
        return effects

    def describe(self, group_id: str) -> DescribedGroup:
        """Handle ConsumerGroupDescribe for one group."""
        group = self._registry.find(group_id, ConsumerGroup)
        if group is None:
            error = self._not_found(group_id, "Group")
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=str(error))
        return described(group, self._topics, self._registry.config.consumer_assignors[0])

    def _not_found(self, group_id: str, what: str) -> ProtocolError:
        message = f"{what} {group_id} not found."
        if group_id in self._registry.groups:
            message = f"Group {group_id} is not a consumer group."
        return ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    def _group(self, request: ConsumerGroupHeartbeatRequest, effects: Effects, now: Now) -> ConsumerGroup:
        """Return the group, or a new one for the first member. A classic group becomes a consumer group."""
        known = self._registry.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            return known
        joins = request.member_epoch == 0
        if known is None and joins:
            return ConsumerGroup(request.group_id)
        if not isinstance(known, ClassicGroup) or not joins:
            raise self._not_found(request.group_id, "Consumer group")
        if known.is_empty:
            effects.records += known.tombstones()
            return ConsumerGroup(request.group_id)
        created = moves.to_consumer(known, self._topics, self._registry.config)
        effects.records += [*known.tombstones(), *created]
        effects.whole = True  # members without what they own would lose it to others
        group = replay.copy_of(request.group_id, created)
        if known.state is not GroupState.STABLE or request.instance_id not in known.static_members:
            group.is_checked = False  # a new epoch begins, even if the new member subscribes to nothing
        return group

    def _refuse_waiting(self, group: ClassicGroup, effects: Effects, now: Now) -> None:
        """Let the members of a classic group that becomes a consumer group join again.

        Call this when the heartbeat cannot be refused any more: it forgets the requests that it answers.
        """
        operation = GroupOperation(self._registry, group, effects, now)
        for member in group.members.values():
            operation.refuse_join(member, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            operation.refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)

    def _leave(self, request: ConsumerGroupHeartbeatRequest, token: Any, now: Now) -> Effects:
        """Remove the member, or note that a static member will return."""
        group = self._registry.find(request.group_id, ConsumerGroup)
        if group is None:
            raise self._not_found(request.group_id, "Group")
        member = group.identified(request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            gone = replace(member, epoch=LEAVE_STATIC_EPOCH, revoking={})
            found = [records.current_record(group.group_id, gone)]
        else:
            found = self._removal(group, [member.member_id])
        response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        return Effects(found, [Reply(token, response)])

    def _removal(self, group: ConsumerGroup, member_ids: Collection[str]) -> list[CoordinatorRecord]:
        """Return the records that remove members. If only classic ones are left, the group becomes a classic group."""
        config = self._registry.config
        if moves.may_downgrade(group, member_ids, config):
            found = moves.to_classic(group, member_ids, self._topics)
            if moves.fits(found[0], config.record_max_bytes):
                return found
        return self._transitions.removal(group, member_ids)

    # -- the kind -----------------------------------------------------------------------------------------------

    def replay(self, key: Any, value: Any) -> None:
        """Apply a record. A member that it brings gets its session at the next tick."""
        if value is None and isinstance(key, ConsumerGroupMetadataKey):
            self._registry.drop(key.group_id, ConsumerGroup)
            self._sessions.forget(key.group_id)
            return
        group = self._registry.find(key.group_id, ConsumerGroup)
        if group is None:
            if value is None:
                return
            group = self._registry.add(ConsumerGroup(key.group_id))
        known = len(group.members)
        replay.apply(group, key, value)
        if len(group.members) > known:
            self._registry.wake_new(key.group_id)

    def loaded(self, group: ConsumerGroup, effects: Effects, now: Now) -> None:
        """Start the sessions of all members."""
        group.is_checked = False
        self._sessions.begin(group, now)

    def tick(self, group: ConsumerGroup, effects: Effects, now: Now) -> None:
        """Start the sessions of new members, and remove the members that have not done in time what they must."""
        self._sessions.begin(group, now)
        expired = self._sessions.expired(group, now)
        if expired:
            effects.records += self._removal(group, expired)

    def committed_by(self, group: ConsumerGroup, member_id: str, now: Now) -> None:
        """Do nothing: only heartbeats keep a session alive."""

    def topics_changed(self, topics: frozenset[str], effects: Effects, now: Now) -> None:
        """Let the next heartbeat of each group look at its topics, and match its regular expressions."""
        for group in self._registry.groups.values():
            if isinstance(group, ConsumerGroup):
                group.is_checked = False
                group.matching.has_new_topics = True


def _find(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str) -> Change:
    """Return the member that sends a heartbeat, or a new one. Raises ProtocolError."""
    owned = None if request.topic_partitions is None else records.partitions_in(request.topic_partitions)
    if request.member_epoch == 0:
        if request.instance_id is None:
            return join_dynamic(group, member_id)._replace(owned=owned)
        return join_static(group, member_id, request.instance_id, is_classic=False)._replace(owned=owned)
    member = group.identified(member_id, request.instance_id)
    check_epoch(member, request.member_epoch, owned)
    return Change(member, member, owned)


def _changed(change: Change, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str) -> Change:
    """Return the change with what the request says of the member. Null and -1 mean that it is as before."""
    member, names = change.after, request.subscribed_topic_names
    timeout_ms, pattern = request.rebalance_timeout_ms, request.subscribed_topic_regex
    after = replace(
        member,
        client_id=client_id,
        client_host=client_host,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        topics=member.topics if names is None else frozenset(names),
        pattern=member.pattern if pattern is None else pattern,
        classic=None,
    )
    return change._replace(after=after)


def _partitions(member: ConsumerMember) -> Mapping[Any, Collection[int]]:
    return {topic: some.keys() for topic, some in member.assigned.items()}


def _assignment(member: ConsumerMember) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic, partitions=sorted(some)) for topic, some in sorted(member.assigned.items())
        ]
    )
