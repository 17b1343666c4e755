"""Members of the consumer protocol (KIP-848) that subscribe to patterns in RE2 syntax, which the broker applies."""

from __future__ import annotations

from pathlib import Path

from oncelog import Admin
from support.live_group import CLIENTS, live_group
from support.servers import Server

SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
}


def test_brokers_apply_the_patterns_of_all_clients(module_server: Server, name: str, tmp_path: Path) -> None:
    """The members read all topics that match, also one that is created later (Kafka looks every 10 s)."""
    with live_group(module_server.bootstrap, name, tmp_path, subscription=f"^{name}-[ab].*") as group:
        group.create_topic(f"{name}-a", 8)
        with Admin(module_server.bootstrap) as admin:
            admin.create_topics(f"{name}-c", 2)
        for client in CLIENTS:
            group.join(client)
        group.wait_even(sending=True)
        group.create_topic(f"{name}-b", 4)
        group.wait_even(sending=True)
        group.wait_all_read()
        group.check()
        assert group.history.repeated() == {}
