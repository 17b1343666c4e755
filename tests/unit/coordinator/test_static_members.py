"""Static members of classic groups (KIP-345)."""

from __future__ import annotations

import pytest

from oncelog.coordinator.groups.classic.group import GroupState as S
from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.protocol.errors import ErrorCode as E
from support.group_driver import (
    REBALANCE_MS,
    SESSION_MS,
    GroupDriver,
    last_group,
    static_group,
    subscription,
)


def test_static_members_join_in_one_step_and_are_identified_by_their_instance() -> None:
    driver = GroupDriver()
    one, two = static_group(driver)
    assert one.startswith("a-")
    assert two.startswith("b-")
    assert [m.group_instance_id for m in last_group(driver).members] == ["a", "b"]


@pytest.mark.parametrize(("version", "skips"), [(5, False), (8, False), (9, True)])
def test_static_leader_returns_without_a_rebalance(version: int, skips: bool) -> None:
    driver = GroupDriver()
    one, two = static_group(driver)
    back = driver.join(instance="a", version=version)
    new = back.response.member_id
    assert new != one
    assert (back.error, back.response.generation_id) == (E.NONE, 1)
    assert back.response.skip_assignment is skips
    assert back.response.leader == (new if skips else one)
    assert {m.member_id for m in back.response.members} == ({new, two} if skips else set())
    assert driver.group.state is S.STABLE
    assert last_group(driver).leader == new
    assert driver.sync(new, 1, instance="a").response.assignment == b"A"
    assert driver.heartbeat(one, 1, "a") is E.FENCED_INSTANCE_ID
    assert driver.sync(one, 1, instance="a").error is E.FENCED_INSTANCE_ID
    assert driver.join(one, instance="a").error is E.FENCED_INSTANCE_ID
    assert driver.commit({("t", 0): 1}, member_id=one, generation=1, instance="a") is E.FENCED_INSTANCE_ID
    assert driver.leave((one, "a")).response.members[0].error_code == E.FENCED_INSTANCE_ID
    assert driver.heartbeat(new, 1, "stranger") is E.UNKNOWN_MEMBER_ID


def test_returning_static_follower_does_not_lead() -> None:
    driver = GroupDriver()
    one, _ = static_group(driver)
    back = driver.join(instance="b")
    assert (back.response.leader, back.response.skip_assignment, back.response.members) == (one, False, [])


def test_static_member_with_another_protocol_triggers_a_rebalance() -> None:
    driver = GroupDriver()
    both = (("range", subscription("t")), ("sticky", subscription("t")))
    one = driver.join(instance="a", protocols=both)
    driver.pass_time(0)
    driver.sync(one.response.member_id, 1, {}, instance="a")
    back = driver.join(instance="a", protocols=(both[1],))
    assert (back.response.generation_id, back.response.protocol_name) == (2, "sticky")


def test_topics_of_a_group_follow_a_static_member_that_returns_with_another_subscription() -> None:
    hour_ms, retention_ms, session_ms = 3_600_000, 24 * 3_600_000, 1_800_000
    driver = GroupDriver(GroupConfig(offsets_retention_ms=retention_ms, retention_check_interval_ms=hour_ms))
    one = driver.join(instance="a", session_ms=session_ms)
    driver.pass_time(0)
    driver.sync(one.response.member_id, 1, {}, instance="a")
    offsets = {("t", 0): 1, ("t", 1): 1, ("u", 0): 1}
    driver.commit(offsets, member_id=one.response.member_id, generation=1, instance="a")
    assert (driver.delete_offset("t"), driver.delete_offset("u", 1)) == (E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE)
    back = driver.join(instance="a", protocols=(("range", subscription("u")),), session_ms=session_ms)
    assert (back.response.generation_id, driver.group.state) == (1, S.STABLE)
    assert (driver.delete_offset("t"), driver.delete_offset("u")) == (E.NONE, E.GROUP_SUBSCRIBED_TO_TOPIC)
    for _ in range(3 * (retention_ms + hour_ms) // hour_ms):
        driver.pass_time(hour_ms // 3)
        assert driver.heartbeat(back.response.member_id, 1, "a") is E.NONE
    assert (driver.fetch("t"), driver.fetch("t", 1), driver.fetch("u")) == (-1, -1, 1)


def test_static_member_that_returns_while_it_waits_fences_its_previous_instance() -> None:
    driver = GroupDriver()
    _, two = static_group(driver)
    waiting = driver.join(two, instance="b", protocols=(("range", subscription("u")),))
    back = driver.join(instance="b")
    assert waiting.error is E.FENCED_INSTANCE_ID
    assert back.response is None
    assert driver.group.state is S.PREPARING_REBALANCE


def test_static_members_keep_their_place_in_a_rebalance() -> None:
    driver = GroupDriver()
    one, two = static_group(driver)
    rejoined = driver.join(one, instance="a")
    for _ in range(REBALANCE_MS // (SESSION_MS - 1) + 1):
        driver.heartbeat(two, 1, "b")
        driver.pass_time(SESSION_MS - 1)
    assert {m.member_id for m in rejoined.response.members} == {one, two}


def test_rebalance_without_active_members_waits_for_static_members() -> None:
    driver = GroupDriver()
    one, two = static_group(driver)
    third, _ = driver.enter()
    driver.leave((third, None))
    for _ in range(REBALANCE_MS // (SESSION_MS - 1) + 2):
        driver.heartbeat(one, 1, "a")
        driver.heartbeat(two, 1, "b")
        driver.pass_time(SESSION_MS - 1)
    assert driver.group.state is S.PREPARING_REBALANCE
    driver.join(one, instance="a")
    assert driver.join(two, instance="b").response.generation_id == 2


def test_administrator_removes_static_members_in_one_request() -> None:
    driver = GroupDriver()
    static_group(driver)
    answer = driver.leave(("", "a"), ("", "stranger"), ("", "b"))
    assert [member.error_code for member in answer.response.members] == [E.NONE, E.UNKNOWN_MEMBER_ID, E.NONE]
    assert driver.group.state is S.EMPTY
    assert driver.group.static_members == {}
