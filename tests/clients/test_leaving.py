"""Our consumer leaves its group whenever it is closed, even during its join.

The other members then need not wait for the end of its session, which takes longer than any test here. (KIP-848:
`conformance/test_server_side_assignors.py`.)
"""

from __future__ import annotations

import pytest

from oncelog import Admin
from oncelog.protocol.messages.join_group import JoinGroupRequest
from oncelog.protocol.messages.sync_group import SyncGroupRequest
from oncelog.protocol.schema import Message
from oncelog.protocol.topics import TopicPartition
from support.processes import wait_until
from support.rebalances import CLASSIC, close_after, members, settle
from support.servers import Server

LASTING = CLASSIC | {"session_timeout_ms": 45_000}


def partitions_of(admin: Admin, topic: str) -> list[TopicPartition]:
    admin.create_topics(topic, 3)
    return [(topic, index) for index in range(3)]


def count(admin: Admin, group: str) -> int:
    return len(admin.describe_group(group).members)


def test_member_with_a_delayed_join_leaves(server: Server, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name)
    with members(server.bootstrap, name, 2, **LASTING) as (first, second):
        first.subscribe([name])
        settle([first], partitions)
        second.subscribe([name])  # waits for the first member, which does not poll
        wait_until(lambda: second.consumer.poll(0.05) == [] and count(admin, name) == 2, "the second member is joining")
        second.consumer.close()
        assert count(admin, name) == 1
        settle([first], partitions)


def test_member_with_a_delayed_rejoin_leaves(server: Server, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name)
    with members(server.bootstrap, name, 3, **LASTING) as (first, second, third):
        for each in (first, second):
            each.subscribe([name])
        settle([first, second], partitions)
        third.subscribe([name])
        wait_until(lambda: third.consumer.poll(0.05) == [] and count(admin, name) == 3, "the third member is joining")
        wait_until(
            lambda: second.consumer.poll(0.05) == [] == second.consumer.assignment(), "the second member rejoins"
        )
        second.consumer.close()
        assert count(admin, name) == 2
        settle([first, third], partitions)


@pytest.mark.parametrize(
    ("request_type", "number"),
    [
        pytest.param(JoinGroupRequest, 1, id="before it has a name"),
        pytest.param(JoinGroupRequest, 2, id="joining"),
        pytest.param(SyncGroupRequest, 1, id="syncing"),
    ],
)
def test_member_closed_during_its_join_leaves(
    server: Server, admin: Admin, name: str, request_type: type[Message], number: int
) -> None:
    partitions = partitions_of(admin, name)
    close_after(server.bootstrap, name, request_type, number, LASTING)
    assert count(admin, name) == 0
    with members(server.bootstrap, name, 2, **LASTING) as group:
        for each in group:
            each.subscribe([name])
        settle(group, partitions, "the group does not wait for a member that only got an id")
