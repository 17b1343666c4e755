"""Static members (KIP-345): they keep their place over restarts, and a duplicate is fenced."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from support.groups import (
    NEW_JOIN,
    Member,
    commit,
    describe,
    finish,
    join_request,
    make_impatient,
    rejoin_as_static,
    stable,
    subscription,
)
from support.servers import Server
from support.wire import Wire, code, retried, until

FENCED = code("FENCED_INSTANCE_ID")
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
REBALANCE_IN_PROGRESS = code("REBALANCE_IN_PROGRESS")


@pytest.fixture
def pair(server: Server, name: str) -> Iterator[Callable[[], tuple[Member, Member]]]:
    """Create a stable group of the static members "a" and "b", the leader first."""
    made: list[Member] = []

    def make() -> tuple[Member, Member]:
        first = stable(server.bootstrap, name, group_instance_id="a")[0]
        second = Member(server.bootstrap, name, group_instance_id="b")
        made.extend((first, second))
        second.ask_to_join()
        until(first.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "rebalance")
        first.ask_to_join()
        for each in made:
            assert not each.take().error_code
        made.sort(key=lambda each: not each.leads)
        finish(made)
        return made[0], made[1]

    yield make
    for each in made:
        each.close()


def test_static_member_joins_in_one_step_and_is_identified_by_its_instance(wire: Wire, name: str) -> None:
    wire.find_coordinator(name, 0)
    answer = retried(lambda: wire.call(join_request(name, group_instance_id="a")))
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id.startswith("a-")
    assert [each.group_instance_id for each in answer.members] == ["a"]
    assert describe(wire, name).members[0].group_instance_id == "a"


def test_follower_returns_to_its_assignment_without_a_rebalance(
    wire: Wire, pair: Callable[[], tuple[Member, Member]]
) -> None:
    leader, follower = pair()
    back = rejoin_as_static(follower, wire)
    assert (back.error_code, back.generation_id, back.leader) == (0, follower.generation, leader.member_id)
    assert back.member_id != follower.member_id
    assert (back.members, back.skip_assignment) == ([], False)
    was = follower.member_id
    assert follower.heartbeat() == FENCED
    assert follower.sync().error_code == FENCED
    follower.member_id, follower.joined = back.member_id, back
    assert leader.heartbeat() == follower.heartbeat() == 0
    assert follower.sync().assignment == was.encode()


@pytest.mark.parametrize("version", [5, 8, NEW_JOIN])
def test_leader_returns_without_a_new_assignment(
    wire: Wire, pair: Callable[[], tuple[Member, Member]], version: int
) -> None:
    leader, follower = pair()
    was = leader.member_id
    back = rejoin_as_static(leader, wire, version)
    assert (back.error_code, back.generation_id) == (0, leader.generation)
    if version >= NEW_JOIN:
        assert (back.leader, back.skip_assignment) == (back.member_id, True)
        assert {each.group_instance_id for each in back.members} == {"a", "b"}
    else:  # it must not act as the leader, because its assignment would not be distributed
        assert (back.leader, back.members) == (was, [])
    leader.member_id = back.member_id
    assert leader.heartbeat() == follower.heartbeat() == 0
    assert leader.sync().assignment == was.encode()


def test_returning_member_with_another_subscription_triggers_a_rebalance_only_if_the_protocol_changes(
    wire: Wire, server: Server, name: str
) -> None:
    """If the group would choose the same protocol, a changed subscription changes nothing (as in Kafka)."""
    first, second = subscription("t"), subscription("other")
    protocols = {"range": first, "sticky": first}
    (only,) = stable(server.bootstrap, name, group_instance_id="a", protocols=protocols)
    same = rejoin_as_static(only, wire, protocols={"range": second, "sticky": second})
    assert (same.error_code, same.generation_id) == (0, only.generation)
    other = rejoin_as_static(only, wire, protocols={"sticky": second, "range": second})
    assert (other.error_code, other.generation_id, other.protocol_name) == (0, only.generation + 1, "sticky")


def test_previous_instance_that_waits_is_fenced(server: Server, pair: Callable[[], tuple[Member, Member]]) -> None:
    leader, follower = pair()
    leader.ask_to_join()  # waits for the follower
    until(follower.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "rebalance")
    twin = Member(server.bootstrap, leader.group, group_instance_id=leader.instance)
    twin.ask_to_join()
    assert leader.take().error_code == FENCED
    follower.ask_to_join()
    assert {twin.take().error_code, follower.take().error_code} == {0}
    finish(sorted((twin, follower), key=lambda each: not each.leads))
    twin.close()


def test_administrator_removes_members_by_instance(wire: Wire, pair: Callable[[], tuple[Member, Member]]) -> None:
    leader, follower = pair()
    leaving = [
        MemberIdentity(member_id="", group_instance_id=follower.instance, reason="the host is gone"),
        MemberIdentity(member_id="", group_instance_id="unknown"),
        MemberIdentity(member_id="made-up", group_instance_id=leader.instance),
    ]
    answer = wire.call(LeaveGroupRequest(group_id=leader.group, members=leaving))
    assert [(each.group_instance_id, each.error_code) for each in answer.members] == [
        (follower.instance, 0),
        ("unknown", UNKNOWN_MEMBER_ID),
        (leader.instance, FENCED),
    ]
    assert follower.heartbeat() == UNKNOWN_MEMBER_ID
    assert leader.heartbeat() == REBALANCE_IN_PROGRESS
    assert len(leader.join().members) == 1


def test_silent_static_member_stays_until_its_session_expires(wire: Wire, server: Server, name: str) -> None:
    """A rebalance completes without a static member that does not join in time. It keeps its place."""
    leader, other = stable(server.bootstrap, name, 2)
    static = Member(server.bootstrap, name, group_instance_id="a")
    static.ask_to_join()
    members = [leader, other, static]
    for each in (leader, other):
        until(each.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "rebalance")
        each.ask_to_join()
    for each in members:
        assert not each.take().error_code
    finish(sorted(members, key=lambda each: not each.leads))
    make_impatient(members)
    other.leave()
    joined = leader.join()  # ends with the rebalance timeout, because the static member does not join
    assert {each.group_instance_id for each in joined.members} == {None, "a"}
    for each in members:
        each.close()


def test_fenced_member_cannot_commit(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    (only,) = stable(server.bootstrap, name, group_instance_id="a")
    assert only.commit(name, 1) == 0
    back = rejoin_as_static(only, wire)
    assert only.commit(name, 2) == FENCED
    fields = {"group_id": name, "member_id": back.member_id, "generation_id_or_member_epoch": back.generation_id}
    assert commit(wire, name, {0: 3}, **fields, group_instance_id="a") == [0]
