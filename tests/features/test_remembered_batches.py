"""The five remembered batches of each producer, and the counters of a partition: a question of oncelog's own.

DIFFERS[DescribeProducers]: Apache Kafka ignores the question, and answers as if it had not been asked.
"""

from __future__ import annotations

from typing import Any

from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from support.servers import Server
from support.transactions import producers
from support.wire import Session, Wire, batch, code

THEN = 1_600_000_000_000


def asked(wire: Wire, topic: str, partitions: tuple[int, ...] = (0,)) -> list[Any]:
    """Ask for the batches. Return the partitions of the response."""
    wanted = [TopicRequest(name=topic, partition_indexes=list(partitions))]
    found: list[Any] = wire.call(DescribeProducersRequest(topics=wanted, include_batches=True)).topics[0].partitions
    return found


def shown(producer: Any) -> list[tuple[int, ...]]:
    return [
        (each.first_sequence, each.last_sequence, each.first_offset, each.last_offset, each.timestamp)
        for each in producer.batches
    ]


def test_last_five_batches_and_the_counters(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    for number in range(6):
        wire.produce(name, batch([b"a", b"b"], who, 2 * number, timestamp=THEN + number))
    wire.produce(name, batch([b"a", b"b"], who, 10, timestamp=THEN + 5))  # a duplicate
    wire.produce(name, batch([b"x"], who, 20))  # a gap
    wire.produce(name, batch([b"x"], who, 20))
    wire.produce(name, batch([b"x"], who, 0))  # the first batch is no longer remembered
    (found,) = asked(wire, name)
    (producer,) = found.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (*who, 11)
    if server.name != "oncelog":
        assert (shown(producer), found.counters) == ([], None)
        return
    assert shown(producer) == [(2 * n, 2 * n + 1, 2 * n, 2 * n + 1, THEN + n) for n in range(1, 6)]
    counters = found.counters
    assert (counters.duplicate_batches, counters.sequence_gaps, counters.stale_sequences) == (1, 2, 1)


def test_new_epoch_forgets_the_batches(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    wire.produce(name, batch([b"a"], who, 0, timestamp=THEN))
    wire.produce(name, batch([b"b"], Session(who.producer_id, who.epoch + 1), 0, timestamp=THEN))
    (found,) = asked(wire, name)
    expected = [(0, 0, 1, 1, THEN)] if server.name == "oncelog" else []
    assert shown(found.active_producers[0]) == expected


def test_other_clients_get_kafkas_response(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    wire.produce(name, batch([b"a"], who, 0))
    assert producers(wire, name)[who.producer_id].batches == []
    request = DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[0])])
    assert wire.call(request).topics[0].partitions[0].counters is None


def test_request_for_batches_may_name_one_partition(wire: Wire, server: Server, name: str) -> None:
    """The response to a small request would be large otherwise."""
    wire.create_topic(name, 2)
    wire.produce(name, batch([b"a"], wire.session(), 0))
    expected = code("INVALID_REQUEST") if server.name == "oncelog" else 0
    assert [each.error_code for each in asked(wire, name, partitions=(0, 1))] == [expected, expected]
