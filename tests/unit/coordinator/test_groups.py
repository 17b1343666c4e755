"""Classic groups: joining, assigning, leaving, timeouts; every error and every written record."""

from __future__ import annotations

from itertools import product

import pytest

from oncelog.coordinator.groups.classic.group import ClassicGroup, IllegalTransitionError
from oncelog.coordinator.groups.classic.group import GroupState as S
from oncelog.coordinator.groups.classic.operation import NEW_MEMBER_JOIN_TIMEOUT_MS
from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.protocol.errors import ErrorCode as E
from support.group_driver import (
    GROUP,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    GroupDriver,
    Waiting,
    last_group,
    subscription,
)

# Kafka's `ClassicGroupState`, written again: from -> to.
LEGAL = {
    (S.PREPARING_REBALANCE, S.EMPTY),
    (S.STABLE, S.PREPARING_REBALANCE),
    (S.COMPLETING_REBALANCE, S.PREPARING_REBALANCE),
    (S.EMPTY, S.PREPARING_REBALANCE),
    (S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE),
    (S.COMPLETING_REBALANCE, S.STABLE),
    *((state, S.DEAD) for state in S),
}


@pytest.mark.parametrize(("old", "new"), list(product(S, S)))
def test_only_kafkas_transitions_are_legal(old: S, new: S) -> None:
    group = ClassicGroup(GROUP, 0)
    group.state = old
    if (old, new) in LEGAL:
        group.transition_to(new, 5)
        assert (group.state, group.previous_state, group.state_timestamp_ms) == (new, old, 5)
    else:
        with pytest.raises(IllegalTransitionError):
            group.transition_to(new, 5)
        assert group.state is old


# -- one member -----------------------------------------------------------------------------------------------------


def test_member_joins_syncs_and_leaves() -> None:
    driver = GroupDriver()
    first = driver.join()
    assert (first.error, first.response.generation_id, first.response.member_id) == (
        E.MEMBER_ID_REQUIRED, -1, "client-1",
    )  # fmt: skip
    member = first.response.member_id
    assert driver.group.state is S.EMPTY
    assert last_group(driver).generation == 0
    joined = driver.join(member)
    assert joined.response is None
    assert driver.group.state is S.PREPARING_REBALANCE
    driver.pass_time(0)
    assert driver.group.state is S.COMPLETING_REBALANCE
    response = joined.response
    assert (response.generation_id, response.protocol_type, response.protocol_name) == (1, "consumer", "range")
    assert (response.leader, response.member_id, response.skip_assignment) == (member, member, False)
    assert [(other.member_id, other.metadata) for other in response.members] == [(member, subscription("t"))]
    synced = driver.sync(member, 1, {member: b"mine"})
    assert (synced.response.assignment, synced.response.protocol_name) == (b"mine", "range")
    assert driver.group.state is S.STABLE
    written = last_group(driver)
    assert (written.generation, written.leader, written.protocol) == (1, member, "range")
    assert [(m.member_id, m.client_id, m.client_host, m.assignment, m.session_timeout, m.rebalance_timeout)
            for m in written.members] == [(member, "client", "/host", b"mine", SESSION_MS, REBALANCE_MS)]  # fmt: skip
    assert driver.heartbeat(member, 1) is E.NONE
    assert driver.leave((member, None)).response.members[0].error_code == E.NONE
    assert driver.group.state is S.EMPTY
    written = last_group(driver)
    assert (written.generation, written.members, written.protocol_type) == (2, [], "consumer")


@pytest.mark.parametrize("version", [0, 3])
def test_old_clients_join_in_one_step(version: int) -> None:
    driver = GroupDriver()
    joined = driver.join(version=version)
    driver.pass_time(0)
    assert joined.response.generation_id == 1
    member = driver.group.members[joined.response.member_id]
    assert member.rebalance_timeout_ms == (SESSION_MS if version == 0 else REBALANCE_MS)


def test_unused_member_id_expires() -> None:
    driver = GroupDriver()
    member = driver.join().response.member_id
    driver.pass_time(SESSION_MS - 1)
    assert member in driver.group.pending_joins
    driver.pass_time(1)
    assert driver.group.pending_joins == {}
    assert driver.join(member).error is E.UNKNOWN_MEMBER_ID


def test_pending_member_delays_the_join_phase_until_it_expires() -> None:
    driver = GroupDriver()
    (leader,) = driver.stable_group(1)
    driver.join()
    rejoined = driver.join(leader)
    assert rejoined.response is None
    driver.pass_time(SESSION_MS)
    assert rejoined.response.generation_id == 2


