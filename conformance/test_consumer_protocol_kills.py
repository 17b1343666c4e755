"""Mixed members of the consumer protocol (KIP-848), whose coordinator is killed twice while they read and commit."""

from __future__ import annotations

from pathlib import Path

from support.kafka_nodes import ThreeKafkas
from support.live_group import CLIENTS, LiveGroup, live_group
from support.servers import ReplicatedCluster, Server

SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
}

SERVERS = ("apache-kafka-3", "oncelog-3")

JOINING = ("java", "oncelog")
"""The client that joins after each kill, before another coordinator is elected."""


def outlive_coordinator(group: LiveGroup, server: ReplicatedCluster | ThreeKafkas, joining: str) -> None:
    """Kill the coordinator. The others read on, and a new member gets its part."""
    victim, sent = group.coordinator(), group.sent
    server.kill(victim)
    group.join(joining)
    group.wait(lambda: group.coordinator() != victim, "another broker is the coordinator", sending=True)
    group.wait(lambda: len(group.history.times) > sent, "the members read on", sending=True)
    group.wait_even(sending=True)
    server.wait_ready()
    group.wait_all_read()


def test_members_survive_their_coordinator(module_server: Server, name: str, tmp_path: Path) -> None:
    """Every record is read, committed offsets never go back, and no partition has two owners."""
    assert isinstance(module_server, ReplicatedCluster | ThreeKafkas)
    with live_group(module_server.bootstrap, name, tmp_path, partitions=12) as group:
        for client in CLIENTS:
            group.join(client)
        group.wait_even(sending=True)
        for joining in JOINING:
            outlive_coordinator(group, module_server, joining)
        members = list(group.members)
        group.leave(members[0])
        group.wait_even(sending=True)
        group.wait_all_read()
        for member in members[1:]:
            group.leave(member)
        group.check()
        assert set(group.history.assigned) == set(group.places)
        assert not any(group.history.of(member, "lost") for member in members)
