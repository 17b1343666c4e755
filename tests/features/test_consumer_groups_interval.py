"""The interval between the assignments of a group (KIP-1263): changes within it wait.

The interval is longer than any test, so that only a change of it ends the wait.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from support.consumer_groups import (
    NewMember,
    assigned,
    configure_group,
    describe_consumer,
    owned_together,
    seen_topic,
    settle,
)
from support.wire import Wire

SETTINGS = {"group.consumer.max.assignment.interval.ms": "3600000"}
ALL = [0, 1, 2, 3, 4, 5]


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    return module_wire


@pytest.fixture
def topic(wire: Wire, name: str) -> UUID:
    return seen_topic(wire, name, len(ALL))


@pytest.fixture
def first(wire: Wire, name: str, topic: UUID) -> NewMember:
    """Return the only member of the group `name`. It owns all partitions of the topic `name`."""
    return NewMember(wire, name, "first").joined(name, owns={topic: ALL})


def test_assignment_interval_delays_the_second_assignment(first: NewMember, topic: UUID) -> None:
    assert configure_group(first.wire, first.group, consumer_assignment_interval_ms="3600000") == 0
    epoch = first.epoch
    second = NewMember(first.wire, first.group, "second")
    assert second.join(first.group).error_code == 0
    group = describe_consumer(first.wire, first.group)
    assert (group.group_epoch, group.assignment_epoch, group.group_state) == (epoch + 1, epoch, "Assigning")
    assert (second.epoch, second.owned, first.report().member_epoch) == (epoch, {}, epoch)
    assert configure_group(first.wire, first.group, consumer_assignment_interval_ms="0") == 0
    settle(first, second)
    assert (first.epoch, owned_together(first, second)) == (epoch + 1, {topic: ALL})


def test_changes_within_the_interval_get_one_assignment(first: NewMember, topic: UUID) -> None:
    wire, group, epoch = first.wire, first.group, first.epoch
    assert configure_group(wire, group, consumer_assignment_interval_ms="3600000") == 0
    others = [NewMember(wire, group, f"member-{index}") for index in range(3)]
    for count, each in enumerate(others, start=1):
        answer = each.join(group)
        assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, epoch, {})
        found = describe_consumer(wire, group)
        assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Assigning", epoch + count, epoch)
    assert others[0].leave().error_code == 0
    assert first.report().member_epoch == epoch
    assert configure_group(wire, group, consumer_assignment_interval_ms="0") == 0
    settle(first, *others[1:])
    assert first.epoch == epoch + 4
    assert owned_together(first, *others[1:]) == {topic: ALL}


def test_member_that_joins_within_the_interval_and_its_epoch(first: NewMember) -> None:
    """It has the epoch of the last assignment, and its heartbeats are not fenced."""
    wire, group = first.wire, first.group
    assert configure_group(wire, group, consumer_assignment_interval_ms="3600000") == 0
    second = NewMember(wire, group, "second")
    assert second.join(group).member_epoch == first.epoch
    for _ in range(2):
        answer = second.report()
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, first.epoch, None)
    assert second.join(group).member_epoch == first.epoch
    found = describe_consumer(wire, group)
    (member,) = (each for each in found.members if each.member_id == "second")
    assert (member.member_epoch, member.assignment.topic_partitions) == (first.epoch, [])
    assert member.target_assignment.topic_partitions == []


def test_empty_group_waits_for_the_interval_too(first: NewMember, topic: UUID) -> None:
    wire, group, epoch = first.wire, first.group, first.epoch
    assert configure_group(wire, group, consumer_assignment_interval_ms="3600000") == 0
    first.leave()
    second = NewMember(wire, group, "second")
    answer = second.join(group)
    assert (answer.member_epoch, assigned(answer)) == (epoch, {})
    assert configure_group(wire, group, consumer_assignment_interval_ms="0") == 0
    second.until_owns({topic: ALL})
    assert second.epoch == epoch + 2


def test_what_is_not_subscribed_any_more_is_taken_away_at_once(first: NewMember, topic: UUID) -> None:
    wire, name, member = first.wire, first.group, first
    other = wire.create_topic(f"{name}-other")
    assert configure_group(wire, name, consumer_assignment_interval_ms="3600000") == 0
    epoch = member.epoch
    answer = member.beat(subscribed_topic_names=[f"{name}-other"])
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, epoch, {})
    assert configure_group(wire, name, consumer_assignment_interval_ms="0") == 0
    member.until_owns({other: [0]})