def test_pending_member_may_leave() -> None:
    driver = GroupDriver()
    member = driver.join().response.member_id
    assert driver.leave((member, None)).response.members[0].error_code == E.NONE
    assert driver.join(member).error is E.UNKNOWN_MEMBER_ID


# -- several members ------------------------------------------------------------------------------------------------


def test_second_member_triggers_a_rebalance() -> None:
    driver = GroupDriver()
    (one,) = driver.stable_group(1)
    two, joined = driver.enter()
    assert driver.heartbeat(one, 1) is E.REBALANCE_IN_PROGRESS
    assert joined.response is None
    rejoined = driver.join(one)
    assert rejoined.response.generation_id == joined.response.generation_id == 2
    assert [other.member_id for other in rejoined.response.members] == [one, two]
    assert joined.response.members == []
    assert joined.response.leader == one
    follower = driver.sync(two, 2)
    assert follower.response is None
    leader = driver.sync(one, 2, {one: b"1", two: b"2"})
    assert (leader.response.assignment, follower.response.assignment) == (b"1", b"2")
    late = driver.sync(two, 2)
    assert late.response.assignment == b"2"


def test_members_without_an_assignment_get_an_empty_one() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    driver.join(one)
    driver.join(two)
    follower = driver.sync(two, 2)
    driver.sync(one, 2, {"stranger": b"x"})
    assert follower.response.assignment == b""
    assert {m.member_id: m.assignment for m in last_group(driver).members} == {one: b"", two: b""}


def test_leader_that_does_not_rejoin_in_time_is_removed_and_replaced() -> None:
    driver = GroupDriver(GroupConfig(max_session_timeout_ms=10 * REBALANCE_MS))
    one, two = driver.stable_group(2, session_ms=5 * REBALANCE_MS)
    protocols = (("range", subscription("t", "u")),)
    rejoined = driver.join(two, protocols=protocols, session_ms=5 * REBALANCE_MS)
    driver.pass_time(REBALANCE_MS - 1)
    assert rejoined.response is None
    driver.pass_time(1)
    assert rejoined.response.leader == two
    assert driver.heartbeat(one, 1) is E.UNKNOWN_MEMBER_ID
    assert driver.sync(one, 2).error is E.UNKNOWN_MEMBER_ID


def test_member_that_does_not_sync_in_time_is_removed() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2, rebalance_ms=SESSION_MS // 2)
    driver.join(one, rebalance_ms=SESSION_MS // 2)
    driver.join(two, rebalance_ms=SESSION_MS // 2)
    synced = driver.sync(one, 2, {})
    assert synced.error is E.NONE
    driver.pass_time(SESSION_MS // 2)
    assert list(driver.group.members) == [one]
    assert driver.group.state is S.PREPARING_REBALANCE


def test_silent_member_is_removed_after_its_session_timeout() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    driver.pass_time(SESSION_MS - 1)
    assert driver.heartbeat(one, 1) is E.NONE
    driver.pass_time(1)
    assert list(driver.group.members) == [one]
    assert driver.group.state is S.PREPARING_REBALANCE
    assert driver.heartbeat(two, 1) is E.UNKNOWN_MEMBER_ID
    assert driver.join(one).response.generation_id == 2


@pytest.mark.parametrize("jump_ms", [10**9, -(10**9)])
def test_wall_clock_change_does_not_affect_sessions(jump_ms: int) -> None:
    driver = GroupDriver()
    lively, silent = driver.stable_group(2)
    driver.set_clock(jump_ms)
    driver.pass_time(SESSION_MS - 1)
    assert driver.heartbeat(lively, 1) is E.NONE
    assert set(driver.group.members) == {lively, silent}
    driver.pass_time(1)
    assert set(driver.group.members) == {lively}
    assert driver.group.state is S.PREPARING_REBALANCE
    assert driver.group.state_timestamp_ms == driver.now_ms


def test_commits_extend_the_session() -> None:
    driver = GroupDriver()
    (one,) = driver.stable_group(1)
    driver.pass_time(SESSION_MS - 1)
    driver.commit({("t", 0): 1}, member_id=one, generation=1)
    driver.pass_time(SESSION_MS - 1)
    assert list(driver.group.members) == [one]


def test_member_that_waits_for_an_answer_does_not_expire() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2, rebalance_ms=5 * SESSION_MS)
    waiting = driver.join(one, rebalance_ms=5 * SESSION_MS)
    for _ in range(4):
        driver.pass_time(SESSION_MS - 1)
        assert driver.heartbeat(two, 1) is E.REBALANCE_IN_PROGRESS
    assert waiting.response is None
    assert one in driver.group.members
    driver.join(two, rebalance_ms=5 * SESSION_MS)
    assert waiting.response.generation_id == 2


def test_new_member_that_disconnects_during_its_join_expires_after_five_minutes() -> None:
    long = 2 * NEW_MEMBER_JOIN_TIMEOUT_MS
    driver = GroupDriver()
    (one,) = driver.stable_group(1, rebalance_ms=long, session_ms=1_800_000)
    two, joined = driver.enter(rebalance_ms=long)
    driver.pass_time(NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert two in driver.group.members
    driver.pass_time(1)
    assert list(driver.group.members) == [one]
    assert joined.error is E.UNKNOWN_MEMBER_ID


def test_initial_delay_is_extended_by_new_members() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=3000))
    one, first = driver.enter()
    driver.pass_time(2000)
    _, second = driver.enter()
    driver.pass_time(1000)
    assert first.response is None  # a member has joined: three seconds more
    driver.pass_time(2999)
    assert first.response is None
    driver.pass_time(1)
    assert first.response.leader == one
    assert {other.member_id for other in first.response.members} == {one, second.response.member_id}


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=3000))
    joins = [driver.enter(rebalance_ms=7000)[1]]
    for _ in range(6):
        driver.pass_time(1000)
        joins.append(driver.enter(rebalance_ms=7000)[1])
    driver.pass_time(999)
    assert joins[0].response is None
    driver.pass_time(1)
    assert joins[0].response.generation_id == 1


