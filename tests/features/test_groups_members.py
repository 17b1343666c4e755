"""Members of classic groups: joining in two steps, rebalances, timeouts, limits, leaving."""

from __future__ import annotations

import pytest

from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from support.groups import (
    MEMBER_ID_REQUIRED,
    Member,
    delete_groups,
    describe,
    finish,
    join_request,
    make_impatient,
    rebalance,
    stable,
    subscription,
)
from support.servers import Server
from support.wire import Wire, code, retried, until

SETTINGS = {"group.min.session.timeout.ms": "500", "group.max.size": "3"}
MIN_SESSION_MS = 500
REBALANCE_IN_PROGRESS = code("REBALANCE_IN_PROGRESS")
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
ILLEGAL_GENERATION = code("ILLEGAL_GENERATION")
INCONSISTENT = code("INCONSISTENT_GROUP_PROTOCOL")


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    """Connect to a server with short sessions and small groups."""
    return module_wire


def state(wire: Wire, group: str) -> str:
    found: str = describe(wire, group).group_state
    return found


def until_state(wire: Wire, group: str, wanted: str) -> None:
    until(lambda: state(wire, group), lambda found: found == wanted, f"{group} is {wanted}")


# -- JoinGroup -------------------------------------------------------------------------------------------------------


def test_member_joins_in_two_steps_and_gets_the_leaders_assignment(wire: Wire, name: str) -> None:
    wire.find_coordinator(name, 0)
    first = retried(lambda: wire.call(join_request(name)))
    assert first.error_code == MEMBER_ID_REQUIRED
    assert first.member_id.startswith("wire-")
    assert (first.generation_id, first.leader) == (-1, "")
    answer = wire.call(join_request(name, first.member_id))
    assert (answer.error_code, answer.generation_id, answer.protocol_type, answer.protocol_name) == (
        0,
        1,
        "consumer",
        "range",
    )
    assert answer.leader == answer.member_id == first.member_id
    assert [(each.member_id, each.metadata) for each in answer.members] == [(first.member_id, subscription("t"))]
    assert not answer.skip_assignment


@pytest.mark.parametrize("version", [0, 3])
def test_join_before_version_4_takes_one_step(wire: Wire, name: str, version: int) -> None:
    wire.find_coordinator(name, 0)
    options = {} if version else {"rebalance_timeout_ms": -1}
    answer = retried(lambda: wire.call(join_request(name, **options), version))
    assert (answer.error_code, answer.generation_id) == (0, 1)


def test_invented_member_id_is_unknown(wire: Wire, name: str) -> None:
    wire.find_coordinator(name, 0)
    assert retried(lambda: wire.call(join_request(name, "made-up"))).error_code == UNKNOWN_MEMBER_ID


def test_group_waits_for_a_pending_member_id_until_it_expires(wire: Wire, module_server: Server, name: str) -> None:
    (only,) = stable(module_server.bootstrap, name)
    pending = wire.call(join_request(name, session_timeout_ms=MIN_SESSION_MS)).member_id
    answer = only.join()  # the join phase ends when the id expires
    assert (answer.error_code, [each.member_id for each in answer.members]) == (0, [only.member_id])
    assert wire.call(join_request(name, pending)).error_code == UNKNOWN_MEMBER_ID


def test_pending_member_may_leave(wire: Wire, module_server: Server, name: str) -> None:
    (only,) = stable(module_server.bootstrap, name)
    pending = wire.call(join_request(name)).member_id
    only.ask_to_join()
    leave = LeaveGroupRequest(group_id=name, members=[MemberIdentity(member_id=pending)])
    assert wire.call(leave).members[0].error_code == 0
    assert only.take().error_code == 0


@pytest.mark.parametrize(
    ("session_ms", "refused"),
    [(MIN_SESSION_MS - 1, True), (MIN_SESSION_MS, False), (1_800_000, False), (1_800_001, True)],
)
def test_session_timeouts_have_bounds(wire: Wire, name: str, session_ms: int, refused: bool) -> None:
    wire.find_coordinator(name, 0)
    answer = retried(lambda: wire.call(join_request(name, session_timeout_ms=session_ms)))
    assert answer.error_code == (code("INVALID_SESSION_TIMEOUT") if refused else MEMBER_ID_REQUIRED)


def test_group_needs_an_id_and_a_protocol(wire: Wire, name: str) -> None:
    wire.find_coordinator(name, 0)
    assert wire.call(join_request("")).error_code == code("INVALID_GROUP_ID")
    assert wire.call(join_request(name, protocols={})).error_code == INCONSISTENT
    assert wire.call(join_request(name, protocol_type="")).error_code == INCONSISTENT


