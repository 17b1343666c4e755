"""The settings of one group of the consumer protocol take effect with its next heartbeat (KIP-848)."""

from __future__ import annotations

from typing import Any

from oncelog.coordinator.groups.coordinator import GroupCoordinator
from oncelog.coordinator.groups.registry import ConsumerSettings, GroupConfig
from oncelog.coordinator.timers import Now
from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from oncelog.protocol.messages.consumer_group_records import ConsumerGroupCurrentMemberAssignmentKey
from support.fixed_topics import FixedTopics


def test_settings_of_a_group_take_effect_with_its_next_heartbeat() -> None:
    of_groups = {"own": ConsumerSettings(session_timeout_ms=100, heartbeat_interval_ms=10)}
    coordinator = GroupCoordinator(
        GroupConfig(), str, FixedTopics(), consumer_settings=lambda group: of_groups.get(group, ConsumerSettings())
    )

    coordinator.loaded(Now(0, 0))

    def beat(group: str, epoch: int, now_ms: int) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="m",
            member_epoch=epoch,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["t"] if epoch == 0 else None,
            topic_partitions=[] if epoch == 0 else None,
        )
        effects = coordinator.consumer.heartbeat(request, 1, "client", "/host", None, Now(now_ms, now_ms))
        for record in effects.records:
            coordinator.consumer.replay(record.key, record.value)
        coordinator.tick(Now(now_ms, now_ms))
        return effects.replies[0].response

    joined = beat("other", 0, 0)
    assert joined.heartbeat_interval_ms == 5_000
    joined = beat("own", 0, 0)
    assert joined.heartbeat_interval_ms == 10
    assert coordinator.registry.deadlines.next() == 100
    of_groups["own"] = ConsumerSettings(session_timeout_ms=200, heartbeat_interval_ms=20)
    assert beat("own", joined.member_epoch, 50).heartbeat_interval_ms == 20
    effects = coordinator.tick(Now(249, 249))
    assert not effects.records
    effects = coordinator.tick(Now(250, 250))
    assert ConsumerGroupCurrentMemberAssignmentKey in [type(each.key) for each in effects.records]
