"""Members of the consumer protocol (KIP-848): joining, epochs, giving partitions up before others get them, leaving.

The target assignment may be computed a while after its cause, so that nothing here expects it in the same response.
"""

from __future__ import annotations

import itertools
from typing import Any
from uuid import UUID, uuid4

import pytest

from support.consumer_groups import (
    NewMember,
    add_partitions,
    assigned,
    delete_topic,
    describe_consumer,
    heartbeat,
    owned_together,
    refusal,
    seen_topic,
    settle,
    until_seen,
)
from support.groups import delete_groups
from support.wire import Wire, code, until

FENCED = code("FENCED_MEMBER_EPOCH")
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
GROUP_ID_NOT_FOUND = code("GROUP_ID_NOT_FOUND")
PARTITIONS = 4
ALL = [0, 1, 2, 3]


@pytest.fixture
def topic(wire: Wire, name: str) -> UUID:
    """Create the topic `name` with four partitions, which the coordinator of the group `name` knows."""
    return seen_topic(wire, name, PARTITIONS)


@pytest.fixture
def only(wire: Wire, name: str, topic: UUID) -> NewMember:
    """Return the only member of the group `name`. It owns all partitions of the topic `name`."""
    return NewMember(wire, name).joined(name, owns={topic: ALL})


@pytest.fixture
def pair(only: NewMember, topic: UUID) -> tuple[NewMember, NewMember]:
    """Return two members with two partitions each."""
    second = NewMember(only.wire, only.group, "second")
    assert not second.join(only.group).error_code
    settle(only, second)
    assert sorted(only.owned[topic] + second.owned[topic]) == ALL
    assert len(only.owned[topic]) == 2
    return only, second


def smaller(received: int, known: int) -> str:
    return words("smaller", received, known)


def greater(received: int, known: int) -> str:
    return words("greater", received, known)


def words(relation: str, received: int, known: int) -> str:
    return (
        f"The consumer group member has a {relation} member epoch ({received}) than the one known by the group "
        f"coordinator ({known}). The member must abandon all its partitions and rejoin."
    )


# -- the response ------------------------------------------------------------------------------------------------------


def test_first_member_gets_everything_at_once(wire: Wire, name: str, topic: UUID) -> None:
    answer = NewMember(wire, name).join(name)
    assert (answer.error_code, answer.error_message, answer.member_id) == (0, None, "m")
    assert (answer.member_epoch, answer.heartbeat_interval_ms) == (2, 5_000)
    assert assigned(answer) == {topic: ALL}


def test_assignment_is_null_unless_it_changed_or_the_member_says_everything(only: NewMember, topic: UUID) -> None:
    everything: dict[str, Any] = {
        "subscribed_topic_names": [only.group],
        "rebalance_timeout_ms": 60_000,
        "owned": only.owned,
    }
    assert assigned(only.beat()) is None
    assert assigned(only.report()) is None
    for missing in everything:
        assert assigned(only.beat(**{key: value for key, value in everything.items() if key != missing})) is None
    assert assigned(only.beat(**everything)) == {topic: ALL}
    assert assigned(only.beat(**{**everything, "owned": {}})) == {topic: ALL}


def test_what_a_member_says_to_own_changes_nothing(only: NewMember, topic: UUID) -> None:
    for owned in ({}, {topic: [0, 77]}, {uuid4(): [0]}):
        answer = only.beat(owned=owned)
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, only.epoch, None)


# -- epochs ------------------------------------------------------------------------------------------------------------


def test_other_epochs_are_fenced(only: NewMember) -> None:
    epoch = only.epoch
    fields: dict[str, Any] = {"member_id": "m", "owned": only.owned}
    for other in (epoch + 1, epoch + 100):
        answer = refusal(only.wire, only.group, member_epoch=other, **fields)
        assert answer == (FENCED, greater(other, epoch))
    answer = refusal(only.wire, only.group, member_epoch=epoch - 1, **fields)
    assert answer == (FENCED, smaller(epoch - 1, epoch))
    assert only.beat().error_code == 0