def test_protocol_that_no_other_member_supports_is_rejected(wire: Wire, module_server: Server, name: str) -> None:
    protocols = {"range": b"r", "roundrobin": b"rr"}
    (only,) = stable(module_server.bootstrap, name, protocols=protocols)
    refused = [{"protocols": {"sticky": b"s"}}, {"protocols": protocols, "protocol_type": "connect"}]
    for each in refused:
        assert wire.call(join_request(name, **each)).error_code == INCONSISTENT
    assert only.heartbeat() == 0
    other = Member(module_server.bootstrap, name, protocols={"sticky": b"s", "roundrobin": b"2"})
    other.ask_to_join()
    until(only.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "rebalance")
    only.ask_to_join()
    for each_member in (only, other):
        assert each_member.take().protocol_name == "roundrobin"
    leader = only if only.leads else other
    assert {each.metadata for each in leader.joined.members} == {b"rr", b"2"}


def test_full_group_rejects_new_members(wire: Wire, module_server: Server, name: str) -> None:
    stable(module_server.bootstrap, name, 3)
    answer = wire.call(join_request(name))
    assert (answer.error_code, answer.member_id) == (code("GROUP_MAX_SIZE_REACHED"), "")
    assert state(wire, name) == "Stable"


# -- rebalances ------------------------------------------------------------------------------------------------------


def test_unchanged_follower_that_rejoins_triggers_no_rebalance(module_server: Server, name: str) -> None:
    leader, follower = stable(module_server.bootstrap, name, 2)
    generation = leader.generation
    again = follower.join()
    assert (again.error_code, again.generation_id, again.leader, again.members) == (0, generation, leader.member_id, [])
    assert follower.sync().assignment == follower.member_id.encode()
    assert leader.heartbeat() == follower.heartbeat() == 0


@pytest.mark.parametrize("who", ["leader", "follower that changed"])
def test_rejoin_of_the_leader_or_a_changed_follower_triggers_a_rebalance(
    module_server: Server, name: str, who: str
) -> None:
    leader, follower = stable(module_server.bootstrap, name, 2)
    generation = leader.generation
    first, second = (leader, follower) if who == "leader" else (follower, leader)
    first.ask_to_join(**({} if who == "leader" else {"protocols": {"range": subscription("other")}}))
    until(second.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "the member must rejoin")
    second.ask_to_join()
    answers = [first.take(), second.take()]
    assert [(each.error_code, each.generation_id) for each in answers] == [(0, generation + 1)] * 2


def test_sync_waits_for_the_leader_and_drops_old_assignments(wire: Wire, module_server: Server, name: str) -> None:
    members = stable(module_server.bootstrap, name, 2)
    for each in members:
        each.ask_to_join(protocols={"range": subscription("other")})
    for each in members:
        assert not each.take().error_code
    leader, follower = sorted(members, key=lambda each: not each.leads)
    assert state(wire, name) == "CompletingRebalance"
    assert leader.heartbeat() == follower.heartbeat() == 0  # a heartbeat does not restart the wait
    follower.ask_to_sync()
    assert leader.sync({follower.member_id: b"new"}).assignment == b""
    assert follower.take().assignment == b"new"
    assert follower.sync().assignment == b"new"  # the member may ask again


def test_join_during_the_assignment_restarts_the_rebalance(module_server: Server, name: str) -> None:
    members = stable(module_server.bootstrap, name, 2)
    for each in members:
        each.ask_to_join(protocols={"range": subscription("other")})
    for each in members:
        assert not each.take().error_code
    leader, follower = sorted(members, key=lambda each: not each.leads)
    follower.ask_to_sync()
    new = Member(module_server.bootstrap, name)
    new.ask_to_join()
    assert follower.take().error_code == REBALANCE_IN_PROGRESS
    assert leader.sync({}).error_code == REBALANCE_IN_PROGRESS
    assert leader.heartbeat() == REBALANCE_IN_PROGRESS
    for each in (leader, follower):
        each.ask_to_join()
    joined = [each.take() for each in (leader, follower, new)]
    assert {each.error_code for each in joined} == {0}
    finish(sorted((leader, follower, new), key=lambda each: not each.leads))


