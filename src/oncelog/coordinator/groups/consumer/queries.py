"""ConsumerGroupDescribe (KIP-848, KIP-1099)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from oncelog.coordinator.groups.consumer.group import ConsumerGroup, assignor
from oncelog.coordinator.groups.consumer.member import ConsumerMember
from oncelog.coordinator.groups.topics import Topics
from oncelog.protocol.messages.consumer_group_describe import Assignment, DescribedGroup, Member, TopicPartitions

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""The types of members by their protocol."""


def described(group: ConsumerGroup, topics: Topics, default_assignor: str) -> DescribedGroup:
    """Return the description of a group. Topics that were deleted are omitted."""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=assignor(group.members, default_assignor),
        members=[_member(each, group, topics) for each in group.members.values()],
    )


def _member(member: ConsumerMember, group: ConsumerGroup, topics: Topics) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(_owned(member), topics),
        target_assignment=_assignment(group.targets.get(member.member_id, {}), topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _owned(member: ConsumerMember) -> Mapping[UUID, Collection[int]]:
    """Return what the member has, and what it must still give up."""
    topics = member.assigned.keys() | member.revoking.keys()
    return {topic: {**member.assigned.get(topic, {}), **member.revoking.get(topic, {})} for topic in topics}


def _assignment(partitions: Mapping[UUID, Collection[int]], topics: Topics) -> Assignment:
    found = []
    for topic_id, some in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            found.append(TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(some)))
    return Assignment(topic_partitions=sorted(found, key=lambda each: each.topic_name))