def test_retry_after_a_lost_answer_gets_the_same_answer() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    again = driver.join(two)
    assert (again.response.generation_id, again.response.members) == (1, [])
    assert driver.group.state is S.STABLE
    driver.join(one)
    driver.join(two)
    assert driver.group.state is S.COMPLETING_REBALANCE
    again = driver.join(one)
    assert (again.response.generation_id, len(again.response.members)) == (2, 2)
    assert driver.group.state is S.COMPLETING_REBALANCE


def test_changed_subscription_and_a_rejoining_leader_trigger_a_rebalance() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    assert driver.join(two, protocols=(("range", subscription("t", "u")),)).response is None
    assert driver.group.state is S.PREPARING_REBALANCE
    driver.join(one)
    waiting = driver.sync(one, 2, {})
    assert waiting.error is E.NONE
    assert driver.join(one).response is None
    assert driver.group.state is S.PREPARING_REBALANCE


def test_change_during_the_assignment_restarts_the_rebalance() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    driver.join(one)
    driver.join(two)
    waiting = driver.sync(two, 2)
    rejoin = driver.join(one, protocols=(("range", subscription("u")),))
    assert waiting.error is E.REBALANCE_IN_PROGRESS
    assert rejoin.response is None
    assert driver.join(two).response.generation_id == 3


def test_leaving_member_completes_the_join_phase() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    waiting = driver.join(one)
    assert waiting.response is None
    driver.leave((two, None))
    assert waiting.response.generation_id == 2


def test_member_that_leaves_while_it_waits_gets_an_error() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    waiting = driver.join(one)
    driver.leave((one, None))
    assert waiting.error is E.UNKNOWN_MEMBER_ID
    driver.join(two)
    driver.enter()
    driver.join(two)
    syncing = driver.sync(two, driver.group.generation)
    driver.leave((two, None))
    assert syncing.error in (E.NONE, E.UNKNOWN_MEMBER_ID)


# -- protocols ------------------------------------------------------------------------------------------------------


def test_protocol_supported_by_all_and_preferred_by_most_is_chosen() -> None:
    def speaks(*names: str) -> tuple[tuple[str, bytes], ...]:
        return tuple((name, subscription("t")) for name in names)

    driver = GroupDriver()
    one, first = driver.enter(protocols=speaks("sticky", "range"))
    driver.enter(protocols=speaks("range", "sticky"))
    driver.enter(protocols=speaks("only-mine", "range", "sticky"))
    driver.pass_time(0)
    assert first.response.protocol_name == "range"
    assert driver.join(one, protocols=speaks("other")).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(protocols=speaks("only-mine")).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(protocols=RANGE, protocol_type="connect").error is E.INCONSISTENT_GROUP_PROTOCOL


