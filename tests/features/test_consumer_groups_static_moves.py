"""Static members that change between the classic and the consumer protocol: a rolling restart (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from support.classic_consumers import REBALANCE_IN_PROGRESS, ClassicConsumer, assignment, subscription
from support.consumer_groups import LEAVE_STATIC, NewMember, assigned, describe_consumer, seen_topic
from support.groups import describe, rejoin_as_static
from support.servers import Server
from support.wire import Wire, code, until

FENCED = code("FENCED_INSTANCE_ID")
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
GROUP_ID_NOT_FOUND = code("GROUP_ID_NOT_FOUND")
CLASSIC, CONSUMER = 0, 1


@pytest.fixture
def topic(wire: Wire, name: str) -> UUID:
    return seen_topic(wire, name, 2)


@pytest.fixture
def classic(wire: Wire, server: Server, name: str, topic: UUID) -> Iterator[ClassicConsumer]:
    """Return the only member of a classic group, with the instance id "i". It owns both partitions."""
    member = ClassicConsumer(server.bootstrap, name, name, group_instance_id="i")
    assert not member.join().error_code
    member.take_assignment(member.sync({member.member_id: assignment({name: [0, 1]})}))
    yield member
    member.close()


def returned(wire: Wire, classic: ClassicConsumer) -> Any:
    """Return the response to the JoinGroup of the next process with the same instance id."""
    return rejoin_as_static(classic, wire, protocols={classic.assignor: subscription(*classic.topics)})


def leave(wire: Wire, group: str, instance_id: str, member_id: str = "") -> int:
    """Send LeaveGroup as an admin does, and return the error code of the member."""
    identity = MemberIdentity(member_id=member_id, group_instance_id=instance_id)
    error: int = wire.call(LeaveGroupRequest(group_id=group, members=[identity])).members[0].error_code
    return error


def members(wire: Wire, group: str) -> list[tuple[str, str | None, int]]:
    """Return id, instance id and type of each member."""
    found = describe_consumer(wire, group, 1).members
    return sorted((each.member_id, each.instance_id, each.member_type) for each in found)


# -- the same instance id ----------------------------------------------------------------------------------------------


def test_new_member_takes_the_place_of_a_classic_one(wire: Wire, classic: ClassicConsumer, topic: UUID) -> None:
    """In the same epoch, and without a leave of the classic one."""
    generation = classic.generation
    new = NewMember(wire, classic.group, "new", instance_id="i")
    answer = new.join(classic.group)
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, generation, {topic: [0, 1]})
    assert members(wire, classic.group) == [("new", "i", CONSUMER)]
    assert classic.heartbeat() == classic.join().error_code == classic.sync().error_code == FENCED
    assert classic.commit(classic.group, 3) == UNKNOWN_MEMBER_ID
    assert new.beat().error_code == 0


@pytest.mark.parametrize("away", [False, True])
def test_classic_member_takes_its_place_back(wire: Wire, classic: ClassicConsumer, topic: UUID, away: bool) -> None:
    """It was the last one of the consumer protocol, so that the group is a stable classic one again."""
    new = NewMember(wire, classic.group, "new", instance_id="i")
    assert new.join(classic.group).error_code == 0
    epoch = new.epoch
    if away:
        new.leave(LEAVE_STATIC)
    answer = returned(wire, classic)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, epoch, "range")
    assert answer.member_id
    group = describe(wire, classic.group)
    assert (group.error_code, group.group_state) == (0, "Stable")
    assert [(each.member_id, each.group_instance_id) for each in group.members] == [(answer.member_id, "i")]
    answer = new.beat(member_epoch=epoch)
    assert (answer.error_code, answer.error_message) == (
        GROUP_ID_NOT_FOUND,
        f"Group {classic.group} is not a consumer group.",
    )


# -- a static classic member in a consumer group -----------------------------------------------------------------------


@pytest.fixture
def mixed(wire: Wire, classic: ClassicConsumer, topic: UUID) -> NewMember:
    """Let a member of the consumer protocol join the group of `classic`, and return it. Each has one partition."""
    new = NewMember(wire, classic.group, "new")
    assert not new.join(classic.group).error_code
    until(
        lambda: (classic.catch_up(), new.report(), len(new.owned.get(topic, [])))[2],
        lambda found: found == 1,
        "the new member has a partition",
    )
    until(classic.catch_up, lambda error: not error, "the classic member has the epoch")
    return new


def test_static_classic_member_returns_to_the_same_partitions(
    wire: Wire, classic: ClassicConsumer, mixed: NewMember
) -> None:
    answer = returned(wire, classic)
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, mixed.epoch, "")
    assert answer.member_id != classic.member_id
    assert members(wire, classic.group) == sorted([(answer.member_id, "i", CLASSIC), ("new", None, CONSUMER)])
    assert mixed.report().member_epoch == mixed.epoch
    # the process before it is fenced
    assert classic.heartbeat() == classic.sync().error_code == classic.join().error_code == FENCED
    assert classic.commit(classic.group, 3) == UNKNOWN_MEMBER_ID
    owned = classic.owned
    classic.member_id = answer.member_id
    classic.take_assignment(classic.sync())
    assert classic.owned == owned


def test_other_member_ids_with_the_instance_id_are_fenced(classic: ClassicConsumer, mixed: NewMember) -> None:
    assert classic.heartbeat(member_id="other") == classic.sync(member_id="other").error_code == FENCED
    assert classic.heartbeat(group_instance_id="unknown") == UNKNOWN_MEMBER_ID
    assert classic.heartbeat() == 0


def test_admin_removes_static_members_of_both_protocols(wire: Wire, classic: ClassicConsumer, mixed: NewMember) -> None:
    static = NewMember(wire, classic.group, "static", instance_id="j")
    assert static.join(classic.group).error_code == 0
    for instance_id in ("i", "j"):
        assert leave(wire, classic.group, instance_id, "other") == FENCED
        assert leave(wire, classic.group, instance_id) == 0
        assert leave(wire, classic.group, instance_id) == UNKNOWN_MEMBER_ID
    assert members(wire, classic.group) == [("new", None, CONSUMER)]
    assert classic.heartbeat() == UNKNOWN_MEMBER_ID
    assert static.beat().error_code == UNKNOWN_MEMBER_ID


def test_static_members_of_both_protocols_share_a_group(
    wire: Wire, server: Server, classic: ClassicConsumer, topic: UUID
) -> None:
    """A rolling restart of two static members, one after the other, to the consumer protocol."""
    second = ClassicConsumer(server.bootstrap, classic.group, classic.group, group_instance_id="j")
    second.ask_to_join()
    until(classic.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "a rebalance")
    classic.ask_to_join()
    for each in (classic, second):
        assert each.take().error_code == 0
    leader, other = sorted((classic, second), key=lambda each: not each.leads)
    halves = {leader.member_id: assignment({classic.group: [0]}), other.member_id: assignment({classic.group: [1]})}
    leader.take_assignment(leader.sync(halves))
    other.take_assignment(other.sync())
    generation = leader.generation

    first_new = NewMember(wire, classic.group, "new-i", instance_id="i")
    assert first_new.join(classic.group).member_epoch == generation
    assert first_new.owned == {topic: classic.owned[classic.group]}
    assert second.heartbeat() == 0  # nothing changed for it
    second_new = NewMember(wire, classic.group, "new-j", instance_id="j")
    assert second_new.join(classic.group).member_epoch == generation
    assert second_new.owned == {topic: second.owned[classic.group]}
    assert members(wire, classic.group) == [("new-i", "i", CONSUMER), ("new-j", "j", CONSUMER)]
    assert describe_consumer(wire, classic.group).group_state == "Stable"
    second.close()
