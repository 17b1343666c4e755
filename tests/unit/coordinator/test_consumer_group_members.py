"""Members of the consumer protocol, one heartbeat at a time: what they get, give up and may commit."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.protocol.errors import ErrorCode as E
from oncelog.protocol.messages.consumer_group_heartbeat import TopicPartitions
from support.fixed_topics import topic_id
from support.group_driver import GROUP, GroupDriver, Waiting

T = topic_id("t")


class Member:
    """A member: its epoch, and what it owns of the only topic."""

    def __init__(self, driver: GroupDriver, member_id: str, instance: str | None = None) -> None:
        self.driver, self.member_id, self.instance = driver, member_id, instance
        self.epoch = 0
        self.owned: set[int] = set()

    def beat(self) -> None:
        """Send a heartbeat with all that the member owns, and take over the answer. The last assignment is old."""
        self.driver.pass_time(1_000)
        fields: dict[str, Any] = {"topic_partitions": []}
        if self.owned:
            fields["topic_partitions"] = [TopicPartitions(topic_id=T, partitions=sorted(self.owned))]
        if not self.epoch:
            fields |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"]}
        answer = self.driver.consumer_heartbeat(
            member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance, **fields
        )
        assert isinstance(answer, Waiting), answer
        self.epoch = answer.response.member_epoch
        if answer.response.assignment is not None:
            self.owned = {p for each in answer.response.assignment.topic_partitions for p in each.partitions}

    def leave(self, epoch: int = -1) -> None:
        self.driver.consumer_heartbeat(member_id=self.member_id, member_epoch=epoch, instance_id=self.instance)

    def commit(self, partition: int, epoch: int) -> E:
        answer = self.driver.commit({("t", partition): 5}, member_id=self.member_id, generation=epoch)
        return E.NONE if isinstance(answer, Waiting) else answer


@pytest.fixture
def driver() -> GroupDriver:
    made = GroupDriver()
    made.topics.counts["t"] = 6
    return made


def group(driver: GroupDriver) -> ConsumerGroup:
    found = driver.coordinator.registry.find(GROUP, ConsumerGroup)
    assert found is not None
    return found


def test_member_that_gives_partitions_up_twice_may_not_commit_the_first_ones(driver: GroupDriver) -> None:
    """Another member has them already, although this one has not reached the newest epoch (not so in Kafka 4.3.1)."""
    first, second, third = (Member(driver, name) for name in ("first", "second", "third"))
    first.beat()
    second.beat()
    first.beat()  # it must give three up
    former, gone = first.epoch, {0, 1, 2, 3, 4, 5} - first.owned
    assert len(gone) == 3
    third.beat()  # and now four
    first.beat()
    assert len(first.owned) == 2
    assert first.epoch < group(driver).epoch
    second.beat()
    taken = min(gone & second.owned)
    assert second.commit(taken, second.epoch) is E.NONE
    assert first.commit(taken, former) is E.STALE_MEMBER_EPOCH
    assert first.commit(min(first.owned), former) is E.NONE


def test_new_partitions_of_a_topic_are_assigned(driver: GroupDriver) -> None:
    member = Member(driver, "first")
    member.beat()
    epoch = group(driver).epoch
    driver.topics.counts["t"] = 8
    driver.apply(driver.coordinator.topics_changed(frozenset({"t"}), driver.now))
    member.beat()
    assert (group(driver).epoch, member.owned) == (epoch + 1, set(range(8)))


def test_partitions_of_a_member_that_leaves_are_assigned(driver: GroupDriver) -> None:
    first, second = Member(driver, "first"), Member(driver, "second")
    for member in (first, second, first, second, first, second):
        member.beat()
    assert len(first.owned) == len(second.owned) == 3
    second.leave()
    first.beat()
    assert first.owned == {0, 1, 2, 3, 4, 5}


def test_static_member_that_returns_takes_the_place_of_the_former_one(driver: GroupDriver) -> None:
    first, other = Member(driver, "first", "i"), Member(driver, "other")
    for member in (first, other, first, other, first, other):
        member.beat()
    epoch, owned = group(driver).epoch, first.owned
    first.leave(epoch=-2)
    returned = Member(driver, "returned", "i")
    returned.beat()
    assert returned.owned == group(driver).targets["returned"][T] == owned
    assert (group(driver).epoch, set(group(driver).members)) == (epoch, {"returned", "other"})
