"""Consumer groups that a coordinator loads from a log that another broker has written."""

from __future__ import annotations

from oncelog.coordinator.effects import Effects
from oncelog.coordinator.groups.consumer import records
from oncelog.coordinator.groups.consumer.member import ConsumerMember
from support.fixed_topics import topic_id
from support.group_driver import GROUP, GroupDriver, Waiting


def test_unknown_assignor_counts_as_the_default() -> None:
    """Kafka can load assignors of its users. Their groups still get their partitions."""
    driver = GroupDriver()
    driver.topics.counts["t"] = 2
    old = ConsumerMember("old", topics=frozenset({"t"}), rebalance_timeout_ms=1000, assignor="of a user", epoch=1)
    driver.apply(
        Effects(
            [
                records.group_record(GROUP, 1, 0),
                records.member_record(GROUP, old),
                records.current_record(GROUP, old),
            ]
        )
    )
    driver.fail_over()
    answer = driver.consumer_heartbeat(
        member_id="new",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert isinstance(answer, Waiting)
    (assigned,) = answer.response.assignment.topic_partitions
    assert (assigned.topic_id, len(assigned.partitions)) == (topic_id("t"), 1)
