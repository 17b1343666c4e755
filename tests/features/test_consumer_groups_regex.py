"""Subscriptions with regular expressions, which the broker resolves (KIP-848).

When it does so is its own affair: tests wait until a member has what it shall have.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from support.consumer_groups import (
    NewMember,
    assigned,
    delete_topic,
    describe_consumer,
    owned_together,
    seen_topic,
    settle,
)
from support.groups import commit, delete_offsets
from support.wire import Wire, code, until


@pytest.fixture
def topic(wire: Wire, name: str) -> UUID:
    """Create the topic `name` with two partitions."""
    return seen_topic(wire, name, 2)


def by_regex(regex: str, **fields: Any) -> dict[str, Any]:
    """Return the fields of a member that joins with a regular expression only."""
    return {"subscribed_topic_names": None, "subscribed_topic_regex": regex, **fields}


def regexes(member: NewMember) -> dict[str, str]:
    """Return the expression of each member."""
    group = describe_consumer(member.wire, member.group)
    return {each.member_id: each.subscribed_topic_regex for each in group.members}


# -- what matches ------------------------------------------------------------------------------------------------------


def test_topics_that_match_are_assigned_soon(wire: Wire, name: str, topic: UUID) -> None:
    other = wire.create_topic(f"{name}-other")
    member = NewMember(wire, name)
    answer = member.join(**by_regex(f"{name}.*"))
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, 1, {})
    member.until_owns({topic: [0, 1], other: [0]})
    assert member.epoch == 2


def test_topics_that_are_created_later_are_assigned(wire: Wire, name: str, topic: UUID) -> None:
    member = NewMember(wire, name).joined(owns={topic: [0, 1]}, **by_regex(f"{name}.*"))
    epoch = member.epoch
    other = wire.create_topic(f"{name}-other")
    member.until_owns({topic: [0, 1], other: [0]})
    assert member.epoch == epoch + 1
    delete_topic(wire, f"{name}-other")
    member.until_owns({topic: [0, 1]})


def test_topics_may_come_after_the_expression(wire: Wire, name: str) -> None:
    wire.find_coordinator(name, 0)
    member = NewMember(wire, name)
    assert assigned(member.join(**by_regex(f"{name}-.*"))) == {}
    topic = wire.create_topic(f"{name}-new")
    member.until_owns({topic: [0]})


def test_expression_matches_whole_names(wire: Wire, name: str, topic: UUID) -> None:
    """`name` alone matches, with prefix or suffix it does not; alternatives and flags work."""
    wire.create_topic(f"{name}-suffix")
    wire.create_topic(f"prefix-{name}")
    for index, regex in enumerate([name, f"nothing|{name}", f"(?i){name.upper()}", f"^{name}$", f"{name[:-1]}."]):
        group = f"{name}-{index}"
        wire.find_coordinator(group, 0)
        NewMember(wire, group).joined(owns={topic: [0, 1]}, **by_regex(regex))


def test_internal_topics_match(wire: Wire, name: str) -> None:
    wire.find_coordinator(name, 0)
    member = NewMember(wire, name)
    assert member.join(**by_regex("__consumer_offset.")).error_code == 0
    until(lambda: (member.report(), member.owned)[1], bool, "the internal topic")
    assert member.beat(subscribed_topic_regex="").error_code == 0
    member.until_owns({})


# -- names and expressions ---------------------------------------------------------------------------------------------


def test_names_and_expression_together(wire: Wire, name: str, topic: UUID) -> None:
    other = wire.create_topic(f"other-{name}")
    member = NewMember(wire, name)
    answer = member.join(f"other-{name}", name, subscribed_topic_regex=f"{name}.*")
    assert answer.error_code == 0
    member.until_owns({topic: [0, 1], other: [0]})
    (found,) = describe_consumer(wire, name).members
    assert sorted(found.subscribed_topic_names) == sorted([f"other-{name}", name])
    assert found.subscribed_topic_regex == f"{name}.*"
    assert member.beat(subscribed_topic_names=[]).error_code == 0
    member.until_owns({topic: [0, 1]})
    assert member.beat(subscribed_topic_names=[f"other-{name}"], subscribed_topic_regex="").error_code == 0
    member.until_owns({other: [0]})
    assert regexes(member) == {"m": ""}


def test_expression_changes(wire: Wire, name: str, topic: UUID) -> None:
    other = wire.create_topic(f"{name}-other")
    member = NewMember(wire, name).joined(owns={topic: [0, 1]}, **by_regex(name))
    answer = member.beat(subscribed_topic_regex=f"{name}-.*")
    assert (answer.error_code, assigned(answer)) == (0, {})  # what it had is taken away at once
    member.until_owns({other: [0]})
    assert regexes(member) == {"m": f"{name}-.*"}


def test_expression_stays_if_a_heartbeat_says_nothing(wire: Wire, name: str, topic: UUID) -> None:
    member = NewMember(wire, name).joined(owns={topic: [0, 1]}, **by_regex(name))
    epoch = member.epoch
    for version in (0, 1):
        assert member.beat(version=version).error_code == 0
    assert member.beat(subscribed_topic_regex=name).error_code == 0
    assert (member.epoch, regexes(member)) == (epoch, {"m": name})


def test_expression_may_be_removed(wire: Wire, name: str, topic: UUID) -> None:
    member = NewMember(wire, name).joined(owns={topic: [0, 1]}, **by_regex(name))
    answer = member.beat(subscribed_topic_regex="")
    assert answer.error_code == 0
    member.until_owns({})
    assert regexes(member) == {"m": ""}


def test_wrong_expression_changes_nothing(wire: Wire, name: str, topic: UUID) -> None:
    member = NewMember(wire, name).joined(owns={topic: [0, 1]}, **by_regex(name))
    assert member.beat(subscribed_topic_regex="(").error_code == code("INVALID_REGULAR_EXPRESSION")
    assert (member.report().error_code, member.owned, regexes(member)) == (0, {topic: [0, 1]}, {"m": name})


# -- several members ---------------------------------------------------------------------------------------------------


def test_two_members_with_the_same_expression(wire: Wire, name: str, topic: UUID) -> None:
    first = NewMember(wire, name, "first").joined(owns={topic: [0, 1]}, **by_regex(f"{name}.*"))
    second = NewMember(wire, name, "second")
    assert second.join(**by_regex(f"{name}.*")).error_code == 0
    until(lambda: (first.report(), second.report(), second.owned)[2], bool, "the second member owns something")
    settle(first, second)
    assert owned_together(first, second) == {topic: [0, 1]}
    assert len(first.owned[topic]) == 1
    first.leave()
    second.until_owns({topic: [0, 1]})


def test_members_with_names_and_with_an_expression_share(wire: Wire, name: str, topic: UUID) -> None:
    first = NewMember(wire, name, "first").joined(name, owns={topic: [0, 1]})
    second = NewMember(wire, name, "second")
    assert second.join(**by_regex(name)).error_code == 0
    until(lambda: (first.report(), second.report(), second.owned)[2], bool, "the second member owns something")
    settle(first, second)
    assert owned_together(first, second) == {topic: [0, 1]}


def test_static_member_returns_with_its_expression(wire: Wire, name: str, topic: UUID) -> None:
    member = NewMember(wire, name, "first", instance_id="i").joined(owns={topic: [0, 1]}, **by_regex(name))
    member.leave(-2)
    new = NewMember(wire, name, "next", instance_id="i")
    assert new.join(**by_regex(name)).error_code == 0
    new.until_owns({topic: [0, 1]})
    assert regexes(new) == {"next": name}


# -- the rest of the group ---------------------------------------------------------------------------------------------


def test_offsets_of_matching_topics_are_not_deleted(wire: Wire, name: str, topic: UUID) -> None:
    member = NewMember(wire, name).joined(owns={topic: [0, 1]}, **by_regex(f"{name}.*"))
    fields: dict[str, Any] = {"member_id": "m", "generation_id_or_member_epoch": member.epoch}
    assert commit(wire, name, {0: 3}, group_id=name, **fields) == [0]
    subscribed = code("GROUP_SUBSCRIBED_TO_TOPIC")
    assert delete_offsets(wire, name, {name: [0]}) == {(name, 0): subscribed}
    member.leave()
    assert delete_offsets(wire, name, {name: [0]}) == {(name, 0): 0}
