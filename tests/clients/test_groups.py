"""Consumer groups of every client."""

from __future__ import annotations

from support.clients.base import Client, Outgoing
from support.processes import wait_until


def test_a_group_goes_on_where_it_committed(client: Client, name: str) -> None:
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
        wait_until(lambda: first.assignment() == {0, 1, 2, 3}, "the first member holds all")
        with client.member(group, name) as second:

            def shared() -> bool:
                one, two = first.assignment(), second.assignment()
                return len(one) == len(two) == 2 and one | two == {0, 1, 2, 3}

            wait_until(shared, "each member holds two", timeout=60)
            assert client.group_state(group) == ("Stable", 2)
        wait_until(lambda: first.assignment() == {0, 1, 2, 3}, "the first member holds all again", timeout=60)
    assert client.group_state(group) == ("Empty", 0)
    assert group in client.groups()


def test_clients_continue_each_others_groups(client: Client, other_client: Client, name: str) -> None:
    client.create_topic(name)
    client.send(name, [Outgoing(b"%d" % i) for i in range(20)])
    group = f"{name}-group"
    with client.member(group, name) as member:
        member.take(10)
        member.commit()
    assert other_client.committed_offsets(group, name, 1) == [10]
    with other_client.member(group, name) as member:
        assert member.take(1)[0].offset == 10
