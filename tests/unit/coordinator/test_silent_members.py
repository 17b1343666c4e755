"""Members that only the log knows expire too: those of a group that moves to the other protocol, and after a load."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.protocol.messages.consumer_group_heartbeat import TopicPartitions
from oncelog.protocol.messages.consumer_protocol import AssignedPartition, ConsumerProtocolAssignment
from oncelog.protocol.schema import encode_versioned
from support.fixed_topics import topic_id
from support.group_driver import SESSION_MS, GroupDriver, Waiting

SOON_MS = 3_000
"""More than the pause between two assignments, and some heartbeats."""


class Consumer:
    """A member of the consumer protocol that always sends its heartbeats."""

    def __init__(self, driver: GroupDriver, member_id: str) -> None:
        self.driver = driver
        self.member_id = member_id
        self.epoch = 0
        self.owned: list[int] = []

    def heartbeat(self) -> None:
        fields: dict[str, Any] = {"member_id": self.member_id, "member_epoch": self.epoch, "topic_partitions": []}
        if self.epoch == 0:
            fields |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"]}
        elif self.owned:
            fields["topic_partitions"] = [TopicPartitions(topic_id=topic_id("t"), partitions=self.owned)]
        answer = self.driver.consumer_heartbeat(**fields)
        assert isinstance(answer, Waiting), answer
        self.epoch = answer.response.member_epoch
        if answer.response.assignment is not None:
            self.owned = [each for topic in answer.response.assignment.topic_partitions for each in topic.partitions]

    def live(self, ms: int) -> None:
        for _ in range(0, ms, 1_000):
            self.driver.pass_time(1_000)
            self.heartbeat()


@pytest.fixture
def driver() -> GroupDriver:
    found = GroupDriver()
    found.topics.counts["t"] = 3
    return found


def test_silent_classic_member_expires_after_the_move_to_the_consumer_protocol(driver: GroupDriver) -> None:
    member_id, joined = driver.enter()
    driver.pass_time(driver.config.initial_rebalance_delay_ms)
    mine = ConsumerProtocolAssignment(assigned_partitions=[AssignedPartition(topic="t", partitions=[0, 1, 2])])
    driver.sync(member_id, joined.response.generation_id, {member_id: encode_versioned(mine, 1)})
    consumer = Consumer(driver, "new")
    consumer.heartbeat()
    assert consumer.owned == []
    consumer.live(SESSION_MS + SOON_MS)
    assert consumer.owned == [0, 1, 2]


def test_silent_consumer_expires_after_a_load(driver: GroupDriver) -> None:
    silent, living = Consumer(driver, "silent"), Consumer(driver, "living")
    silent.heartbeat()
    assert silent.owned == [0, 1, 2]
    driver.fail_over()
    living.heartbeat()
    living.live(45_000 + SOON_MS)
    assert living.owned == [0, 1, 2]
