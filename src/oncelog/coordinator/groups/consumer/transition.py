"""What a request of one member changes: its subscription, the group's epoch, the target assignment, and what it owns.

Each heartbeat of the consumer protocol, and each JoinGroup of a classic member, is such a transition. Source: Kafka's
`GroupMetadataManager.consumerGroupHeartbeat` and `TargetAssignmentBuilder`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.consumer import records
from oncelog.coordinator.groups.consumer.assignors import ASSIGNORS, Subscriber
from oncelog.coordinator.groups.consumer.group import ConsumerGroup, assignor
from oncelog.coordinator.groups.consumer.member import ConsumerMember, Partitions, Reconciliation, Target, reconcile
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.groups.topics import Topic, Topics
from oncelog.coordinator.timers import Now

FIRST_EPOCH = 1
"""The epoch of a new group before its first member subscribes to topics."""


class Change(NamedTuple):
    """A member before and after it says something of itself. `owned`: see `Reconciliation`.

    The member is new if the group does not have it. It may take the place of the static member `replaces`.
    """

    before: ConsumerMember
    after: ConsumerMember
    owned: Partitions | None
    replaces: str | None = None


class Transitions:
    """Compute what changes of members mean for their groups."""

    def __init__(self, registry: Registry, topics: Topics) -> None:
        self._registry = registry
        self._topics = topics

    def apply(self, group: ConsumerGroup, change: Change, now: Now) -> tuple[ConsumerMember, list[CoordinatorRecord]]:
        """Return the member after the change and its next step towards its target, and all records of that."""
        found: list[CoordinatorRecord] = []
        before, member = change.before, change.after
        is_new = member.member_id not in group.members
        if change.replaces is not None:
            found += records.member_tombstones(group.group_id, change.replaces)
            inherited = group.targets.get(change.replaces, {})
            found.append(records.target_record(group.group_id, member.member_id, inherited))
        if is_new or member != before:
            found.append(records.member_record(group.group_id, member))
        found += _unused_patterns(group, [before] if member.pattern != before.pattern else [])
        target = self._target(group, change, now, found)
        subscribed = (self._topics.by_name(name) for name in group.topics_of(member))
        step = Reconciliation(
            target,
            {topic.topic_id for topic in subscribed if topic is not None},
            (member.topics, member.pattern) != (before.topics, before.pattern),
            group.is_taken,
            change.owned,
        )
        moved = reconcile(member, step)
        if is_new or moved != member:
            found.append(records.current_record(group.group_id, moved))
        return moved, found

    def epoch_after(
        self, group: ConsumerGroup, topics: Iterable[str], *, changed: bool
    ) -> tuple[int, list[CoordinatorRecord]]:
        """Return the epoch of the group and its record, if the epoch is new.

        A new epoch begins if `changed` is set, or if one of the topics is new, is deleted, or has more partitions.
        """
        metadata_hash = self._hash_of(topics)
        epoch = max(group.epoch, group.target_epoch) or FIRST_EPOCH
        if changed or metadata_hash != group.metadata_hash:
            epoch += 1
        if epoch == group.epoch:
            group.is_checked = True
            return epoch, []
        self._registry.statistics.consumer_rebalances += 1
        return epoch, [records.group_record(group.group_id, epoch, metadata_hash)]

    def has_changed(self, group: ConsumerGroup) -> bool:
        """Return whether one of the group's topics is new, is deleted or has more partitions since its epoch began."""
        if not group.is_checked:
            group.is_checked = self._hash_of(group.topics()) == group.metadata_hash
        return not group.is_checked

    def removal(self, group: ConsumerGroup, member_ids: Collection[str]) -> list[CoordinatorRecord]:
        """Return the records that remove members. The next heartbeat of another one assigns their partitions."""
        leaving = [group.members[member_id] for member_id in member_ids]
        _, epoch = self.epoch_after(group, group.topics(leaving), changed=True)
        return [
            *epoch,  # first, in case a crash keeps only some records
            *_unused_patterns(group, leaving),
            *(each for member_id in member_ids for each in records.member_tombstones(group.group_id, member_id)),
        ]

    def _target(self, group: ConsumerGroup, change: Change, now: Now, found: list[CoordinatorRecord]) -> Target:
        """Return the member's target. Add the records of a new epoch of the group, and of a new target assignment."""
        before, member = change.before, change.after
        members = {each: known for each, known in group.members.items() if each != change.replaces}
        members[member.member_id] = member
        is_matched = not member.pattern or member.pattern in group.patterns
        changed = member.topics != before.topics or (member.pattern != before.pattern and is_matched)
        epoch = group.epoch
        if changed or not group.is_checked or not group.epoch:
            leaving = (group.members.get(each or "") for each in (member.member_id, change.replaces))
            topics = group.topics((each for each in leaving if each is not None), member)
            epoch, new = self.epoch_after(group, topics, changed=changed)
            found += new
        if epoch <= group.target_epoch or not self.may_assign(group, now):
            return group.target(change.replaces or member.member_id)
        before_targets = dict(group.targets)
        if change.replaces is not None:
            before_targets[member.member_id] = before_targets.pop(change.replaces, {})
        targets = self._assign(group, members, before_targets)
        for member_id, target in targets.items():
            if target != group.targets.get(member_id) or member_id == member.member_id:
                found.append(records.target_record(group.group_id, member_id, target))
        found.append(records.target_epoch_record(group.group_id, epoch, now.wall_ms))
        return Target(epoch, targets[member.member_id])

    def may_assign(self, group: ConsumerGroup, now: Now) -> bool:
        """Return whether the last assignment is old enough (KIP-1263): many members may join at once.

        If its time is in the future, another broker's clock was wrong, or this one's is.
        """
        interval_ms = self._registry.consumer_settings(group.group_id).assignment_interval_ms
        return not group.target_ms <= now.wall_ms < group.target_ms + interval_ms

    def _assign(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerMember], before: Mapping[str, Partitions]
    ) -> dict[str, Partitions]:
        """Return the target of each member."""
        topics: dict[UUID, Topic] = {}
        ids: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        """Topics by what a member subscribes to. Most members subscribe to the same."""
        subscribers = {}
        for member_id, each in members.items():
            subscribed = each.topics, each.pattern
            if subscribed not in ids:
                found = [topic for name in group.topics_of(each) if (topic := self._topics.by_name(name)) is not None]
                topics.update((topic.topic_id, topic) for topic in found)
                ids[subscribed] = frozenset(topic.topic_id for topic in found)
            had = before.get(member_id, {})
            subscribers[member_id] = Subscriber(ids[subscribed], each.instance_id, had, each.rack_id)
        counts = {topic_id: topic.partition_count for topic_id, topic in topics.items()}
        racks = {topic_id: self._topics.racks(topic) for topic_id, topic in topics.items()}
        default = self._registry.config.consumer_assignors[0]
        assign = ASSIGNORS.get(assignor(members, default)) or ASSIGNORS[default]  # a log of Kafka may have others
        return {
            member_id: {topic_id: frozenset(some) for topic_id, some in mine.items()}
            for member_id, mine in assign(subscribers, counts, racks).items()
        }

    def _hash_of(self, names: Iterable[str]) -> int:
        """Return a number that changes if a topic is created or deleted, or gets partitions. Without topics, it is 0.

        Kafka's number differs, and also depends on racks (KIP-1101). If Kafka loads the group, it begins a new epoch.
        """
        topics = (self._topics.by_name(name) for name in names)
        facts = sorted((each.name, each.topic_id.hex, each.partition_count) for each in topics if each is not None)
        if not facts:
            return 0
        return int.from_bytes(hashlib.sha256(repr(facts).encode()).digest()[:8], "big", signed=True)


def _unused_patterns(group: ConsumerGroup, leaving: Iterable[ConsumerMember]) -> list[CoordinatorRecord]:
    """Return the records that delete the regular expressions that only these members have subscribed to."""
    users = Counter(member.pattern for member in leaving if member.pattern in group.patterns)
    return [
        records.pattern_tombstone(group.group_id, pattern)
        for pattern, count in users.items()
        if count == group.pattern_users[pattern]
    ]
