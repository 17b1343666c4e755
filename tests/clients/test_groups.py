"""Consumer groups of every client."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from support.clients.base import Client, Member, Outgoing
from support.processes import wait_until
from support.servers import Server

from .conftest import CLIENTS


def test_group_continues_from_its_committed_offsets(client: Client, name: str) -> None:
    client.create_topic(name)
    client.send(name, [Outgoing(b"%d" % i) for i in range(100)])
    group = f"{name}-group"
    with client.member(group, name) as member:
        assert [record.offset for record in member.take(60)] == list(range(60))
        member.commit()
        assert client.committed_offsets(group, name, 1) == [60]
        member.take(20)
    assert client.committed_offsets(group, name, 1) == [60]
    with client.member(group, name) as member:
        assert [record.offset for record in member.take(40)] == list(range(60, 100))


def test_two_members_share_the_partitions(client: Client, name: str) -> None:
    client.create_topic(name, 4)
    group = f"{name}-group"
    with client.member(group, name) as first:
        wait_until(lambda: first.assignment() == {0, 1, 2, 3}, "the first member has all partitions")
        with client.member(group, name) as second:

            def shared() -> bool:
                one, two = first.assignment(), second.assignment()
                return len(one) == len(two) == 2 and one | two == {0, 1, 2, 3}

            wait_until(shared, "each member holds two", timeout=60)
            assert client.group_state(group) == ("Stable", 2)
        wait_until(lambda: first.assignment() == {0, 1, 2, 3}, "the first member has all partitions again", timeout=60)
    assert client.group_state(group) == ("Empty", 0)
    assert group in client.groups()


def test_clients_of_different_libraries_continue_each_others_groups(
    client: Client, other_client: Client, name: str
) -> None:
    client.create_topic(name)
    client.send(name, [Outgoing(b"%d" % i) for i in range(20)])
    group = f"{name}-group"
    with client.member(group, name) as member:
        member.take(10)
        member.commit()
    assert other_client.committed_offsets(group, name, 1) == [10]
    with other_client.member(group, name) as member:
        assert member.take(1)[0].offset == 10


def one_of_each(bootstrap: str) -> list[Client]:
    """Start a client of every library. First the one whose new members block until any others have polled."""
    return sorted((make(bootstrap) for make in CLIENTS.values()), key=lambda client: client.name != "aiokafka")


def share(members: list[Member], partitions: int) -> bool:
    """Return whether the members together hold all partitions, each once."""
    held = [member.assignment() for member in members]
    return all(held) and sorted(part for parts in held for part in parts) == list(range(partitions))


def test_all_libraries_in_one_group(server: Server, name: str) -> None:
    clients = one_of_each(server.bootstrap)
    clients[0].create_topic(name, 6)
    group = f"{name}-group"
    with ExitStack() as stack:
        members: list[Member] = []
        for client in clients:
            members.append(stack.enter_context(client.member(group, name)))
            wait_until(lambda: share(members, 6), f"{len(members)} members share 6 partitions", timeout=60)
        assert clients[0].group_state(group) == ("Stable", len(clients))
        members.pop().close()
        wait_until(lambda: share(members, 6), "the remaining members share the partitions", timeout=60)


def test_static_member_returns_to_its_partitions(client: Client, name: str) -> None:
    client.create_topic(name, 4)
    group = f"{name}-group"
    with client.member(group, name, "one") as first:
        second = client.member(group, name, "two")
        wait_until(lambda: share([first, second], 4), "two members share 4 partitions", timeout=60)
        before = first.assignment(), second.assignment()
        second.close()
        assert client.group_state(group) == ("Stable", 2)
        with client.member(group, name, "two") as again:
            wait_until(lambda: again.assignment() == before[1], "the member has its previous partitions", timeout=60)
            assert first.assignment() == before[0]
            assert client.group_state(group) == ("Stable", 2)


def test_silent_member_is_replaced(client: Client, name: str) -> None:
    client.create_topic(name, 4)
    group = f"{name}-group"
    gone = client.member(group, name, "gone")  # a static member does not leave when it is closed
    wait_until(lambda: gone.assignment() == {0, 1, 2, 3}, "the member has all partitions")
    gone.close()
    with client.member(group, name) as heir:
        wait_until(lambda: heir.assignment() == {0, 1, 2, 3}, "the session has expired", timeout=60)
        assert client.group_state(group) == ("Stable", 1)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of kafka-python, after a failed connect
def test_group_survives_a_kill(own_server: Server, name: str) -> None:
    clients = one_of_each(own_server.bootstrap)
    count = len(clients)
    clients[0].create_topic(name, count)
    group = f"{name}-group"
    with ExitStack() as stack:
        members: list[Member] = [stack.enter_context(client.member(group, name)) for client in clients]
        wait_until(lambda: share(members, count), "each member has a partition", timeout=60)
        own_server.kill()
        own_server.wait_ready()
        # If the restart took longer than a session, all members have to rejoin, and for that all have to poll.
        wait_until(lambda: share(members, count), "each member has a partition again", timeout=60)
        clients[0].send(name, [Outgoing(b"%d" % part, partition=part) for part in range(count)])
        with ThreadPoolExecutor(count) as pool:
            taken = [record for records in pool.map(lambda member: member.take(1), members) for record in records]
        assert sorted(record.partition for record in taken) == list(range(count))
        assert clients[0].group_state(group) == ("Stable", count)
        for member in members:
            member.commit()
        assert clients[1].committed_offsets(group, name, count) == [1] * count
    own_server.kill()
    own_server.wait_ready()
    assert clients[2].committed_offsets(group, name, count) == [1] * count
    gc.collect()  # collect those sockets now and not in another test
