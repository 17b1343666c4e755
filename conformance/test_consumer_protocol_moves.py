"""Groups that members of four clients move between the classic and the consumer protocol, one by one (KIP-848)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.live_group import live_group
from support.servers import Server

SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.migration.policy": "bidirectional",
}


ORDER = ("java", "oncelog", "librdkafka", "franz-go")
"""The first member leads the classic group. librdkafka as leader would send user data with the assignment, which the
consumer protocol cannot keep: the group could not move (`ConsumerGroup.fromClassicGroup`).
"""


@pytest.mark.parametrize(("old", "new"), [("classic", "consumer"), ("consumer", "classic")], ids=["up", "down"])
def test_members_move_one_by_one(module_server: Server, name: str, tmp_path: Path, old: str, new: str) -> None:
    """Each member is replaced by one of the same client with the other protocol, while records are sent."""
    with live_group(module_server.bootstrap, name, tmp_path, partitions=12) as group:
        members = {}
        for client in ORDER:
            members[client] = group.join(client, old)
            group.wait_even(sending=True)
        for client in reversed(ORDER):
            group.leave(members[client])
            group.join(client, new)
            group.wait_even(sending=True)
        group.wait_all_read()
        group.check(new)
