"""The records of a consumer group, in the layouts of Kafka 4.3 (`GroupCoordinatorRecordHelpers`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.consumer.member import ConsumerMember, Owned, Partitions
from oncelog.coordinator.groups.group import Layouts
from oncelog.protocol.messages import consumer_group_records as messages
from oncelog.protocol.schema import Message

LAYOUTS: Layouts = {
    3: (messages.ConsumerGroupMetadataKey, messages.ConsumerGroupMetadataValue),
    4: (messages.ConsumerGroupPartitionMetadataKey, messages.ConsumerGroupPartitionMetadataValue),
    5: (messages.ConsumerGroupMemberMetadataKey, messages.ConsumerGroupMemberMetadataValue),
    6: (messages.ConsumerGroupTargetAssignmentMetadataKey, messages.ConsumerGroupTargetAssignmentMetadataValue),
    7: (messages.ConsumerGroupTargetAssignmentMemberKey, messages.ConsumerGroupTargetAssignmentMemberValue),
    8: (messages.ConsumerGroupCurrentMemberAssignmentKey, messages.ConsumerGroupCurrentMemberAssignmentValue),
    16: (messages.ConsumerGroupRegularExpressionKey, messages.ConsumerGroupRegularExpressionValue),
}
_VERSIONS = {key: version for version, (key, _) in LAYOUTS.items()}


def record(key: Message, value: Message | None) -> CoordinatorRecord:
    """Return a record, or a tombstone without a value."""
    return CoordinatorRecord(key, _VERSIONS[type(key)], value)


def group_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Return the record of the group's epoch."""
    value = messages.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return record(messages.ConsumerGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Return the record of what a member has sent about itself."""
    classic = None
    if member.classic is not None:
        protocols = [messages.ClassicProtocol(name=name, metadata=data) for name, data in member.classic.protocols]
        classic = messages.ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms, supported_protocols=protocols
        )
    value = messages.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=classic,
    )
    return record(messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    """Return the record that completes a target assignment."""
    value = messages.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return record(messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_record(group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
    """Return the record of what a member shall own."""
    partitions = [
        messages.TopicPartitions(topic_id=topic, partitions=sorted(some)) for topic, some in sorted(target.items())
    ]
    value = messages.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions)
    return record(messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def current_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Return the record of what a member owns."""
    value = messages.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_listed(member.assigned),
        partitions_pending_revocation=_listed(member.revoking),
    )
    key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return record(key, value)


def pattern_record(group_id: str, pattern: str, topics: Iterable[str], now_ms: int) -> CoordinatorRecord:
    """Return the record of the topics that match a regular expression.

    Its version of the metadata is 0: a broker that loads it looks for new topics, because its own versions differ.
    """
    value = messages.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=0, timestamp=now_ms)
    return record(_pattern_key(group_id, pattern), value)


def pattern_tombstone(group_id: str, pattern: str) -> CoordinatorRecord:
    """Return the record that deletes the topics of a regular expression."""
    return record(_pattern_key(group_id, pattern), None)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the records that delete a member: first what it owns, then its target, then itself."""
    return [
        record(key(group_id=group_id, member_id=member_id), None)
        for key in (
            messages.ConsumerGroupCurrentMemberAssignmentKey,
            messages.ConsumerGroupTargetAssignmentMemberKey,
            messages.ConsumerGroupMemberMetadataKey,
        )
    ]


def group_tombstones(group_id: str, member_ids: Iterable[str], patterns: Iterable[str]) -> list[CoordinatorRecord]:
    """Return the records that delete a group."""
    return [
        *(each for member_id in member_ids for each in member_tombstones(group_id, member_id)),
        *(pattern_tombstone(group_id, pattern) for pattern in patterns),
        record(messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        record(messages.ConsumerGroupMetadataKey(group_id=group_id), None),
    ]


class Listed(Protocol):
    """Partitions of a topic in a record or request."""

    topic_id: UUID
    partitions: list[int]


def partitions_in(some: Sequence[Listed]) -> Partitions:
    """Return the partitions in a record or request."""
    return {each.topic_id: frozenset(each.partitions) for each in some if each.partitions}


def owned_in(some: Sequence[messages.OwnedPartitions], member_epoch: int) -> Owned:
    """Return the partitions in a record. Without their epochs, the member got them with its own epoch."""
    return {
        each.topic_id: dict(
            zip(each.partitions, each.assignment_epochs, strict=True)
            if each.assignment_epochs and len(each.assignment_epochs) == len(each.partitions)
            else dict.fromkeys(each.partitions, member_epoch)
        )
        for each in some
        if each.partitions
    }


def _listed(owned: Owned) -> list[messages.OwnedPartitions]:
    return [
        messages.OwnedPartitions(
            topic_id=topic, partitions=sorted(some), assignment_epochs=[some[each] for each in sorted(some)]
        )
        for topic, some in sorted(owned.items())
    ]


def _pattern_key(group_id: str, pattern: str) -> messages.ConsumerGroupRegularExpressionKey:
    return messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
