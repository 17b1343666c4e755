"""Describing and listing groups of the consumer protocol (KIP-848, KIP-1043, KIP-1099)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from oncelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from support.classic_consumers import ClassicConsumer, assignment
from support.consumer_groups import LEAVE_STATIC, NewMember, describe_consumer, seen_topic, settle
from support.groups import describe, simple_commit
from support.servers import Server
from support.wire import Wire, code, until

GROUP_ID_NOT_FOUND = code("GROUP_ID_NOT_FOUND")
NO_OPERATIONS = -2_147_483_648
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS."""
ALL = [0, 1, 2, 3]


@pytest.fixture
def topic(wire: Wire, name: str) -> UUID:
    return seen_topic(wire, name, len(ALL))


@pytest.fixture
def only(wire: Wire, name: str, topic: UUID) -> NewMember:
    """Return the only member of the group `name`. It owns all partitions of the topic `name`."""
    return NewMember(wire, name).joined(name, owns={topic: ALL})


def listed(wire: Wire, group: str, version: int | None = None, **filters: Any) -> tuple[str, str, str] | None:
    """Return protocol type, state and type of a group in ListGroups, None if it is not there."""
    answer = wire.call(ListGroupsRequest(**filters), version)
    assert not answer.error_code
    found = [each for each in answer.groups if each.group_id == group]
    return (found[0].protocol_type, found[0].group_state, found[0].group_type) if found else None


def parts(described: Any) -> list[tuple[str, list[int]]]:
    """Return an assignment of ConsumerGroupDescribe by names."""
    return [(each.topic_name, sorted(each.partitions)) for each in described.topic_partitions]


def member_of(group: Any, member_id: str) -> Any:
    return next(each for each in group.members if each.member_id == member_id)


# -- ConsumerGroupDescribe ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "member_type"), [(0, -1), (1, 1)])
def test_description_has_what_the_members_said(
    wire: Wire, name: str, topic: UUID, version: int, member_type: int
) -> None:
    member = NewMember(wire, name, instance_id="i", rack_id="r")
    member.joined(name, owns={topic: ALL}, server_assignor="range")
    group = describe_consumer(wire, name, version)
    assert (group.error_code, group.error_message, group.group_id) == (0, None, name)
    assert (group.group_state, group.assignor_name) == ("Stable", "range")
    assert group.group_epoch == group.assignment_epoch == member.epoch
    assert group.authorized_operations == NO_OPERATIONS
    (found,) = group.members
    assert (found.member_id, found.instance_id, found.rack_id) == ("m", "i", "r")
    assert (found.client_id, found.client_host) == ("wire", "/127.0.0.1")
    assert (found.member_epoch, found.member_type) == (member.epoch, member_type)
    assert (found.subscribed_topic_names, found.subscribed_topic_regex) == ([name], "")
    assert parts(found.assignment) == parts(found.target_assignment) == [(name, ALL)]
    assert found.assignment.topic_partitions[0].topic_id == topic


def test_description_of_a_regular_expression(wire: Wire, name: str, topic: UUID) -> None:
    member = NewMember(wire, name)
    member.joined(owns={topic: ALL}, subscribed_topic_names=None, subscribed_topic_regex=name)
    (found,) = describe_consumer(wire, name).members
    assert (found.subscribed_topic_names, found.subscribed_topic_regex) == ([], name)
    assert parts(found.assignment) == [(name, ALL)]


@pytest.mark.parametrize("version", [0, 1])
def test_description_has_the_authorized_operations(only: NewMember, version: int) -> None:
    group = describe_consumer(only.wire, only.group, version, include_authorized_operations=True)
    assert group.authorized_operations == ALL_OPERATIONS


def test_groups_that_are_unknown_or_classic(wire: Wire, server: Server, name: str) -> None:
    wire.find_coordinator(name, 0)
    group = describe_consumer(wire, name, include_authorized_operations=True)
    assert (group.error_code, group.error_message) == (GROUP_ID_NOT_FOUND, f"Group {name} not found.")
    assert (group.group_state, group.members, group.authorized_operations) == ("", [], NO_OPERATIONS)
    words = f"Group {name} is not a consumer group."
    simple_commit(wire, name, wire_topic(wire, name), {0: 1})
    group = describe_consumer(wire, name)
    assert (group.error_code, group.error_message) == (GROUP_ID_NOT_FOUND, words)
    classic = ClassicConsumer(server.bootstrap, name, name)
    classic.join()
    classic.sync({classic.member_id: assignment({})})
    group = describe_consumer(wire, name)
    assert (group.error_code, group.error_message, group.group_state) == (GROUP_ID_NOT_FOUND, words, "")
    classic.close()


def wire_topic(wire: Wire, name: str) -> str:
    """Create a topic, and return its name."""
    wire.create_topic(name)
    return name


def test_several_groups_in_one_request(only: NewMember) -> None:
    names = [only.group, f"{only.group}-none", ""]
    found = only.wire.call(ConsumerGroupDescribeRequest(group_ids=names)).groups
    assert sorted((each.group_id, each.error_code) for each in found) == sorted(
        [(only.group, 0), (f"{only.group}-none", GROUP_ID_NOT_FOUND), ("", code("INVALID_GROUP_ID"))]
    )


