"""Sessions of members of the consumer protocol (KIP-848) on a broker that allows short ones, and how many may join."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from support.classic_consumers import ClassicConsumer
from support.consumer_groups import (
    LEAVE_STATIC,
    NewMember,
    assigned,
    configure_group,
    describe_consumer,
    owned_together,
    seen_topic,
    settle,
)
from support.groups import commit
from support.servers import Server
from support.wire import Wire, code, until

SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.min.session.timeout.ms": "500",
    "group.consumer.max.size": "3",
}
SHORT_MS = 3_000
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
GROUP_MAX_SIZE_REACHED = code("GROUP_MAX_SIZE_REACHED")
REBALANCE_IN_PROGRESS = code("REBALANCE_IN_PROGRESS")
ALL = [0, 1, 2, 3]


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


def joined_too(member: NewMember, member_id: str = "second", instance_id: str | None = None) -> NewMember:
    """Let another member join, and return it."""
    identity = {} if instance_id is None else {"instance_id": instance_id}
    other = NewMember(member.wire, member.group, member_id, **identity)
    assert not other.join(member.group).error_code
    settle(member, other)
    return other


def have_short_sessions(*members: NewMember) -> None:
    """Give the group short sessions, which the last heartbeat of each member has begun."""
    group = members[0]
    configs = {"consumer_session_timeout_ms": str(SHORT_MS), "consumer_heartbeat_interval_ms": "700"}
    assert configure_group(group.wire, group.group, **configs) == 0
    until(lambda: group.beat().heartbeat_interval_ms, lambda found: found == 700, "the group's configs are used")
    for each in members:
        assert each.report().error_code == 0


def members(member: NewMember) -> set[str]:
    return {each.member_id for each in describe_consumer(member.wire, member.group).members}


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_silent_member_is_removed(first: NewMember, topic: UUID) -> None:
    second = joined_too(first)
    have_short_sessions(first, second)
    first.until_owns({topic: ALL})
    assert members(first) == {"first"}
    answer = second.beat()
    assert answer.error_code == UNKNOWN_MEMBER_ID
    assert answer.error_message == f"Member second is not a member of group {first.group}."
    assert second.join(first.group).error_code == 0
    settle(first, second)
    assert owned_together(first, second) == {topic: ALL}


def test_last_member_is_removed(first: NewMember) -> None:
    have_short_sessions(first)
    group = until(
        lambda: describe_consumer(first.wire, first.group), lambda found: not found.members, "the member is removed"
    )
    assert (group.group_state, group.group_epoch) == ("Empty", first.epoch + 1)


def test_only_heartbeats_keep_a_session(first: NewMember) -> None:
    """Not commits."""
    have_short_sessions(first)
    fields: dict[str, Any] = {"member_id": "first", "generation_id_or_member_epoch": first.epoch}
    until(
        lambda: commit(first.wire, first.group, {0: 1}, group_id=first.group, **fields)[0],
        lambda error: error == UNKNOWN_MEMBER_ID,
        "the member is removed",
    )


def test_static_member_that_does_not_come_back_is_removed(first: NewMember, topic: UUID) -> None:
    second = joined_too(first, instance_id="i")
    have_short_sessions(first, second)
    second.leave(LEAVE_STATIC)
    first.until_owns({topic: ALL})
    assert members(first) == {"first"}
    new = NewMember(first.wire, first.group, "new", instance_id="i")
    assert new.join(first.group).error_code == 0
    settle(first, new)
    assert owned_together(first, new) == {topic: ALL}


def test_static_member_that_is_silent_is_removed(first: NewMember, topic: UUID) -> None:
    second = joined_too(first, instance_id="i")
    have_short_sessions(first, second)
    new = NewMember(first.wire, first.group, "new", instance_id="i")
    assert new.join(first.group).error_code == code("UNRELEASED_INSTANCE_ID")
    first.until_owns({topic: ALL})
    assert new.join(first.group).error_code == 0


def test_member_that_is_giving_up_is_removed_if_it_is_silent(first: NewMember, topic: UUID) -> None:
    have_short_sessions(first)
    second = NewMember(first.wire, first.group, "second")
    assert second.join(first.group).error_code == 0
    until(first.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
    second.until_owns({topic: ALL})
    assert first.report().error_code == UNKNOWN_MEMBER_ID


# -- classic members ---------------------------------------------------------------------------------------------------


def test_silent_classic_member_is_removed_after_its_own_session(
    module_server: Server, first: NewMember, topic: UUID
) -> None:
    classic = ClassicConsumer(module_server.bootstrap, first.group, first.group, session_timeout_ms=SHORT_MS)
    assert classic.rejoin().error_code == 0
    assert classic.member_id in members(first)
    until(lambda: (first.report(), members(first))[1], lambda found: found == {"first"}, "the member is removed")
    first.until_owns({topic: ALL})
    assert classic.heartbeat() == UNKNOWN_MEMBER_ID
    classic.close()


def test_classic_member_that_does_not_rejoin_in_time_is_removed(module_server: Server, first: NewMember) -> None:
    classic = ClassicConsumer(module_server.bootstrap, first.group, first.group, rebalance_timeout_ms=2_000)
    assert classic.rejoin().error_code == 0
    until(lambda: (first.report(), classic.catch_up(), classic.owned)[2], bool, "the member owns something")
    until(lambda: (first.report(), classic.catch_up())[1], lambda error: not error, "the member has the last epoch")
    second = NewMember(first.wire, first.group, "second")
    assert second.join(first.group).error_code == 0
    until(
        lambda: (first.report(), second.report(), classic.heartbeat())[2],
        lambda error: error == REBALANCE_IN_PROGRESS,
        "the member must rejoin",
    )
    until(
        lambda: (first.report(), second.report(), classic.heartbeat())[2],
        lambda error: error == UNKNOWN_MEMBER_ID,
        "the member is removed",
    )
    settle(first, second)
    classic.close()


# -- size --------------------------------------------------------------------------------------------------------------


def test_full_group_refuses_new_members(first: NewMember) -> None:
    others = [joined_too(first, "second"), NewMember(first.wire, first.group, "third", instance_id="i")]
    assert others[1].join(first.group).error_code == 0
    for member_id, instance_id in (("fourth", None), ("fifth", "j")):
        identity = {} if instance_id is None else {"instance_id": instance_id}
        refused = NewMember(first.wire, first.group, member_id, **identity).join(first.group)
        assert refused.error_code == GROUP_MAX_SIZE_REACHED
        assert refused.error_message == "The consumer group has reached its maximum capacity of 3 members."
    assert assigned(first.join(first.group)) is not None  # a member may join again
    others[0].leave()
    assert NewMember(first.wire, first.group, "fourth").join(first.group).error_code == 0


def test_classic_member_cannot_join_a_full_group(module_server: Server, first: NewMember) -> None:
    for member_id in ("second", "third"):
        assert NewMember(first.wire, first.group, member_id).join(first.group).error_code == 0
    classic = ClassicConsumer(module_server.bootstrap, first.group, first.group, group_instance_id="c")
    assert classic.join().error_code == GROUP_MAX_SIZE_REACHED
    classic.close()


# -- the group's configs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name_of_config", "value", "allowed"),
    [
        ("consumer_session_timeout_ms", "999", False),
        ("consumer_session_timeout_ms", "1000", False),  # not longer than the heartbeat interval
        ("consumer_session_timeout_ms", "5001", True),
        ("consumer_session_timeout_ms", "60001", False),
        ("consumer_heartbeat_interval_ms", "499", False),
        ("consumer_heartbeat_interval_ms", "500", True),
        ("consumer_heartbeat_interval_ms", "15001", False),
    ],
)
def test_configs_of_a_group_have_the_brokers_bounds(
    wire: Wire, name: str, name_of_config: str, value: str, allowed: bool
) -> None:
    error = configure_group(wire, name, **{name_of_config: value})
    assert error == (0 if allowed else code("INVALID_CONFIG"))