def test_member_without_protocols_is_rejected() -> None:
    driver = GroupDriver()
    assert driver.join(protocols=()).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(protocol_type="").error is E.INCONSISTENT_GROUP_PROTOCOL


def test_sync_checks_the_protocol() -> None:
    driver = GroupDriver()
    (one,) = driver.stable_group(1)
    assert driver.sync(one, 1, protocol="sticky").error is E.INCONSISTENT_GROUP_PROTOCOL
    assert driver.sync(one, 1, protocol=None).error is E.NONE


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_session_timeouts_have_bounds(session_ms: int) -> None:
    driver = GroupDriver()
    assert driver.join(session_ms=session_ms).error is E.INVALID_SESSION_TIMEOUT
    assert driver.coordinator.groups == {}


def test_unknown_members_and_old_generations_are_rejected() -> None:
    driver = GroupDriver()
    assert driver.join("unknown").error is E.UNKNOWN_MEMBER_ID
    assert driver.heartbeat("unknown", 1) is E.UNKNOWN_MEMBER_ID
    assert driver.sync("unknown", 1).error is E.UNKNOWN_MEMBER_ID
    assert driver.leave(("unknown", None)).response.members[0].error_code == E.UNKNOWN_MEMBER_ID
    assert driver.leave(("unknown", None), version=2).error is E.UNKNOWN_MEMBER_ID
    (one,) = driver.stable_group(1)
    for generation in (0, 2):
        assert driver.heartbeat(one, generation) is E.ILLEGAL_GENERATION
        assert driver.sync(one, generation).error is E.ILLEGAL_GENERATION
    assert driver.heartbeat("unknown", 1) is E.UNKNOWN_MEMBER_ID
    assert driver.join("unknown").error is E.UNKNOWN_MEMBER_ID


def test_full_group_rejects_new_members() -> None:
    driver = GroupDriver(GroupConfig(max_size=2))
    ids = driver.stable_group(2)
    full = driver.join()
    assert (full.error, full.response.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    assert driver.group.state is S.STABLE
    driver.leave((ids[0], None))
    assert driver.join().error is E.MEMBER_ID_REQUIRED


def test_group_above_its_new_maximum_size_shrinks() -> None:
    driver = GroupDriver()
    ids = driver.stable_group(3)
    driver.config = GroupConfig(max_size=2)
    driver.fail_over()
    assert driver.group.state is S.PREPARING_REBALANCE
    answers = [driver.join(member) for member in ids]
    assert answers[2].error is E.GROUP_MAX_SIZE_REACHED
    assert [answer.error for answer in answers[:2]] == [E.NONE, E.NONE]


# -- listing and describing -------------------------------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type() -> None:
    driver = GroupDriver()
    driver.stable_group(1)

    def listed(states: list[str], types: list[str]) -> list[tuple[str, str, str, str]]:
        return [
            (group.group_id, group.protocol_type, group.group_state, group.group_type)
            for group in driver.coordinator.list_groups(states, types)
        ]

    mine = [(GROUP, "consumer", "Stable", "classic")]
    assert listed([], []) == mine
    assert listed(["stable", "empty"], []) == mine
    assert listed(["empty"], []) == []
    assert listed([], ["classic"]) == mine
    assert listed([], ["consumer"]) == []


def test_groups_are_described() -> None:
    driver = GroupDriver()
    (one,) = driver.stable_group(1)
    described = driver.coordinator.classic.describe(GROUP, 6)
    assert (described.group_state, described.protocol_type, described.protocol_data) == (
        "Stable", "consumer", "range",
    )  # fmt: skip
    (member,) = described.members
    assert (member.member_id, member.client_id, member.client_host) == (one, "client", "/host")
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), one.encode())
    driver.join(one)
    described = driver.coordinator.classic.describe(GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
    assert described.members[0].member_metadata == b""


@pytest.mark.parametrize(("version", "error"), [(5, E.NONE), (6, E.GROUP_ID_NOT_FOUND)])
def test_missing_group_is_described_as_dead(version: int, error: E) -> None:
    described = GroupDriver().coordinator.classic.describe("nothing", version)
    assert (described.group_state, described.error_code) == ("Dead", error)


def test_retried_join_also_answers_the_first_request() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    first: Waiting = driver.join(one)
    second = driver.join(one)
    assert first.error is E.REBALANCE_IN_PROGRESS
    driver.join(two)
    assert second.response.generation_id == 2