def test_previous_epoch_is_accepted_after_a_lost_response(pair: tuple[NewMember, NewMember], topic: UUID) -> None:
    """The member must say what it owns, and own no more than it was last told to keep."""
    first, second = pair
    before, owned = first.epoch, first.owned
    second.leave()
    until(first.beat, lambda answer: answer.member_epoch > before, "the next epoch")
    retry: dict[str, Any] = {"member_id": first.member_id, "member_epoch": before}
    answer = refusal(first.wire, first.group, **retry)
    assert answer == (FENCED, smaller(before, first.epoch))
    for part in (owned, {topic: owned[topic][:1]}, {}):
        again = heartbeat(first.wire, first.group, **retry, owned=part)
        assert (again.error_code, again.member_epoch) == (0, first.epoch)
    answer = refusal(first.wire, first.group, **retry, owned={uuid4(): [0]})
    assert answer == (FENCED, smaller(before, first.epoch))


def test_previous_epoch_does_not_keep_what_was_given_up(pair: tuple[NewMember, NewMember], topic: UUID) -> None:
    first, second = pair
    third = NewMember(first.wire, first.group, "third")
    third.join(first.group)
    before = {each.member_id: (each.epoch, each.owned) for each in pair}
    settle(first, second, third)
    for each in pair:
        epoch, owned = before[each.member_id]
        retry: dict[str, Any] = {"member_id": each.member_id, "member_epoch": epoch}
        if owned != each.owned:
            answer = refusal(first.wire, first.group, **retry, owned=owned)
            assert answer == (FENCED, smaller(epoch, each.epoch))
        assert heartbeat(first.wire, first.group, **retry, owned=each.owned).member_epoch == each.epoch
    assert sorted(itertools.chain(first.owned[topic], second.owned[topic], third.owned[topic])) == ALL


def test_unchanged_member_may_join_again(only: NewMember, topic: UUID) -> None:
    epoch = only.epoch
    answer = only.join(only.group)
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, epoch, {topic: ALL})


def test_member_that_joins_again_may_change_its_subscription(only: NewMember, topic: UUID) -> None:
    epoch = only.epoch
    other = f"{only.group}-other"
    other_topic = only.wire.create_topic(other, 1)
    until_seen(only.wire, only.group, other, 1)
    answer = only.join(other)
    assert answer.error_code == 0
    only.until_owns({other_topic: [0]})
    settle(only)
    assert only.epoch == epoch + 1
    assert topic not in only.owned


# -- two members -------------------------------------------------------------------------------------------------------


def test_member_gets_nothing_before_another_has_given_it_up(only: NewMember, topic: UUID) -> None:
    wire, group = only.wire, only.group
    epoch, everything = only.epoch, only.owned
    second = NewMember(wire, group, "second")
    assert assigned(second.join(group)) == {}
    until(second.beat, lambda answer: answer.member_epoch == epoch + 1, "the second member has the new epoch")
    assert second.owned == {}

    answer = only.beat()  # the first member is told to give partitions up, and keeps its epoch
    kept = only.owned[topic]
    assert (answer.member_epoch, len(kept)) == (epoch, 2)
    for unfinished in (None, everything):
        answer = only.beat(owned=unfinished)
        assert (answer.member_epoch, answer.assignment) == (epoch, None)
        assert assigned(second.beat()) is None

    answer = only.report()
    assert (answer.member_epoch, answer.assignment) == (epoch + 1, None)
    answer = second.beat()
    assert (answer.member_epoch, assigned(answer)) == (epoch + 1, {topic: sorted(set(ALL) - set(kept))})


def test_next_epoch_is_fenced_before_the_partitions_are_given_up(only: NewMember) -> None:
    second = NewMember(only.wire, only.group, "second")
    second.join(only.group)
    epoch = only.epoch
    until(only.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
    assert only.epoch == epoch
    answer = only.report(member_epoch=epoch + 1)
    assert (answer.error_code, answer.error_message) == (FENCED, greater(epoch + 1, epoch))


def test_partitions_of_a_member_that_leaves_go_to_the_others(pair: tuple[NewMember, NewMember], topic: UUID) -> None:
    first, second = pair
    epoch = first.epoch
    answer = second.leave()
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "second", -1)
    first.until_owns({topic: ALL})
    assert first.epoch == epoch + 1
    words = f"Member second is not a member of group {first.group}."
    for member_epoch in (-1, epoch):
        answer = second.beat(member_epoch=member_epoch)
        assert (answer.error_code, answer.error_message) == (UNKNOWN_MEMBER_ID, words)