def test_member_that_does_not_rejoin_in_time_is_removed(wire: Wire, module_server: Server, name: str) -> None:
    """The rebalance timeout of the group is the longest of its members'."""
    leader, follower = make_impatient(stable(module_server.bootstrap, name, 2))
    again = leader.join()
    assert (again.error_code, [each.member_id for each in again.members]) == (0, [leader.member_id])
    assert follower.heartbeat() == UNKNOWN_MEMBER_ID
    finish([leader])
    assert state(wire, name) == "Stable"


def test_member_that_does_not_sync_in_time_is_removed(wire: Wire, module_server: Server, name: str) -> None:
    """KAFKA-12907: after the rebalance timeout, the generation continues without the members that never sent
    SyncGroup.
    """
    members = make_impatient(stable(module_server.bootstrap, name, 2))
    for each in members:
        each.ask_to_join(protocols={"range": subscription("other")})
    for each in members:
        assert not each.take().error_code
    leader, follower = sorted(members, key=lambda each: not each.leads)
    follower.ask_to_sync()  # it waits, because the leader does not answer
    assert follower.take().error_code == REBALANCE_IN_PROGRESS
    again = follower.join()
    assert (again.leader, [each.member_id for each in again.members]) == (follower.member_id, [follower.member_id])
    assert leader.heartbeat() == UNKNOWN_MEMBER_ID
    finish([follower])


def test_silent_member_is_removed_after_its_session_timeout(wire: Wire, module_server: Server, name: str) -> None:
    leader, follower = stable(module_server.bootstrap, name, 2)
    follower.ask_to_join(session_timeout_ms=3_000, protocols={"range": subscription("other")})
    until(leader.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "rebalance")
    leader.ask_to_join()
    for each in (leader, follower):
        assert not each.take().error_code
    finish(sorted((leader, follower), key=lambda each: not each.leads))
    until(leader.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "the silent member is removed")
    assert follower.heartbeat() == UNKNOWN_MEMBER_ID
    assert len(leader.join().members) == 1


# -- SyncGroup and Heartbeat -----------------------------------------------------------------------------------------


def test_unknown_members_and_old_generations_are_rejected(wire: Wire, module_server: Server, name: str) -> None:
    (only,) = stable(module_server.bootstrap, name)
    assert only.heartbeat(generation_id=0) == ILLEGAL_GENERATION
    assert only.heartbeat(generation_id=2) == ILLEGAL_GENERATION
    assert only.heartbeat(member_id="stranger") == UNKNOWN_MEMBER_ID
    assert only.heartbeat(group_id=f"{name}-none") == UNKNOWN_MEMBER_ID
    assert only.heartbeat(group_instance_id="unknown") == UNKNOWN_MEMBER_ID
    assert only.sync(generation_id=0).error_code == ILLEGAL_GENERATION
    assert only.sync(member_id="stranger").error_code == UNKNOWN_MEMBER_ID
    assert only.sync(group_id=f"{name}-none").error_code == UNKNOWN_MEMBER_ID
    assert only.heartbeat() == 0


def test_sync_checks_the_protocol(module_server: Server, name: str) -> None:
    (only,) = stable(module_server.bootstrap, name)
    assert only.sync(protocol_name="sticky").error_code == INCONSISTENT
    assert only.sync(protocol_type="connect").error_code == INCONSISTENT
    assert only.sync(protocol_name=None).error_code == INCONSISTENT
    answer = only.sync()
    assert (answer.protocol_type, answer.protocol_name, answer.assignment) == (
        "consumer",
        "range",
        only.member_id.encode(),
    )


def test_cooperative_member_keeps_its_partitions(module_server: Server, name: str) -> None:
    """KIP-429 is implemented by the members: the leader gets unchanged what they say they own."""
    owned = subscription("t", owned=b"what I own")
    members = stable(module_server.bootstrap, name, 2, protocols={"cooperative-sticky": subscription("t")})
    rebalance(members, protocols={"cooperative-sticky": owned})
    leader = next(each for each in members if each.leads)
    assert [each.metadata for each in leader.joined.members] == [owned, owned]


# -- LeaveGroup ------------------------------------------------------------------------------------------------------


def test_several_members_leave_in_one_request_each_with_its_own_error(
    wire: Wire, module_server: Server, name: str
) -> None:
    members = stable(module_server.bootstrap, name, 3)
    leaving = [MemberIdentity(member_id=each.member_id, reason="the test says so") for each in members[1:]]
    request = LeaveGroupRequest(group_id=name, members=[*leaving, MemberIdentity(member_id="stranger")])
    answer = wire.call(request)
    assert answer.error_code == 0
    assert [(each.member_id, each.error_code) for each in answer.members] == [
        (members[1].member_id, 0),
        (members[2].member_id, 0),
        ("stranger", UNKNOWN_MEMBER_ID),
    ]
    assert members[0].heartbeat() == REBALANCE_IN_PROGRESS
    assert len(members[0].join().members) == 1
    finish(members[:1])


