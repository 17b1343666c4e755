"""I14: limits of idempotence: it covers one session of one producer in one partition."""

from __future__ import annotations

import threading

import pytest

from oncelog import Producer, errors
from support.servers import Server
from support.wire import Wire, until


def test_restarted_producer_is_another_one(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name)
    ids = []
    for _ in range(2):
        with Producer(server.bootstrap) as producer:
            producer.send(name, b"the same").result(30)
            ids.append(producer.producer_id)
    assert ids[0] != ids[1]
    assert wire.values(topic) == [b"the same"] * 2


def test_record_that_the_user_resends_is_a_new_record(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name)
    with Producer(server.bootstrap) as producer:
        for _ in range(2):
            producer.send(name, b"the same", key=b"k", timestamp=1_700_000_000_000).result(30)
    assert wire.values(topic) == [b"the same"] * 2


def test_transactions_prevent_duplicates_after_a_restart(wire: Wire, server: Server, name: str) -> None:
    """A successor with the same id aborts what its predecessor left open, and can start again."""
    topic = wire.create_topic(name)
    first = Producer(server.bootstrap, transactional_id=name)
    first.begin_transaction()
    first.send(name, b"half").result(30)
    with Producer(server.bootstrap, transactional_id=name) as again:
        assert again.producer_id == first.producer_id
        with again.transaction():
            again.send(name, b"half")
            again.send(name, b"whole")
    until(lambda: wire.values(topic, committed=True), lambda found: found == [b"half", b"whole"], "one attempt counts")
    with pytest.raises(errors.FencedError):
        first.close()


def test_several_producers_keep_order_only_within_each(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name)

    def write(tag: bytes) -> None:
        with Producer(server.bootstrap, linger_ms=0, batch_size=100) as producer:
            for number in range(100):
                producer.send(name, tag + b"%03d" % number)

    writers = [threading.Thread(target=write, args=(tag,)) for tag in (b"a", b"b", b"c")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    values = [value for value in wire.values(topic) if value is not None]
    assert len(values) == 300
    for tag in (b"a", b"b", b"c"):
        assert [value for value in values if value.startswith(tag)] == [tag + b"%03d" % number for number in range(100)]


def test_partitions_have_no_common_order(wire: Wire, server: Server, name: str) -> None:
    """Within each partition, the producer's order is kept."""
    topic = wire.create_topic(name, 3)
    with Producer(server.bootstrap) as producer:
        for number in range(90):
            producer.send(name, b"%02d" % number, key=b"%d" % (number % 7))
    found = [wire.values(topic, partition) for partition in range(3)]
    assert sorted(value for values in found for value in values if value) == [b"%02d" % number for number in range(90)]
    for values in found:
        assert values == sorted(value for value in values if value)
