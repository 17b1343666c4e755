"""The messages between members of a classic group: Kafka's ConsumerProtocol, and user data of sticky assignors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from oncelog.client.consumer.assignors import Claim
from oncelog.protocol import schema
from oncelog.protocol.messages.consumer_protocol import (
    AssignedPartition,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    CooperativeStickyAssignorUserData,
    StickyAssignorUserData,
)
from oncelog.protocol.messages.consumer_protocol import TopicPartition as OwnedPartitions
from oncelog.protocol.schema import DecodeError
from oncelog.protocol.topics import TopicPartition

SUBSCRIPTION_VERSION = 3


def encode_subscription(
    strategy: str, topics: Sequence[str], owned: Claim, last: Claim | None, rack: str | None
) -> bytes:
    """Return one protocol's metadata in JoinGroup. `owned`: what the member reads; `last`: the last assignment."""
    user_data = None
    if strategy == "sticky" and last is not None:
        user_data = StickyAssignorUserData(
            previous_assignment=_by_topic(last.partitions), generation=last.generation
        ).encode(1)
    elif strategy == "cooperative-sticky":
        generation = -1 if last is None else last.generation
        user_data = CooperativeStickyAssignorUserData(generation=generation).encode(0)
    subscription = ConsumerProtocolSubscription(
        topics=list(topics),
        user_data=user_data,
        owned_partitions=[
            OwnedPartitions(topic=item.topic, partitions=item.partitions) for item in _by_topic(owned.partitions)
        ],
        generation_id=owned.generation,
        rack_id=rack,
    )
    return schema.encode_versioned(subscription, SUBSCRIPTION_VERSION)


def decode_subscription(strategy: str, data: bytes) -> tuple[list[str], Claim]:
    """Return (topics, claim) of one member's metadata, for the assignor `strategy`."""
    version = min(schema.read_version(data), ConsumerProtocolSubscription.MAX_VERSION)
    found = ConsumerProtocolSubscription.decode_from(data, 2, version)[0]
    if strategy == "sticky":
        return found.topics, _decode_sticky(found.user_data)
    owned = [(item.topic, partition) for item in found.owned_partitions for partition in item.partitions]
    generation = found.generation_id
    if version < 2 and found.user_data and strategy == "cooperative-sticky":
        try:
            generation = CooperativeStickyAssignorUserData.decode_from(found.user_data, 0, 0)[0].generation
        except DecodeError:
            generation = -1  # as Kafka's assignor does
    return found.topics, Claim(owned, generation)


def _decode_sticky(user_data: bytes | None) -> Claim:
    """Decode a claim. Version 1 ends with the generation, version 0 has none; other user data is ignored."""
    for version in (1, 0) if user_data else ():
        try:
            found, _ = StickyAssignorUserData.decode_from(user_data or b"", 0, version)
        except DecodeError:
            continue
        partitions = [(item.topic, partition) for item in found.previous_assignment for partition in item.partitions]
        return Claim(partitions, found.generation)
    return Claim()


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return one member's assignment in SyncGroup."""
    assignment = ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions), user_data=None)
    return schema.encode_versioned(assignment, 0)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment in SyncGroup and DescribeGroups."""
    if not data:
        return []
    version = min(schema.read_version(data), ConsumerProtocolAssignment.MAX_VERSION)
    assignment = ConsumerProtocolAssignment.decode_from(data, 2, version)[0]
    return [(topic.topic, partition) for topic in assignment.assigned_partitions for partition in topic.partitions]


def _by_topic(partitions: Iterable[TopicPartition]) -> list[AssignedPartition]:
    return [
        AssignedPartition(topic=topic, partitions=[partition for _, partition in found])
        for topic, found in groupby(sorted(partitions), key=lambda tp: tp[0])
    ]
