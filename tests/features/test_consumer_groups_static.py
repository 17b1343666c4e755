"""Static members of the consumer protocol (KIP-345, KIP-848): they leave, and come back to their partitions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from support.consumer_groups import (
    LEAVE,
    LEAVE_STATIC,
    NewMember,
    assigned,
    describe_consumer,
    owned_together,
    seen_topic,
    settle,
    until_seen,
)
from support.groups import commit
from support.wire import Wire, code, until

UNRELEASED = code("UNRELEASED_INSTANCE_ID")
FENCED_INSTANCE = code("FENCED_INSTANCE_ID")
FENCED_EPOCH = code("FENCED_MEMBER_EPOCH")
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
STALE = code("STALE_MEMBER_EPOCH")
ALL = [0, 1, 2, 3]


@pytest.fixture
def topic(wire: Wire, name: str) -> UUID:
    return seen_topic(wire, name, len(ALL))


@pytest.fixture
def static(wire: Wire, name: str, topic: UUID) -> NewMember:
    """Return the only member of the group `name`, with the instance id "i"."""
    return NewMember(wire, name, "first", instance_id="i").joined(name, owns={topic: ALL})


def successor(member: NewMember, member_id: str = "next") -> NewMember:
    """Return the next process with the same instance id."""
    return NewMember(member.wire, member.group, member_id, **member.identity)


def members(member: NewMember) -> dict[str, int]:
    """Return the epoch of each member of the group."""
    return {each.member_id: each.member_epoch for each in describe_consumer(member.wire, member.group).members}


def test_static_member_leaves_for_a_while(static: NewMember) -> None:
    epoch = static.epoch
    answer = static.leave(LEAVE_STATIC)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "first", -2)
    assert (answer.heartbeat_interval_ms, answer.assignment) == (0, None)
    group = describe_consumer(static.wire, static.group)
    assert (group.group_epoch, group.assignment_epoch) == (epoch, epoch)
    assert members(static) == {"first": -2}


def test_successor_gets_the_same_partitions_in_the_same_epoch(static: NewMember, topic: UUID) -> None:
    epoch = static.epoch
    static.leave(LEAVE_STATIC)
    new = successor(static)
    answer = new.join(static.group)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "next", epoch)
    assert assigned(answer) == {topic: ALL}
    assert members(static) == {"next": epoch}


def test_others_keep_their_partitions_meanwhile(static: NewMember, topic: UUID) -> None:
    second = NewMember(static.wire, static.group, "second")
    second.join(static.group)
    settle(static, second)
    epoch, mine, others = static.epoch, static.owned, second.owned
    static.leave(LEAVE_STATIC)
    answer = second.report()
    assert (answer.error_code, answer.member_epoch, second.owned) == (0, epoch, others)
    new = successor(static)
    assert new.join(static.group).error_code == 0
    assert (new.epoch, new.owned) == (epoch, mine)
    settle(new, second)
    assert (new.epoch, new.owned, second.owned) == (epoch, mine, others)


def test_member_id_may_be_the_same_again(static: NewMember, topic: UUID) -> None:
    epoch = static.epoch
    static.leave(LEAVE_STATIC)
    answer = static.join(static.group)
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, epoch, {topic: ALL})


def test_successor_must_wait_until_the_instance_id_is_released(static: NewMember, topic: UUID) -> None:
    new = successor(static)
    answer = new.join(static.group)
    words = (
        "Static member next with instance id i cannot join the group because the instance id is owned by first member."
    )
    assert (answer.error_code, answer.error_message) == (UNRELEASED, words)
    assert static.beat().error_code == 0
    assert members(static) == {"first": static.epoch}
    static.leave(LEAVE_STATIC)
    assert new.join(static.group).error_code == 0


def test_other_member_with_the_instance_id_is_fenced(static: NewMember) -> None:
    words = "Static member other with instance id i was fenced by member first."
    epoch = static.epoch
    for member_epoch in (epoch, epoch + 1, LEAVE, LEAVE_STATIC):
        answer = static.beat(member_id="other", member_epoch=member_epoch)
        assert (answer.error_code, answer.error_message) == (FENCED_INSTANCE, words)
        static.epoch = epoch
    assert static.beat().error_code == 0


def test_predecessor_is_fenced(static: NewMember) -> None:
    epoch = static.epoch
    static.leave(LEAVE_STATIC)
    new = successor(static)
    new.join(static.group)
    words = "Static member first with instance id i was fenced by member next."
    for member_epoch in (epoch, LEAVE, LEAVE_STATIC):
        answer = static.beat(member_epoch=member_epoch)
        assert (answer.error_code, answer.error_message) == (FENCED_INSTANCE, words)
    answer = static.beat(member_epoch=epoch, instance_id=None)
    assert answer.error_code == UNKNOWN_MEMBER_ID
    assert new.beat().error_code == 0


def test_instance_id_that_nobody_has(static: NewMember) -> None:
    words = "Instance id j is unknown."
    for member_epoch in (static.epoch, LEAVE, LEAVE_STATIC):
        answer = static.beat(member_epoch=member_epoch, instance_id="j")
        assert (answer.error_code, answer.error_message) == (UNKNOWN_MEMBER_ID, words)


def test_heartbeat_may_leave_the_instance_id_out(static: NewMember) -> None:
    assert static.beat(instance_id=None).error_code == 0


def test_epochs_are_fenced_as_those_of_others(static: NewMember) -> None:
    epoch = static.epoch
    for member_epoch in (epoch - 1, epoch + 1):
        assert static.beat(member_epoch=member_epoch, owned={}).error_code == FENCED_EPOCH
    static.epoch = epoch
    static.leave(LEAVE_STATIC)
    answer = static.beat(member_epoch=epoch)
    assert answer.error_code == FENCED_EPOCH
    assert "greater" in answer.error_message


def test_static_member_leaves_for_good(static: NewMember, topic: UUID) -> None:
    second = NewMember(static.wire, static.group, "second")
    second.join(static.group)
    settle(static, second)
    assert static.leave().error_code == 0
    second.until_owns({topic: ALL})
    new = successor(static)
    assert new.join(static.group).error_code == 0
    settle(new, second)
    assert owned_together(new, second) == {topic: ALL}


def test_member_that_is_away_may_leave_for_good(static: NewMember) -> None:
    static.leave(LEAVE_STATIC)
    assert static.leave().error_code == 0
    assert members(static) == {}


def test_successor_may_change_the_subscription(static: NewMember, topic: UUID) -> None:
    epoch = static.epoch
    other = f"{static.group}-other"
    other_topic = static.wire.create_topic(other, 2)
    until_seen(static.wire, static.group, other, 2)
    static.leave(LEAVE_STATIC)
    new = successor(static)
    assert new.join(other).error_code == 0
    new.until_owns({other_topic: [0, 1]})
    assert new.epoch == epoch + 1
    assert members(static) == {"next": epoch + 1}


def test_static_members_with_different_instance_ids(static: NewMember, topic: UUID) -> None:
    second = NewMember(static.wire, static.group, "second", instance_id="j")
    assert second.join(static.group).error_code == 0
    settle(static, second)
    assert owned_together(static, second) == {topic: ALL}
    answer = static.beat(instance_id="j")
    assert answer.error_code == FENCED_INSTANCE


def test_member_takes_an_instance_id_of_its_own_only_when_it_joins(wire: Wire, name: str, topic: UUID) -> None:
    member = NewMember(wire, name).joined(name, owns={topic: ALL})
    answer = member.beat(instance_id="i")
    assert (answer.error_code, answer.error_message) == (UNKNOWN_MEMBER_ID, "Instance id i is unknown.")
    answer = member.join(name, instance_id="i")
    assert answer.error_code == 0
    (found,) = describe_consumer(wire, name).members
    assert (found.member_id, found.instance_id) == ("m", "i")


def test_topics_change_while_a_member_is_away(static: NewMember, topic: UUID) -> None:
    other = f"{static.group}-other"
    assert not static.beat(subscribed_topic_names=[static.group, other]).error_code
    static.leave(LEAVE_STATIC)
    other_topic = static.wire.create_topic(other, 1)
    until_seen(static.wire, static.group, other, 1)
    new = successor(static)
    assert new.join(static.group, other).error_code == 0
    new.until_owns({topic: ALL, other_topic: [0]})


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_member_that_is_away_commits_nothing_with_its_old_epoch(static: NewMember) -> None:
    def commit_with(epoch: int, member_id: str = "first", **fields: Any) -> list[int]:
        given = {"member_id": member_id, "generation_id_or_member_epoch": epoch, **fields}
        return commit(static.wire, static.group, {0: 5}, group_id=static.group, **given)

    epoch = static.epoch
    assert commit_with(epoch) == commit_with(epoch, group_instance_id="i") == [0]
    assert commit_with(epoch, group_instance_id="other") == [0]  # it is not looked at
    static.leave(LEAVE_STATIC)
    assert commit_with(epoch) == [STALE]
    assert commit_with(-1, "") == [UNKNOWN_MEMBER_ID]
    new = successor(static)
    new.join(static.group)
    assert commit_with(epoch) == [UNKNOWN_MEMBER_ID]
    assert commit_with(epoch, "next") == [0]


def test_lost_response_to_leaving(static: NewMember) -> None:
    for _ in range(2):
        answer = static.leave(LEAVE_STATIC)
        assert (answer.error_code, answer.member_epoch) == (0, -2)
    until(lambda: members(static), lambda found: found == {"first": -2}, "the member is away")
