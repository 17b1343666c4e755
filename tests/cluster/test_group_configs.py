"""Settings of groups on three brokers: a change at one of them takes effect at the coordinators on all of them."""

from __future__ import annotations

from typing import Any

from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from support.configs import GROUP, SET, alter, shown
from support.wire import Wire, until

KEY = "consumer.heartbeat.interval.ms"
GROUPS = [f"group-{number}" for number in range(9)]
"""With three brokers, their coordinators are on all of them."""


def beat(wire: Wire, group: str) -> Any:
    """Join as a new member, or as one that joins again."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id="m", rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    return wire.call(request, 1)


def test_change_at_one_broker_takes_effect_at_all_coordinators(wires: list[Wire]) -> None:
    coordinators = {group: wires[wires[0].find_coordinator(group, 0).coordinators[0].node_id - 1] for group in GROUPS}
    assert len(set(map(id, coordinators.values()))) == 3
    for number, (group, coordinator) in enumerate(coordinators.items()):
        joined = until(
            lambda group=group, coordinator=coordinator: beat(coordinator, group),  # type: ignore[misc]
            lambda answer: not answer.error_code,
            "the member joins",
        )
        assert joined.heartbeat_interval_ms == 5_000
        assert not alter(wires[number % 3], GROUP, group, (KEY, SET, "6000")).error_code
        until(
            lambda group=group, coordinator=coordinator: beat(coordinator, group).heartbeat_interval_ms,  # type: ignore[misc]
            lambda found: found == 6_000,
            "the interval is new",
        )
        for wire in wires:
            until(
                lambda wire=wire, group=group: shown(wire, GROUP, group)[KEY].value,  # type: ignore[misc]
                lambda found: found == "6000",
                "the broker shows it",
            )
