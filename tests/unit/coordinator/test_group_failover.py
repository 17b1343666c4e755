"""Classic groups whose records cannot be written, or whose coordinator moves."""

from __future__ import annotations

import tracemalloc

from oncelog.coordinator.groups.classic.group import GroupState as S
from oncelog.protocol.errors import ErrorCode as E
from support.group_driver import (
    REBALANCE_MS,
    SESSION_MS,
    GroupDriver,
    last_group,
    static_group,
)

# -- appends that fail ------------------------------------------------------------------------------------------------


def test_assignment_that_cannot_be_written_is_not_returned() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    driver.join(one)
    driver.join(two)
    follower = driver.sync(two, 2)
    driver.refuse = E.NOT_ENOUGH_REPLICAS
    leader = driver.sync(one, 2, {one: b"1", two: b"2"})
    assert leader.failed is follower.failed is E.NOT_ENOUGH_REPLICAS
    assert driver.group.state is S.COMPLETING_REBALANCE
    # Both look up the coordinator and rejoin: the generation is still theirs.
    assert driver.join(one).response.generation_id == 2
    assert driver.join(two).response.generation_id == 2
    follower = driver.sync(two, 2)
    assert driver.sync(one, 2, {one: b"3", two: b"4"}).response.assignment == b"3"
    assert follower.response.assignment == b"4"
    assert driver.group.state is S.STABLE


def test_group_whose_assignment_cannot_be_written_rebalances_in_time() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    driver.join(one)
    driver.join(two)
    driver.sync(two, 2)
    driver.refuse = E.NOT_ENOUGH_REPLICAS
    driver.sync(one, 2, {one: b"1", two: b"2"})
    waiting = driver.sync(two, 2)
    for _ in range(2 * REBALANCE_MS // SESSION_MS):  # the leader lives, but never repeats its assignment
        driver.heartbeat(one, 2)
        driver.pass_time(SESSION_MS // 2)
    assert waiting.error is E.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(one, 2) is E.REBALANCE_IN_PROGRESS


def test_static_member_is_not_replaced_if_its_return_cannot_be_written() -> None:
    driver = GroupDriver()
    one, _ = static_group(driver)
    driver.refuse = E.NOT_ENOUGH_REPLICAS
    assert driver.join(instance="a").failed is E.NOT_ENOUGH_REPLICAS
    assert driver.heartbeat(one, 1, "a") is E.NONE
    back = driver.join(instance="a")
    assert back.error is E.NONE
    assert driver.heartbeat(one, 1, "a") is E.FENCED_INSTANCE_ID


def test_rejected_assignments_are_not_kept() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group(1)
    tracemalloc.start()
    try:
        for number in range(30):
            generation = driver.join(member).response.generation_id
            driver.refuse = E.NOT_LEADER_OR_FOLLOWER
            driver.sync(member, generation, {member: bytes([number]) * 1_000_000})
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5_000_000


# -- fail-over --------------------------------------------------------------------------------------------------------


def test_stable_group_continues_on_a_new_coordinator() -> None:
    driver = GroupDriver()
    one, two = driver.stable_group(2)
    driver.pass_time(SESSION_MS - 1)
    driver.fail_over()
    assert driver.group.state is S.STABLE
    assert driver.heartbeat(one, 1) is E.NONE
    assert driver.sync(two, 1).response.assignment == two.encode()
    driver.pass_time(SESSION_MS)
    assert driver.group.members == {}
    assert driver.group.state is S.EMPTY
    assert last_group(driver).generation == 2


def test_new_coordinator_drops_an_incomplete_generation() -> None:
    driver = GroupDriver()
    (one,) = driver.stable_group(1)
    driver.enter()
    driver.join(one)
    assert driver.group.generation == 2
    driver.fail_over()
    assert (driver.group.generation, list(driver.group.members)) == (1, [one])
    assert driver.heartbeat(one, 2) is E.ILLEGAL_GENERATION
