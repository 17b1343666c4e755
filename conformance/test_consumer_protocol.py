"""Members of four clients in groups of the consumer protocol (KIP-848), alone and mixed.

The clients are ours, librdkafka, Java's and franz-go. Each member reports what its listeners are told.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.live_group import CLIENTS, live_group
from support.servers import Server

SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
}
"""A member moves one step towards its assignment with each heartbeat."""


@pytest.mark.parametrize("client", CLIENTS)
def test_members_share_leave_and_resume(module_server: Server, name: str, tmp_path: Path, client: str) -> None:
    """Members of one client hand partitions over, and each continues at the committed offset."""
    with live_group(module_server.bootstrap, name, tmp_path, partitions=4) as group:
        group.send(20)
        first = group.join(client)
        group.wait_even()
        assert sorted(group.history.of(first, "assigned")) == group.places
        group.wait_all_read()
        second = group.join(client)
        group.wait_even()
        assert len(group.history.of(first, "revoked")) == 2, "the others stay"
        assert sorted(group.history.of(second, "assigned")) == sorted(group.history.of(first, "revoked"))
        group.send(4)
        group.wait_all_read()
        group.leave(second)
        group.wait_even()
        group.send(4)
        group.wait_all_read()
        group.leave(first)
        group.send(4)
        group.join(client)
        group.wait_all_read()
        group.check()
        assert group.history.repeated() == {}
        assert not any(group.history.of(member, "lost") for member in (first, second))
        assert group.history.refused == group.history.errors == []


def test_mixed_members_read_everything(module_server: Server, name: str, tmp_path: Path) -> None:
    """Members of all clients join and leave one group while records are sent."""
    with live_group(module_server.bootstrap, name, tmp_path, partitions=12) as group:
        joined = []
        for client in CLIENTS:
            joined.append(group.join(client))
            group.wait_even(sending=True)
        assert all(group.history.shares(joined).values()), "each client has a part"
        for member in joined[:-1]:
            group.leave(member)
            group.wait_even(sending=True)
        group.join(next(iter(CLIENTS)))
        group.wait_even(sending=True)
        group.wait_all_read()
        group.check()
        assert set(group.history.assigned) == set(group.places)
        assert group.history.repeated() == {}
        assert group.history.refused == group.history.errors == []