def test_leave_before_version_3_has_only_a_top_level_error(wire: Wire, module_server: Server, name: str) -> None:
    (only,) = stable(module_server.bootstrap, name)
    stranger = LeaveGroupRequest(group_id=name, member_id="stranger")
    assert wire.call(stranger, 2).error_code == UNKNOWN_MEMBER_ID
    assert wire.call(LeaveGroupRequest(group_id=name, member_id=only.member_id), 2).error_code == 0
    assert state(wire, name) == "Empty"


def test_leaving_member_completes_the_join_phase(module_server: Server, name: str) -> None:
    leader, follower = stable(module_server.bootstrap, name, 2)
    leader.ask_to_join()
    until(follower.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "rebalance")
    assert follower.leave().members[0].error_code == 0
    assert len(leader.take().members) == 1


# -- describing and listing -------------------------------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type(wire: Wire, module_server: Server, name: str) -> None:
    (only,) = stable(module_server.bootstrap, name)

    def listed(**filters: list[str]) -> list[tuple[str, str, str]]:
        answer = retried(lambda: wire.call(ListGroupsRequest(**filters)))
        return [
            (each.group_state, each.group_type.lower(), each.protocol_type)
            for each in answer.groups
            if each.group_id == name
        ]

    row = ("Stable", "classic", "consumer")
    assert listed() == listed(states_filter=["Stable"]) == listed(types_filter=["classic"]) == [row]
    assert listed(states_filter=["stable", "Empty"], types_filter=["Classic", "consumer"]) == [row]
    assert listed(states_filter=["Empty"]) == listed(types_filter=["share"]) == listed(states_filter=["Odd"]) == []
    only.leave()
    assert listed(states_filter=["Empty"]) == [("Empty", "classic", "consumer")]


@pytest.mark.parametrize("version", [0, 5, 6])
def test_missing_group_is_described_as_dead(wire: Wire, name: str, version: int) -> None:
    wire.find_coordinator(name, 0)
    found = describe(wire, name, version=version)
    assert (found.error_code, found.group_state, found.members) == (
        code("GROUP_ID_NOT_FOUND") if version >= 6 else 0,
        "Dead",
        [],
    )
    assert found.error_message == (f"Group {name} not found." if version >= 6 else None)


def test_group_is_described_once(wire: Wire, module_server: Server, name: str) -> None:
    """DIFFERS[repeated names]: Kafka describes it as often as the request names it."""
    wire.find_coordinator(name, 0)
    retried(lambda: wire.call(DescribeGroupsRequest(groups=[name]), 5).groups[0])
    answer = wire.call(DescribeGroupsRequest(groups=[name, name]), 5)
    assert [each.group_id for each in answer.groups] == [name] * (1 if module_server.name == "oncelog" else 2)


def test_group_description_has_subscriptions_and_assignments(wire: Wire, module_server: Server, name: str) -> None:
    (only,) = stable(module_server.bootstrap, name)
    found = describe(wire, name, include_authorized_operations=True)
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (only.member_id, "member", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), only.member_id.encode())
    operations = {bit for bit in range(32) if found.authorized_operations >> bit & 1}
    assert operations == {3, 6, 8, 10, 11}
    assert describe(wire, name).authorized_operations == -(2**31)


# -- DeleteGroups ----------------------------------------------------------------------------------------------------


def test_only_empty_groups_are_deleted(wire: Wire, module_server: Server, name: str) -> None:
    (only,) = stable(module_server.bootstrap, name)
    missing = f"{name}-none"
    assert delete_groups(wire, name, missing, name) == {
        name: code("NON_EMPTY_GROUP"),
        missing: code("GROUP_ID_NOT_FOUND"),
    }
    assert only.heartbeat() == 0
    only.leave()
    assert delete_groups(wire, name) == {name: 0}
    assert state(wire, name) == "Dead"
    assert delete_groups(wire, name) == {name: code("GROUP_ID_NOT_FOUND")}
    assert only.heartbeat() == UNKNOWN_MEMBER_ID
    (again,) = stable(module_server.bootstrap, name)
    assert again.generation == 1
