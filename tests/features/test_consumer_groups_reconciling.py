"""How members of the consumer protocol (KIP-848) come step by step to the assignment that they shall have."""

from __future__ import annotations

from uuid import UUID

import pytest

from support.consumer_groups import (
    NewMember,
    assigned,
    describe_consumer,
    owned_together,
    seen_topic,
    settle,
    until_seen,
)
from support.servers import Server
from support.wire import Wire, until

ALL = [0, 1, 2, 3, 4, 5]


@pytest.fixture
def topic(wire: Wire, name: str) -> UUID:
    return seen_topic(wire, name, len(ALL))


@pytest.fixture
def first(wire: Wire, name: str, topic: UUID) -> NewMember:
    """Return the only member of the group `name`. It owns all partitions of the topic `name`."""
    wire.find_coordinator(name, 0)
    return NewMember(wire, name, "first").joined(name, owns={topic: ALL})


def joins(member: NewMember, member_id: str) -> NewMember:
    """Let another member join, and wait until it has the next epoch, with what is free."""
    other = NewMember(member.wire, member.group, member_id)
    before = describe_consumer(member.wire, member.group).group_epoch
    assert not other.join(member.group).error_code
    until(other.beat, lambda answer: answer.member_epoch > before, f"{member_id} has the next epoch")
    return other


# -- giving up ---------------------------------------------------------------------------------------------------------


def test_all_partitions_must_be_given_up_for_the_next_epoch(first: NewMember, topic: UUID) -> None:
    epoch = first.epoch
    second = joins(first, "second")
    assert first.beat().assignment is not None
    kept = first.owned[topic]
    given_up = sorted(set(ALL) - set(kept))
    for some in (given_up[:1], given_up[1:]):
        answer = first.beat(owned={topic: [*kept, *some]})
        assert (answer.member_epoch, answer.assignment) == (epoch, None)
        assert assigned(second.beat()) is None
    assert first.report().member_epoch == epoch + 1
    assert assigned(second.beat()) == {topic: given_up}


def test_member_may_not_yet_own_what_it_keeps(first: NewMember, topic: UUID) -> None:
    """Only what it must give up counts: it may still be looking for the offsets of the rest."""
    epoch = first.epoch
    second = joins(first, "second")
    assert first.beat().assignment is not None
    kept = first.owned[topic]
    assert first.beat(owned={topic: kept[:1]}).member_epoch == epoch + 1
    assert assigned(second.beat()) == {topic: sorted(set(ALL) - set(kept))}
    answer = first.beat(owned={topic: kept[:1]}, subscribed_topic_names=[first.group], rebalance_timeout_ms=60_000)
    assert assigned(answer) == {topic: kept}


def test_next_target_while_a_member_gives_up(first: NewMember, topic: UUID) -> None:
    """It goes on with what it was told; then it is told the rest."""
    second = joins(first, "second")
    assert first.beat().assignment is not None
    old = first.epoch
    third = joins(first, "third")
    answer = first.beat()
    assert (answer.member_epoch, answer.assignment) == (old, None)
    settle(first, second, third)
    assert owned_together(first, second, third) == {topic: ALL}
    assert {each.epoch for each in (first, second, third)} == {old + 2}
    assert [len(each.owned[topic]) for each in (first, second, third)] == [2, 2, 2]


def test_partitions_come_from_two_members_one_after_the_other(first: NewMember, topic: UUID) -> None:
    second = joins(first, "second")
    settle(first, second)
    third = joins(first, "third")
    owned: list[int] = []
    for giver in (first, second):
        before = giver.owned[topic]
        until(giver.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
        assert third.beat().assignment is None  # not given up yet
        giver.report()
        owned += sorted(set(before) - set(giver.owned[topic]))
        assert assigned(third.beat()) == {topic: sorted(owned)}
    assert describe_consumer(first.wire, first.group).group_state == "Stable"


def test_whole_topic_moves(first: NewMember, topic: UUID) -> None:
    other = f"{first.group}-other"
    other_topic = first.wire.create_topic(other, 2)
    until_seen(first.wire, first.group, other, 2)
    assert first.beat(subscribed_topic_names=[first.group, other]).error_code == 0
    first.until_owns({topic: ALL, other_topic: [0, 1]})
    second = NewMember(first.wire, first.group, "second")
    assert second.join(other).error_code == 0
    assert first.beat(subscribed_topic_names=[first.group]).error_code == 0
    settle(first, second)
    assert (first.owned, second.owned) == ({topic: ALL}, {other_topic: [0, 1]})


# -- without an epoch --------------------------------------------------------------------------------------------------


def test_what_a_member_says_of_itself_begins_no_epoch(first: NewMember, server: Server) -> None:
    """Its rack, its timeout, the client id and the order of its topics."""
    group, epoch = first.group, first.epoch
    for changed in (
        {"rack_id": "r"},
        {"rebalance_timeout_ms": 50_000},
        {"subscribed_topic_names": [group, group]},
        {"server_assignor": "range"},
    ):
        answer = first.beat(**changed)
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epoch, None)
    with Wire(server.bootstrap, client_id="another") as wire:
        first.wire = wire
        assert first.beat().member_epoch == epoch
        found = describe_consumer(wire, group)
    assert (found.group_epoch, found.group_state, found.assignor_name) == (epoch, "Stable", "range")
    (member,) = found.members
    assert (member.client_id, member.rack_id, member.subscribed_topic_names) == ("another", "r", [group])


def test_topic_that_does_not_exist_begins_an_epoch(first: NewMember, topic: UUID) -> None:
    epoch = first.epoch
    assert first.beat(subscribed_topic_names=[first.group, f"{first.group}-none"]).error_code == 0
    assert describe_consumer(first.wire, first.group).group_epoch == epoch + 1
    settle(first)
    assert (first.epoch, first.owned) == (epoch + 1, {topic: ALL})