def test_member_leaves_with_any_epoch_and_what_it_gives_up_is_free(only: NewMember, topic: UUID) -> None:
    second = NewMember(only.wire, only.group, "second")
    second.join(only.group)
    until(only.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
    only.leave()
    second.until_owns({topic: ALL})


def test_member_that_joins_again_gives_everything_up(only: NewMember, topic: UUID) -> None:
    second = NewMember(only.wire, only.group, "second")
    second.join(only.group)
    until(only.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
    epoch = only.epoch
    answer = only.join(only.group)
    assert (answer.error_code, answer.member_epoch) == (0, epoch + 1)
    assert len(only.owned[topic]) == 2
    settle(only, second)
    assert owned_together(only, second) == {topic: ALL}


def test_same_client_joins_twice_with_two_ids(only: NewMember, topic: UUID) -> None:
    ids = [f"member-{index}" for index in range(5)]
    members = [NewMember(only.wire, only.group, each) for each in ids]
    for each in members:
        assert each.join(only.group).error_code == 0
    settle(only, *members)
    assert owned_together(only, *members) == {topic: ALL}
    assert sorted(sum(map(len, each.owned.values())) for each in (only, *members)) == [0, 0, 1, 1, 1, 1]


# -- subscriptions -----------------------------------------------------------------------------------------------------


def test_member_changes_its_subscription(only: NewMember, topic: UUID) -> None:
    other = f"{only.group}-other"
    other_topic = only.wire.create_topic(other, 2)
    until_seen(only.wire, only.group, other, 2)
    assert only.beat(subscribed_topic_names=[other, only.group]).error_code == 0
    only.until_owns({topic: ALL, other_topic: [0, 1]})
    epoch = only.epoch
    assert only.beat(subscribed_topic_names=[only.group, other]).error_code == 0
    assert only.epoch == epoch  # the order of the names means nothing
    assert only.beat(subscribed_topic_names=[other]).error_code == 0
    only.until_owns({other_topic: [0, 1]})
    settle(only)
    assert only.epoch == epoch + 1


def test_member_without_a_subscription_stays(pair: tuple[NewMember, NewMember], topic: UUID) -> None:
    first, second = pair
    epoch = first.epoch
    assert first.beat(subscribed_topic_names=[]).error_code == 0
    until(
        lambda: (first.report(), second.report()),
        lambda _: second.owned == {topic: ALL} and first.epoch == second.epoch,
        "the other has all",
    )
    assert (first.owned, first.epoch) == ({}, epoch + 1)
    assert len(describe_consumer(first.wire, first.group).members) == 2


def test_topic_that_is_created_later_is_assigned(wire: Wire, name: str) -> None:
    wire.find_coordinator(name, 0)
    member = NewMember(wire, name)
    answer = member.join(name)
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, 2, {})
    topic = wire.create_topic(name, 2)
    member.until_owns({topic: [0, 1]})
    assert member.epoch == 3


def test_new_partitions_are_assigned(only: NewMember, topic: UUID) -> None:
    epoch = only.epoch
    add_partitions(only.wire, only.group, 6)
    only.until_owns({topic: [0, 1, 2, 3, 4, 5]})
    assert only.epoch == epoch + 1


def test_deleted_topic_is_taken_away(only: NewMember, topic: UUID) -> None:
    epoch = only.epoch
    delete_topic(only.wire, only.group)
    only.until_owns({})
    until(only.report, lambda answer: answer.member_epoch == epoch + 1, "the next epoch")


def test_topic_that_is_created_again_is_another_one(only: NewMember, topic: UUID) -> None:
    delete_topic(only.wire, only.group)
    only.until_owns({})
    again = only.wire.create_topic(only.group, 1)
    assert again != topic
    only.until_owns({again: [0]})


def test_members_with_different_subscriptions_get_only_theirs(only: NewMember, topic: UUID) -> None:
    other = f"{only.group}-other"
    other_topic = only.wire.create_topic(other, 2)
    until_seen(only.wire, only.group, other, 2)
    second = NewMember(only.wire, only.group, "second")
    second.join(other)
    second.until_owns({other_topic: [0, 1]})
    settle(only, second)
    assert (only.owned, second.owned) == ({topic: ALL}, {other_topic: [0, 1]})


# -- assignors ---------------------------------------------------------------------------------------------------------


def test_range_assigns_the_same_partitions_of_all_topics_together(only: NewMember, topic: UUID) -> None:
    other = f"{only.group}-other"
    other_topic = only.wire.create_topic(other, PARTITIONS)
    until_seen(only.wire, only.group, other, PARTITIONS)
    second = NewMember(only.wire, only.group, "second")
    assert not only.beat(subscribed_topic_names=[only.group, other], server_assignor="range").error_code
    assert not second.join(only.group, other, server_assignor="range").error_code
    settle(only, second)
    assert describe_consumer(only.wire, only.group).assignor_name == "range"
    for each in (only, second):
        assert each.owned[topic] == each.owned[other_topic]
    assert sorted([only.owned[topic], second.owned[topic]]) == [[0, 1], [2, 3]]


def test_most_members_choose_the_assignor(pair: tuple[NewMember, NewMember]) -> None:
    first, second = pair
    assert describe_consumer(first.wire, first.group).assignor_name == "uniform"
    first.beat(server_assignor="range")
    second.beat(server_assignor="range")
    assert describe_consumer(first.wire, first.group).assignor_name == "range"
    for index in range(3):
        NewMember(first.wire, first.group, f"member-{index}").join(first.group, server_assignor="uniform")
    assert describe_consumer(first.wire, first.group).assignor_name == "uniform"


def test_change_of_the_assignor_alone_begins_no_epoch(only: NewMember) -> None:
    epoch = only.epoch
    assert only.beat(server_assignor="range").error_code == 0
    group = describe_consumer(only.wire, only.group)
    assert (group.group_epoch, group.assignor_name, group.group_state) == (epoch, "range", "Stable")


# -- time --------------------------------------------------------------------------------------------------------------


def test_member_that_does_not_give_up_in_time_is_removed(only: NewMember, topic: UUID) -> None:
    assert only.beat(rebalance_timeout_ms=2_000).error_code == 0
    second = NewMember(only.wire, only.group, "second")
    second.join(only.group)
    until(only.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
    until(only.beat, lambda answer: answer.error_code != 0, "the member is removed")
    assert only.beat().error_code == UNKNOWN_MEMBER_ID
    second.until_owns({topic: ALL})


def test_member_that_gives_up_in_time_stays(only: NewMember, topic: UUID) -> None:
    assert only.beat(rebalance_timeout_ms=2_000).error_code == 0
    second = NewMember(only.wire, only.group, "second")
    second.join(only.group)
    until(only.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
    assert only.report().error_code == 0
    third = NewMember(only.wire, only.group, "third")  # it is late, and it is removed after the same time
    settle(only, second)
    second.beat(rebalance_timeout_ms=2_000)
    third.join(only.group)
    until(
        lambda: (only.report(), third.report(), second.beat())[-1].error_code,
        lambda error: error == UNKNOWN_MEMBER_ID,
        "the second member is removed",
    )
    assert only.report().error_code == third.report().error_code == 0


# -- deletion ----------------------------------------------------------------------------------------------------------


def test_deleted_group_is_unknown_and_begins_anew(only: NewMember, topic: UUID) -> None:
    assert delete_groups(only.wire, only.group) == {only.group: code("NON_EMPTY_GROUP")}
    epoch = only.epoch
    only.leave()
    assert delete_groups(only.wire, only.group) == {only.group: 0}
    answer = only.beat(member_epoch=epoch)
    assert (answer.error_code, answer.error_message) == (GROUP_ID_NOT_FOUND, f"Consumer group {only.group} not found.")
    answer = only.leave()
    assert (answer.error_code, answer.error_message) == (GROUP_ID_NOT_FOUND, f"Group {only.group} not found.")
    answer = only.join(only.group)
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, 2, {topic: ALL})
