"""Transactions of every client, as seen by every client."""

from __future__ import annotations

from support.clients.base import Client, Outgoing, Seen, Transactions
from support.servers import Server

from .conftest import CLIENTS


def values(records: list[Seen]) -> list[bytes | None]:
    return [record.value for record in records]


def test_commit_and_abort(client: Client, other_client: Client, name: str) -> None:
    client.create_topic(name, 2)
    producer = client.transactions(f"{name}-id")
    for turn, end in enumerate((producer.commit, producer.abort, producer.commit)):
        producer.begin()
        producer.send(name, [Outgoing(b"%d-%d" % (turn, i), partition=i % 2) for i in range(4)])
        end()
    producer.close()
    assert values(other_client.read(name, 2, committed=True)) == [
        b"0-0", b"0-2", b"2-0", b"2-2", b"0-1", b"0-3", b"2-1", b"2-3",
    ]  # fmt: skip
    assert values(other_client.read(name, 2, committed=False)) == [
        b"0-0", b"0-2", b"1-0", b"1-2", b"2-0", b"2-2", b"0-1", b"0-3", b"1-1", b"1-3", b"2-1", b"2-3",
    ]  # fmt: skip


def test_same_id_aborts_the_previous_producers_transaction(client: Client, other_client: Client, name: str) -> None:
    client.create_topic(name)
    predecessor = client.transactions(f"{name}-id")
    predecessor.begin()
    predecessor.send(name, [Outgoing(b"left open")])
    successor = other_client.transactions(f"{name}-id")
    successor.begin()
    successor.send(name, [Outgoing(b"new")])
    successor.commit()
    successor.close()
    predecessor.close()
    assert values(client.read(name, committed=True)) == [b"new"]
    assert values(client.read(name, committed=False)) == [b"left open", b"new"]


def test_offsets_in_the_transaction(client: Client, name: str) -> None:
    """consume -> process -> produce: aborted input is consumed and produced again, and is visible once."""
    source, sink, group = f"{name}-in", f"{name}-out", f"{name}-group"
    client.create_topic(source)
    client.create_topic(sink)
    client.send(source, [Outgoing(b"%d" % i) for i in range(30)])
    producer = client.transactions(f"{name}-id")
    for end in (producer.abort, producer.commit):
        with client.member(group, source) as member:
            taken = member.take(20)
            producer.begin()
            producer.send(sink, [Outgoing(record.value) for record in taken])
            producer.send_offsets(member, {(source, 0): taken[-1].offset + 1})
            end()
    producer.close()
    assert client.committed_offsets(group, source, 1) == [20]
    assert values(client.read(sink, committed=True)) == [b"%d" % i for i in range(20)]
    with client.member(group, source) as member:
        assert member.take(1)[0].offset == 20


def one_of_each(client: Client, topic: str) -> Transactions:
    """Write a committed, an aborted and an open transaction, and a plain record after the open one."""
    producer = client.transactions(f"{topic}-ended")
    for end, value in ((producer.commit, b"committed"), (producer.abort, b"aborted")):
        producer.begin()
        producer.send(topic, [Outgoing(value + b"-%d" % i) for i in range(3)])
        end()
    producer.close()
    still_open = client.transactions(f"{topic}-open", timeout_ms=600_000)
    still_open.begin()
    still_open.send(topic, [Outgoing(b"open-%d" % i) for i in range(3)])
    client.send(topic, [Outgoing(b"after")])
    return still_open


COMMITTED = [b"committed-0", b"committed-1", b"committed-2"]
EVERYTHING = [
    *COMMITTED,
    *(b"aborted-0", b"aborted-1", b"aborted-2"),
    *(b"open-0", b"open-1", b"open-2"),
    b"after",
]


def test_three_clients_agree_before_and_after_kill(own_server: Server) -> None:
    clients = [make(own_server.bootstrap) for make in CLIENTS.values()]
    topics = [f"agreed-{client.name}" for client in clients]
    producers = []
    for client, topic in zip(clients, topics, strict=True):
        client.create_topic(topic)
        producers.append(one_of_each(client, topic))

    def agree(*, committed: list[bytes], everything: list[bytes]) -> None:
        views = {
            (reader.name, topic): (reader.read(topic, committed=True), reader.read(topic, committed=False))
            for reader in clients
            for topic in topics
        }
        for who, (some, all_) in views.items():
            assert (who, values(some)) == (who, committed)
            assert (who, values(all_)) == (who, everything)
        for topic in topics:
            assert views[clients[0].name, topic] == views[clients[1].name, topic] == views[clients[2].name, topic]

    agree(committed=COMMITTED, everything=EVERYTHING)
    for _ in range(2):
        own_server.kill()
        own_server.wait_ready()
        agree(committed=COMMITTED, everything=EVERYTHING)
    for producer, client, topic in zip(producers, clients, topics, strict=True):
        producer.commit()
        producer.close()
        client.send(topic, [Outgoing(b"last")])
    agree(
        committed=[*COMMITTED, b"open-0", b"open-1", b"open-2", b"after", b"last"],
        everything=[*EVERYTHING, b"last"],
    )


def test_acknowledged_records_survive_a_kill(own_server: Server) -> None:
    clients = [make(own_server.bootstrap) for make in CLIENTS.values()]
    for client in clients:
        client.create_topic(client.name, 2)
        client.send(client.name, [Outgoing(b"%d" % i, partition=i % 2) for i in range(200)], idempotent=True)
        with client.member(f"{client.name}-group", client.name) as member:
            member.take(200)
            member.commit()
    own_server.kill()
    own_server.wait_ready()
    for client in clients:
        found = client.read(client.name, 2, committed=True)
        assert [int(value or b"") for value in values(found)] == [*range(0, 200, 2), *range(1, 200, 2)]
        assert client.committed_offsets(f"{client.name}-group", client.name, 2) == [100, 100]
        assert client.topics()[client.name] == 2
