"""R7, for groups: a JoinGroup or SyncGroup waits for an event or a timeout. A waiting member does not expire."""

from __future__ import annotations

import pytest

from support.groups import Member, finish, make_impatient, stable, subscription
from support.servers import Server
from support.wire import Wire, code, until

SETTINGS = {"group.initial.rebalance.delay.ms": "1000", "group.min.session.timeout.ms": "300"}
SHORT_MS = 300
REBALANCE_IN_PROGRESS = code("REBALANCE_IN_PROGRESS")


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    """Connect to a server that waits a second for the members of a new group."""
    return module_wire


def test_new_group_gathers_members_before_its_first_generation(module_server: Server, name: str) -> None:
    """KIP-134. Members whose session is shorter than the delay do not expire meanwhile."""
    members = [Member(module_server.bootstrap, name, session_timeout_ms=900) for _ in range(3)]
    for each in members:
        each.ask_to_join()
    answers = [each.take() for each in members]
    assert [(each.error_code, each.generation_id) for each in answers] == [(0, 1)] * 3
    members.sort(key=lambda each: not each.leads)
    assert {each.member_id for each in members[0].joined.members} == {each.member_id for each in members}
    finish(members)


def test_rebalance_timeout_bounds_the_initial_delay(module_server: Server, name: str) -> None:
    member = Member(module_server.bootstrap, name, rebalance_timeout_ms=SHORT_MS)
    assert (member.join().error_code, member.generation) == (0, 1)
    finish([member])


def test_member_that_waits_for_others_does_not_expire(module_server: Server, name: str) -> None:
    """The rebalance timeout ends the wait. A member that did not rejoin is removed; the one that waited leads."""
    first, second = make_impatient(stable(module_server.bootstrap, name, 2))
    second.ask_to_join(session_timeout_ms=SHORT_MS, protocols={"range": subscription("other")})
    joined = second.take()
    assert (joined.error_code, joined.leader) == (0, second.member_id)
    assert [each.member_id for each in joined.members] == [second.member_id]
    assert first.heartbeat() == code("UNKNOWN_MEMBER_ID")
    finish([second])


def test_last_member_to_join_ends_the_wait(module_server: Server, name: str) -> None:
    first, second = stable(module_server.bootstrap, name, 2, rebalance_timeout_ms=600_000)
    first.ask_to_join(protocols={"range": subscription("other")})
    until(second.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "rebalance")
    second.ask_to_join()
    assert [first.take().error_code, second.take().error_code] == [0, 0]


def test_group_does_not_wait_for_members_that_left_or_expired(module_server: Server, name: str) -> None:
    """Only the member that stops has a short session, and only from then on. A slow machine expires no other."""
    first, second = stable(module_server.bootstrap, name, 2, rebalance_timeout_ms=600_000)
    first.ask_to_join(protocols={"range": subscription("other")})
    until(second.heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "rebalance")
    second.ask_to_join(session_timeout_ms=SHORT_MS)
    assert [first.take().error_code, second.take().error_code] == [0, 0]
    first.ask_to_join(protocols={"range": subscription("another")})
    # the other member's session has expired
    assert [each.member_id for each in first.take().members] == [first.member_id]
    assert second.heartbeat() == code("UNKNOWN_MEMBER_ID")
    finish([first])


def test_sync_waits_for_the_leaders_assignment(module_server: Server, name: str) -> None:
    members = stable(module_server.bootstrap, name, 2, rebalance_timeout_ms=600_000)
    for each in members:
        each.ask_to_join(protocols={"range": subscription("other")})
    for each in members:
        assert not each.take().error_code
    leader, follower = sorted(members, key=lambda each: not each.leads)
    follower.ask_to_sync()
    assert leader.heartbeat() == 0
    assert leader.sync({follower.member_id: b"yours"}).error_code == 0
    assert follower.take().assignment == b"yours"
    for each in (leader, follower):
        each.close()