# -- states ------------------------------------------------------------------------------------------------------------


def test_state_is_reconciling_until_all_members_have_what_they_shall(only: NewMember, topic: UUID) -> None:
    wire, name = only.wire, only.group
    second = NewMember(wire, name, "second")
    second.join(name)
    epoch = only.epoch + 1
    until(second.beat, lambda answer: answer.member_epoch == epoch, "the new epoch")

    def check(owned: list[int], *, state: str) -> None:
        group = describe_consumer(wire, name)
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == (state, epoch, epoch)
        first = member_of(group, "m")
        assert parts(first.assignment) == [(name, owned)]
        assert len(parts(first.target_assignment)[0][1]) == len(
            parts(member_of(group, "second").target_assignment)[0][1]
        )
        assert listed(wire, name) == ("consumer", state, "consumer")

    check(ALL, state="Reconciling")
    assert parts(member_of(describe_consumer(wire, name), "second").assignment) == []
    assert only.beat().assignment is not None
    check(ALL, state="Reconciling")  # what it is giving up is still its own
    only.report()
    check(only.owned[topic], state="Reconciling")
    second.beat()
    check(only.owned[topic], state="Stable")


def test_group_without_members_is_empty(only: NewMember) -> None:
    epoch = only.epoch
    only.leave()
    group = describe_consumer(only.wire, only.group, include_authorized_operations=True)
    assert (group.error_code, group.group_state, group.members) == (0, "Empty", [])
    assert (group.group_epoch, group.assignment_epoch) == (epoch + 1, epoch)
    assert (group.assignor_name, group.authorized_operations) == ("uniform", ALL_OPERATIONS)


def test_static_member_that_left_for_a_while_is_described(wire: Wire, name: str, topic: UUID) -> None:
    member = NewMember(wire, name, instance_id="i").joined(name, owns={topic: ALL})
    member.leave(LEAVE_STATIC)
    group = describe_consumer(wire, name)
    (found,) = group.members
    assert (found.member_id, found.instance_id, found.member_epoch) == ("m", "i", -2)
    assert parts(found.assignment) == parts(found.target_assignment) == [(name, ALL)]


# -- DescribeGroups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 5])
def test_old_description_shows_a_dead_group(only: NewMember, version: int) -> None:
    group = describe(only.wire, only.group, version=version)
    assert (group.error_code, group.group_state, group.protocol_type) == (0, "Dead", "")
    assert (group.protocol_data, group.members) == ("", [])


def test_new_description_says_that_the_group_is_not_classic(only: NewMember) -> None:
    group = describe(only.wire, only.group, version=6)
    assert (group.error_code, group.group_state) == (GROUP_ID_NOT_FOUND, "Dead")
    assert group.error_message == f"Group {only.group} is not a classic group."


# -- ListGroups --------------------------------------------------------------------------------------------------------


def test_list_has_state_and_type_in_the_versions_that_know_them(only: NewMember) -> None:
    wire, group = only.wire, only.group
    assert listed(wire, group) == ("consumer", "Stable", "consumer")
    assert listed(wire, group, 4) == ("consumer", "Stable", "")
    assert listed(wire, group, 3) == ("consumer", "", "")


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"types_filter": ["consumer"]}, True),
        ({"types_filter": ["CONSUMER"]}, True),
        ({"types_filter": ["classic", "consumer"]}, True),
        ({"types_filter": ["classic"]}, False),
        ({"types_filter": ["share"]}, False),
        ({"types_filter": ["nope"]}, False),
        ({"states_filter": ["Stable"]}, True),
        ({"states_filter": ["empty", "STABLE"]}, True),
        ({"states_filter": ["Empty", "Assigning", "Reconciling", "Dead", "nope"]}, False),
        ({"states_filter": ["Stable"], "types_filter": ["consumer"]}, True),
        ({"states_filter": ["Stable"], "types_filter": ["classic"]}, False),
        ({"states_filter": ["Empty"], "types_filter": ["consumer"]}, False),
    ],
    ids=str,
)
def test_list_is_filtered(only: NewMember, filters: dict[str, Any], found: bool) -> None:
    assert (listed(only.wire, only.group, **filters) is not None) == found


def test_list_of_both_types(only: NewMember, server: Server) -> None:
    classic = ClassicConsumer(server.bootstrap, f"{only.group}-classic", only.group)
    classic.join()
    classic.sync({classic.member_id: assignment({})})
    assert listed(only.wire, classic.group) == ("consumer", "Stable", "classic")
    assert listed(only.wire, classic.group, types_filter=["Classic"]) == ("consumer", "Stable", "classic")
    assert listed(only.wire, classic.group, types_filter=["consumer"]) is None
    classic.close()


def test_list_shows_an_empty_group(only: NewMember) -> None:
    second = NewMember(only.wire, only.group, "second")
    second.join(only.group)
    settle(only, second)
    for each in (only, second):
        each.leave()
    assert listed(only.wire, only.group, states_filter=["Empty"]) == ("consumer", "Empty", "consumer")
