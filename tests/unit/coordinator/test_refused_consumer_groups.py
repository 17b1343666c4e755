"""Heartbeats of the consumer protocol that are refused: other members and the memory stay as they were."""

from __future__ import annotations

from uuid import UUID

import pytest

from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.protocol.errors import ErrorCode
from support.fixed_topics import topic_id
from support.group_driver import GROUP, GroupDriver, Waiting

T = topic_id("t")
REBALANCE_MS = 20_000
SESSION_MS = 45_000


def beat(driver: GroupDriver, member_id: str, epoch: int = 0, **fields: object) -> Waiting | ErrorCode:
    given: dict[str, object] = {"member_id": member_id, "member_epoch": epoch}
    if epoch == 0:
        given |= {"rebalance_timeout_ms": REBALANCE_MS, "topic_partitions": [], "subscribed_topic_names": ["t"]}
    return driver.consumer_heartbeat(**{**given, **fields})


def epoch_of(driver: GroupDriver, member_id: str) -> int:
    group = driver.coordinator.groups[GROUP]
    return int(group.members[member_id].epoch)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("waits", "members"), [("JoinGroup", 3), ("SyncGroup", 2)])
@pytest.mark.parametrize(
    ("is_full", "pattern", "error"),
    [(False, "(", ErrorCode.INVALID_REGULAR_EXPRESSION), (True, None, ErrorCode.GROUP_MAX_SIZE_REACHED)],
)
def test_members_of_a_classic_group_still_get_their_answers(
    waits: str, members: int, is_full: bool, pattern: str | None, error: ErrorCode
) -> None:
    """A heartbeat that is refused does not begin the move to the consumer protocol."""
    driver = GroupDriver(GroupConfig(consumer_max_size=members if is_full else 10))
    driver.topics.counts["t"] = 1
    one, two = driver.enter(), driver.enter()
    driver.pass_time(0)
    generation = one[1].response.generation_id
    leader = one[1].response.leader
    other = two[0] if leader == one[0] else one[0]
    if waits == "SyncGroup":
        waiting = driver.sync(other, generation)
    else:
        driver.sync(leader, generation, {leader: b"", other: b""})
        driver.sync(other, generation)
        _, waiting = driver.enter()
    assert waiting.response is None
    assert beat(driver, "stranger", subscribed_topic_regex=pattern) is error
    if waits == "SyncGroup":
        driver.sync(leader, generation, {other: b"x"})
    else:
        driver.join(leader)
        driver.join(other)
    assert waiting.error is ErrorCode.NONE


def test_a_group_that_could_not_be_written_leaves_no_deadline() -> None:
    driver = GroupDriver()
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    before = driver.coordinator.deadline()
    answer = beat(driver, "m")
    assert isinstance(answer, Waiting)
    assert answer.failed is ErrorCode.NOT_ENOUGH_REPLICAS
    assert GROUP not in driver.coordinator.groups
    assert driver.coordinator.deadline() == before


def test_a_static_member_that_left_for_a_while_need_not_give_up_partitions() -> None:
    """It has its whole session to return, although it was asked to give up partitions before it left."""
    driver = GroupDriver()
    driver.topics.counts["t"] = 2
    assert isinstance(beat(driver, "a", instance_id="i"), Waiting)
    driver.pass_time(5_000)
    assert isinstance(beat(driver, "b"), Waiting)
    asked = beat(driver, "a", epoch_of(driver, "a"), instance_id="i")
    assert isinstance(asked, Waiting)
    assert _count(asked, T) == 1  # one of two: it must give the other up
    assert isinstance(beat(driver, "a", -2, instance_id="i"), Waiting)
    driver.pass_time(REBALANCE_MS + 1)
    group = driver.coordinator.groups[GROUP]
    assert not group.is_empty
    assert epoch_of(driver, "a") == -2
    driver.pass_time(SESSION_MS)
    assert group.is_empty


def _count(answer: Waiting, topic: UUID) -> int:
    return sum(len(each.partitions) for each in answer.response.assignment.topic_partitions if each.topic_id == topic)
