"""Groups that move between the classic and the consumer protocol, with members and without (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from support.classic_consumers import (
    REBALANCE_IN_PROGRESS,
    ClassicConsumer,
    assignment,
    classic_pair,
    read_assignment,
    subscription,
)
from support.consumer_groups import NewMember, assigned, describe_consumer, heartbeat, refusal, seen_topic
from support.groups import Member, describe, offsets_of, simple_commit
from support.servers import Server
from support.wire import Wire, code, until

GROUP_ID_NOT_FOUND = code("GROUP_ID_NOT_FOUND")
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
ILLEGAL_GENERATION = code("ILLEGAL_GENERATION")
INCONSISTENT = code("INCONSISTENT_GROUP_PROTOCOL")
ALL = [0, 1, 2, 3]
CLASSIC, CONSUMER = 0, 1


class Moving:
    """A group of two classic consumers, and one of the consumer protocol that has not joined."""

    def __init__(self, wire: Wire, bootstrap: str, name: str) -> None:
        self.wire, self.bootstrap, self.name = wire, bootstrap, name
        self.topic: UUID = seen_topic(wire, name, len(ALL))
        self.leader, self.other = classic_pair(bootstrap, name, name)
        self.new = NewMember(wire, name, "new")

    @property
    def classic(self) -> tuple[ClassicConsumer, ClassicConsumer]:
        return self.leader, self.other

    def owned(self) -> list[int]:
        """Return all partitions that have an owner."""
        classic = [part for each in self.classic for part in each.owned.get(self.name, [])]
        return sorted([*classic, *self.new.owned.get(self.topic, [])])

    def settle(self) -> None:
        """Let all members do what they are told until the group is stable."""

        def ask() -> tuple[str, bool, list[int]]:
            errors = [each.catch_up() for each in self.classic]
            answer = self.new.report()
            assert not answer.error_code, answer
            return describe_consumer(self.wire, self.name).group_state, any(errors), self.owned()

        until(ask, lambda found: found == ("Stable", False, ALL), "the group is stable")

    def join(self) -> Any:
        answer = self.new.join(self.name)
        assert not answer.error_code, answer
        return answer


@pytest.fixture
def moving(wire: Wire, server: Server, name: str) -> Iterator[Moving]:
    made = Moving(wire, server.bootstrap, name)
    yield made
    for each in made.classic:
        each.close()


def group_type(wire: Wire, group: str) -> str:
    found: str = next(each for each in wire.call(ListGroupsRequest()).groups if each.group_id == group).group_type
    return found.lower()


def leave(wire: Wire, group: str, *members: str, version: int | None = None) -> list[int]:
    """Send LeaveGroup, and return the error code of each member."""
    identities = [MemberIdentity(member_id=each) for each in members]
    answer = wire.call(LeaveGroupRequest(group_id=group, members=identities), version)
    assert not answer.error_code
    return [each.error_code for each in answer.members]


# -- the first member of the consumer protocol -------------------------------------------------------------------------


def test_new_member_moves_the_group_at_once(moving: Moving) -> None:
    generation = moving.leader.generation
    answer = moving.join()
    assert (answer.member_epoch, assigned(answer)) == (generation + 1, {})
    group = describe_consumer(moving.wire, moving.name, 1)
    assert (group.error_code, group.group_state, group.group_epoch) == (0, "Reconciling", generation + 1)
    assert group.assignor_name == "uniform"
    found = {each.member_id: each for each in group.members}
    assert {each.member_id: each.member_type for each in group.members} == {
        moving.leader.member_id: CLASSIC,
        moving.other.member_id: CLASSIC,
        "new": CONSUMER,
    }
    for each in moving.classic:
        described = found[each.member_id]
        assert (described.member_epoch, described.subscribed_topic_names) == (generation, [moving.name])
        (parts,) = described.assignment.topic_partitions
        assert sorted(parts.partitions) == each.owned[moving.name]
    assert group_type(moving.wire, moving.name) == "consumer"
    classic = describe(moving.wire, moving.name)
    assert (classic.error_code, classic.group_state) == (GROUP_ID_NOT_FOUND, "Dead")


def test_classic_members_are_told_to_join_again(moving: Moving) -> None:
    generation = moving.leader.generation
    moving.join()
    for each in moving.classic:
        assert each.heartbeat() == REBALANCE_IN_PROGRESS
        assert each.heartbeat(generation_id=generation + 1) == ILLEGAL_GENERATION
        assert each.heartbeat(generation_id=generation - 1) == ILLEGAL_GENERATION
        assert each.sync().error_code == REBALANCE_IN_PROGRESS
        assert each.sync(generation_id=generation + 1).error_code == ILLEGAL_GENERATION
    moving.settle()
    for each in moving.classic:
        assert each.heartbeat() == 0


def test_classic_member_joins_alone_and_has_no_leader(moving: Moving) -> None:
    generation = moving.leader.generation
    moving.join()
    for each in (moving.other, moving.leader):  # neither waits for the other
        before = each.owned
        answer = each.rejoin()
        # a member that must give partitions up has the next epoch when it has joined once more, without them
        assert (answer.error_code, answer.generation_id) == (0, generation + (each.owned == before))
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        assert (answer.leader, answer.members, answer.skip_assignment) == ("", [], False)
        assert answer.member_id == each.member_id
        assert each.heartbeat() == (0 if each.owned == before else REBALANCE_IN_PROGRESS)


def test_partitions_move_to_the_new_member(moving: Moving) -> None:
    before = {each.member_id: each.owned[moving.name] for each in moving.classic}
    moving.join()
    moving.settle()
    assert moving.new.owned[moving.topic]
    for each in moving.classic:
        assert set(each.owned[moving.name]) <= set(before[each.member_id])
    assert {each.generation for each in moving.classic} == {moving.new.epoch}


def test_classic_members_commit_with_their_generation(moving: Moving) -> None:
    moving.join()
    for each in moving.classic:
        for version in (8, 9):
            assert each.commit(moving.name, 3, version=version) == 0
            changed = {"generation_id_or_member_epoch": each.generation - 1, "version": version}
            assert each.commit(moving.name, 3, **changed) == ILLEGAL_GENERATION
    moving.settle()
    assert moving.other.commit(moving.name, 4) == 0
    unknown = {"member_id": "stranger", "version": 8}
    assert moving.other.commit(moving.name, 4, **unknown) == UNKNOWN_MEMBER_ID


def test_classic_requests_of_the_new_member_are_unknown(moving: Moving) -> None:
    moving.join()
    moving.settle()
    fields: dict[str, Any] = {"member_id": "new", "generation_id": moving.new.epoch}
    assert moving.leader.heartbeat(**fields) == UNKNOWN_MEMBER_ID
    assert moving.leader.sync(**fields).error_code == UNKNOWN_MEMBER_ID
    assert moving.leader.heartbeat(member_id="stranger") == UNKNOWN_MEMBER_ID


def test_sync_checks_the_protocol(moving: Moving) -> None:
    moving.join()
    moving.settle()
    assert moving.leader.sync(protocol_name="roundrobin").error_code == INCONSISTENT
    assert moving.leader.sync(protocol_type="connect").error_code == INCONSISTENT
    assert read_assignment(moving.leader.sync().assignment) == moving.leader.owned


def test_member_changes_its_protocol_and_back(moving: Moving) -> None:
    """A rolling restart with static ids, or a client that keeps its member id."""
    moving.join()
    moving.settle()
    member_id, epoch = moving.leader.member_id, moving.leader.generation
    assert heartbeat(moving.wire, moving.name, member_id=member_id, member_epoch=epoch).error_code == 0
    types = {each.member_id: each.member_type for each in describe_consumer(moving.wire, moving.name, 1).members}
    assert types[member_id] == CONSUMER
    assert moving.leader.heartbeat() == UNKNOWN_MEMBER_ID
    assert moving.leader.rejoin().error_code == 0
    moving.settle()


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_last_new_member_leaves_and_the_group_is_classic(moving: Moving) -> None:
    moving.join()
    moving.settle()
    epoch = moving.new.epoch
    assert moving.new.leave().error_code == 0
    assert group_type(moving.wire, moving.name) == "classic"
    group = describe(moving.wire, moving.name)
    assert (group.error_code, group.group_state, group.protocol_type) == (0, "PreparingRebalance", "consumer")
    assert {each.member_id for each in group.members} == {each.member_id for each in moving.classic}
    assert describe_consumer(moving.wire, moving.name).error_code == GROUP_ID_NOT_FOUND
    answer = refusal(moving.wire, moving.name, member_id="new", member_epoch=epoch)
    assert answer == (GROUP_ID_NOT_FOUND, f"Group {moving.name} is not a consumer group.")

    for each in moving.classic:
        each.ask_to_join()
    joined = [each.take() for each in moving.classic]
    assert [each.error_code for each in joined] == [0, 0]
    assert {each.generation_id for each in joined} == {moving.leader.generation}
    assert moving.leader.generation > epoch
    leader, other = sorted(moving.classic, key=lambda each: not each.leads)
    assert {each.member_id for each in leader.joined.members} == {leader.member_id, other.member_id}
    parts = {leader.member_id: assignment({moving.name: [0]}), other.member_id: assignment({moving.name: [1]})}
    leader.take_assignment(leader.sync(parts))
    other.take_assignment(other.sync())
    assert (leader.owned, other.owned) == ({moving.name: [0]}, {moving.name: [1]})
    assert leader.heartbeat() == other.heartbeat() == 0


def test_group_moves_several_times(moving: Moving) -> None:
    for _ in range(2):
        moving.join()
        moving.settle()
        assert moving.new.leave().error_code == 0
        for each in moving.classic:
            each.ask_to_join()
        for each in moving.classic:
            assert each.take().error_code == 0
        leader, other = sorted(moving.classic, key=lambda each: not each.leads)
        half = {leader.member_id: assignment({moving.name: [0, 1]}), other.member_id: assignment({moving.name: [2, 3]})}
        leader.take_assignment(leader.sync(half))
        other.take_assignment(other.sync())


@pytest.mark.parametrize("version", [2, None])
def test_classic_members_leave_with_leave_group(moving: Moving, version: int | None) -> None:
    moving.join()
    for each in moving.classic:
        if version is None:
            assert leave(moving.wire, moving.name, each.member_id) == [0]
            assert leave(moving.wire, moving.name, each.member_id, "stranger") == [UNKNOWN_MEMBER_ID] * 2
        else:
            request = LeaveGroupRequest(group_id=moving.name, member_id=each.member_id)
            assert moving.wire.call(request, version).error_code == 0
        assert each.heartbeat() == UNKNOWN_MEMBER_ID
    moving.new.until_owns({moving.topic: ALL})


def test_new_member_leaves_with_leave_group(moving: Moving) -> None:
    moving.join()
    assert leave(moving.wire, moving.name, "new") == [0]
    assert group_type(moving.wire, moving.name) == "classic"


# -- groups without members --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol_type", ["", "consumer", "connect"])
def test_classic_group_without_members_becomes_a_consumer_group(
    wire: Wire, server: Server, name: str, protocol_type: str
) -> None:
    topic = seen_topic(wire, name)
    simple_commit(wire, name, name, {0: 3})
    if protocol_type:
        member = Member(server.bootstrap, name, protocol_type=protocol_type, protocols={"p": b"data"})
        assert member.join().error_code == 0
        assert not member.leave().error_code
        member.close()
    for epoch in (1, -1):
        answer = refusal(wire, name, member_id="m", member_epoch=epoch)
        assert answer == (GROUP_ID_NOT_FOUND, f"Group {name} is not a consumer group.")
    answer = NewMember(wire, name).join(name)
    assert (answer.error_code, answer.member_epoch, assigned(answer)) == (0, 2, {topic: [0]})
    assert group_type(wire, name) == "consumer"
    assert offsets_of(wire, name) == {(name, 0): 3}


@pytest.mark.parametrize("protocol_type", ["consumer", "connect"])
def test_consumer_group_without_members_becomes_a_classic_group(
    wire: Wire, server: Server, name: str, protocol_type: str
) -> None:
    topic = seen_topic(wire, name)
    new = NewMember(wire, name).joined(name, owns={topic: [0]})
    new.leave()
    simple_commit(wire, name, name, {0: 3})
    classic = Member(server.bootstrap, name, protocol_type=protocol_type, protocols={"p": b"data"})
    answer = classic.join()
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, classic.member_id)
    assert group_type(wire, name) == "classic"
    assert offsets_of(wire, name) == {(name, 0): 3}
    classic.close()


# -- groups that cannot move -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol_type", "name_of_protocol", "member", "sent", "reason"),
    [
        ("connect", "p", b"data", b"", "the group does not use the consumer embedded protocol."),
        ("consumer", "range", b"\0", b"", "the embedded consumer protocol is malformed."),
        (
            "consumer",
            "own",
            subscription("t"),
            assignment({}, user_data=b"of a custom assignor"),
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade.",
        ),
    ],
    ids=["connect", "malformed", "custom"],
)
def test_group_that_cannot_be_understood_stays_classic(
    wire: Wire, server: Server, name: str, protocol_type: str, name_of_protocol: str,
    member: bytes, sent: bytes, reason: str,
) -> None:  # fmt: skip
    seen_topic(wire, name)
    classic = Member(server.bootstrap, name, protocol_type=protocol_type, protocols={name_of_protocol: member})
    classic.join()
    classic.sync({classic.member_id: sent})
    answer = NewMember(wire, name).join(name)
    words = f"Cannot upgrade classic group {name} to consumer group because {reason}"
    assert (answer.error_code, answer.error_message) == (GROUP_ID_NOT_FOUND, words)
    assert classic.heartbeat() == 0
    assert group_type(wire, name) == "classic"
    classic.close()


def test_subscription_may_have_user_data(wire: Wire, server: Server, name: str) -> None:
    """As the assignor `sticky` has."""
    seen_topic(wire, name, 2)
    said = subscription(name, version=1, user_data=b"the last assignment")
    classic = Member(server.bootstrap, name, protocols={"sticky": said})
    classic.join()
    classic.sync({classic.member_id: assignment({name: [0, 1]})})
    assert NewMember(wire, name).join(name).error_code == 0
    classic.close()


# -- groups in a rebalance ---------------------------------------------------------------------------------------------


def test_group_moves_before_its_leader_has_assigned(wire: Wire, server: Server, name: str) -> None:
    seen_topic(wire, name, 2)
    classic = ClassicConsumer(server.bootstrap, name, name)
    assert classic.join().error_code == 0
    assert NewMember(wire, name, "new").join(name).error_code == 0
    assert classic.sync({classic.member_id: assignment({name: [0, 1]})}).error_code == REBALANCE_IN_PROGRESS
    assert classic.heartbeat() == REBALANCE_IN_PROGRESS
    assert classic.rejoin().error_code == 0
    classic.close()


def test_group_moves_while_members_wait_for_others(moving: Moving) -> None:
    """Their JoinGroup is answered."""
    third = ClassicConsumer(moving.bootstrap, moving.name, moving.name)
    third.ask_to_join()
    until(moving.leader.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "a rebalance")
    moving.join()
    answer = third.take()
    assert (answer.error_code, answer.member_id) == (REBALANCE_IN_PROGRESS, third.member_id)
    assert third.rejoin().error_code == 0
    assert len(describe_consumer(moving.wire, moving.name).members) == 4
    third.leave()
    third.close()
    moving.settle()


# -- the policy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["disabled", "upgrade", "downgrade", "bidirectional"])
def test_policy_allows_one_direction(start_server: Callable[[dict[str, str]], Server], name: str, policy: str) -> None:
    server = start_server({"group.consumer.migration.policy": policy})
    with Wire(server.bootstrap) as wire:
        moving = Moving(wire, server.bootstrap, name)
        answer = moving.new.join(name)
        if policy in ("disabled", "downgrade"):
            words = f"Cannot upgrade classic group {name} to consumer group because online upgrade is disabled."
            assert (answer.error_code, answer.error_message) == (GROUP_ID_NOT_FOUND, words)
            assert moving.leader.heartbeat() == 0
        else:
            assert answer.error_code == 0
            moving.settle()
            assert moving.new.leave().error_code == 0
            found = group_type(wire, name)
            assert found == ("consumer" if policy == "upgrade" else "classic")
        for each in moving.classic:
            each.close()
