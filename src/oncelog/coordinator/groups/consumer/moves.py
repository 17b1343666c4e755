"""Move a group from the classic protocol to the consumer protocol and back, while its members work (KIP-848).

A move is a list of records: those that delete the group of one kind, and those that create it as the other kind, with
the same members and what they own. Its offsets stay. Source: Kafka's `ConsumerGroup.fromClassicGroup` and
`ClassicGroup.fromConsumerGroup`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.classic.group import CONSUMER_PROTOCOL, NO_TIMESTAMP, ClassicGroup
from oncelog.coordinator.groups.classic.member import Member, Protocols
from oncelog.coordinator.groups.consumer import records
from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.consumer.member import ClassicMember, ConsumerMember, Partitions
from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.coordinator.groups.topics import Topics
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.consumer_protocol import (
    AssignedPartition,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from oncelog.protocol.schema import DecodeError, read_version

_OVERHEAD = 1024
"""More than what a batch takes for itself and for the key of its only record."""
_UPGRADES = frozenset({"bidirectional", "upgrade"})
_DOWNGRADES = frozenset({"bidirectional", "downgrade"})
"""The values of `group.consumer.migration.policy` that allow a move."""


def classic_subscription(protocols: Protocols) -> ConsumerProtocolSubscription:
    """Return the subscription of a classic member, which is the same in all its protocols.

    Raises DecodeError if one of them cannot be decoded: a later generation may use any of them.
    """
    found = []
    for _, metadata in protocols:
        subscription, _ = ConsumerProtocolSubscription.decode_from(metadata[2:], 0, _version_in(metadata))
        found.append(subscription)
    if not found:
        raise DecodeError("the member has no protocol")
    return found[0]


def partitions_of(some: Iterable[TopicPartition | AssignedPartition], topics: Topics) -> Partitions:
    """Return partitions with the ids of their topics. Omit topics that do not exist."""
    found: dict[UUID, frozenset[int]] = {}
    for each in some:
        topic = topics.by_name(each.topic)
        if topic is not None and each.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(each.partitions)
    return found


def assignment_bytes(partitions: Partitions, subscription: bytes, topics: Topics) -> bytes:
    """Return the assignment as a classic member gets it, in the version of its subscription."""
    assigned = []
    for topic_id, some in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            assigned.append(AssignedPartition(topic=topic.name, partitions=sorted(some)))
    assigned.sort(key=lambda each: each.topic)
    version = _version_in(subscription)
    return version.to_bytes(2, "big") + ConsumerProtocolAssignment(assigned_partitions=assigned).encode(version)


# -- to the consumer protocol ---------------------------------------------------------------------------------------


def to_consumer(group: ClassicGroup, topics: Topics, config: GroupConfig) -> list[CoordinatorRecord]:
    """Return the records of a consumer group with the members of a classic group (without its deletion).

    Raises ProtocolError (GROUP_ID_NOT_FOUND) if the policy does not allow it, or if the members are not consumers that
    use the assignors of Kafka's clients.
    """
    if config.consumer_migration_policy not in _UPGRADES:
        raise _not_upgraded(group, "online upgrade is disabled.")
    if group.protocol_type != CONSUMER_PROTOCOL:
        raise _not_upgraded(group, "the group does not use the consumer embedded protocol.")
    if len(group.members) > config.consumer_max_size:
        raise _not_upgraded(group, "the group size exceeds the consumer group maximum size.")
    try:
        members = [_consumer_member(group, each, topics) for each in group.members.values()]
    except DecodeError as error:
        raise _not_upgraded(group, "the embedded consumer protocol is malformed.") from error
    group_id, epoch = group.group_id, group.generation
    targets = {each.member_id: {topic: frozenset(some) for topic, some in each.assigned.items()} for each in members}
    return [
        *(records.member_record(group_id, each) for each in members),
        records.group_record(group_id, epoch, 0),
        *(records.target_record(group_id, member_id, target) for member_id, target in targets.items()),
        records.target_epoch_record(group_id, epoch, 0),
        *(records.current_record(group_id, each) for each in members),
    ]


def _not_upgraded(group: ClassicGroup, reason: str) -> ProtocolError:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}"
    return ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _consumer_member(group: ClassicGroup, member: Member, topics: Topics) -> ConsumerMember:
    """Return a member of a classic group as a member of a consumer group, with what the last generation gave it."""
    subscription = classic_subscription(member.protocols)
    assigned: Partitions = {}
    if member.assignment:
        assignment, _ = ConsumerProtocolAssignment.decode_from(member.assignment[2:], 0, _version_in(member.assignment))
        if assignment.user_data:  # what it says would be lost
            raise _not_upgraded(
                group,
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade.",
            )
        assigned = partitions_of(assignment.assigned_partitions, topics)
    return ConsumerMember(
        member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned={topic: dict.fromkeys(some, group.generation) for topic, some in assigned.items()},
    )


# -- to the classic protocol ----------------------------------------------------------------------------------------


def may_downgrade(group: ConsumerGroup, leaving: Collection[str], config: GroupConfig, joining: int = 0) -> bool:
    """Return whether only classic members are left without these members, and with the number of `joining` ones."""
    staying = [each for member_id, each in group.members.items() if member_id not in leaving]
    return (
        config.consumer_migration_policy in _DOWNGRADES
        and 0 < len(staying) + joining <= config.max_size
        and group.classic_members < len(group.members)
        and all(each.classic is not None for each in staying)
    )


def to_classic(
    group: ConsumerGroup,
    leaving: Collection[str],
    topics: Topics,
    *,
    joining: ConsumerMember | None = None,
    since_ms: int = NO_TIMESTAMP,
) -> list[CoordinatorRecord]:
    """Return the record of a classic group with the members that stay, and those that delete the consumer group.

    All of them use the classic protocol. `joining` takes the place of a static member that leaves. The classic group
    has the last target assignment. Without a time (in ms), it rebalances at once (`ClassicGroup.has_moved`).
    """
    classic = ClassicGroup(group.group_id, since_ms)
    classic.generation = group.epoch
    targets = {member_id: target for member_id, target in group.targets.items() if member_id not in leaving}
    staying = [each for each in group.members.values() if each.member_id not in leaving]
    if joining is not None:
        staying.append(joining)
        targets[joining.member_id] = {topic: frozenset(some) for topic, some in joining.assigned.items()}
    for each in staying:
        classic.add(_classic_member(each))
    classic.protocol = classic.select_protocol()
    assignments = {
        each.member_id: assignment_bytes(targets.get(each.member_id, {}), each.metadata(classic.protocol), topics)
        for each in classic.members.values()
    }
    return [classic.record(assignments), *group.tombstones()]  # the first record already moves the group


def fits(record: CoordinatorRecord, max_bytes: int) -> bool:
    """Return whether a record of a classic group, which has all its members, fits into a batch."""
    assert record.value is not None
    return len(record.value.encode(record.value_version)) + _OVERHEAD <= max_bytes


def _classic_member(member: ConsumerMember) -> Member:
    assert member.classic is not None
    return Member(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        CONSUMER_PROTOCOL,
        member.classic.protocols,
    )


def _version_in(data: bytes) -> int:
    """Return the version before a subscription or an assignment. Later versions begin like the newest one known."""
    version = read_version(data)
    if version < 0:
        raise DecodeError(f"version {version} is not supported")
    return min(version, ConsumerProtocolSubscription.MAX_VERSION)
