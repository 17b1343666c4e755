"""I9: messages distinguish a stale sequence from a gap. The error code is Kafka's for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from oncelog import Producer, errors
from oncelog.protocol.records import MAX_SEQUENCE
from support.servers import OncelogCluster, Server
from support.wire import Session, Wire, batch, code

OUT_OF_ORDER = code("OUT_OF_ORDER_SEQUENCE_NUMBER")


@pytest.mark.parametrize(
    ("start", "sequence", "what"),
    [
        (0, 20, "gap"),
        (0, 11, "gap"),
        (0, 9, "stale"),
        (0, 1, "stale"),
        (MAX_SEQUENCE - 9, 5, "gap"),
        (MAX_SEQUENCE - 9, MAX_SEQUENCE, "stale"),
        (MAX_SEQUENCE - 4, 7, "gap"),
        (MAX_SEQUENCE - 4, MAX_SEQUENCE - 4, "stale"),
    ],
)
def test_message_distinguishes_gap_and_stale_sequence(
    wire: Wire, server: Server, name: str, start: int, sequence: int, what: str
) -> None:
    """DIFFERS: Kafka's answer has no message."""
    wire.create_topic(name)
    who = wire.session()
    assert wire.produce(name, batch([b"v"] * 10, who, start)).base_offset == 0
    answer = wire.produce(name, batch([b"w"] * 2, who, sequence))
    assert answer.error_code == OUT_OF_ORDER
    if isinstance(server, OncelogCluster):
        expected = (start + 10) & MAX_SEQUENCE
        for word in (what, str(who.producer_id), "epoch 0", f"sequence {sequence}", f"expected {expected}"):
            assert word in answer.error_message
        assert {"gap": "stale", "stale": "gap"}[what] not in answer.error_message
    else:
        assert answer.error_message is None


def test_new_epoch_that_does_not_start_at_zero_is_a_gap(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    wire.produce(name, batch([b"v"], who, 0))
    answer = wire.produce(name, batch([b"v"], Session(who.producer_id, 1), 1))
    assert answer.error_code == OUT_OF_ORDER
    if server.name == "oncelog":
        assert "gap" in answer.error_message


@pytest.fixture
def producer(server: Server, name: str, wire: Wire) -> Iterator[Producer]:
    """Return a producer inside a transaction, whose partition has one of three records."""
    wire.create_topic(name)
    with Producer(server.bootstrap, transactional_id=name, linger_ms=0) as made:
        made.begin_transaction()
        for value in (b"a", b"b", b"c"):
            made.send(name, value).result(30)
        yield made
        made.abort_transaction()


@pytest.mark.parametrize(("sequence", "kind"), [(1, errors.StaleSequenceError), (9, errors.SequenceGapError)])
def test_our_clients_exception_distinguishes_gap_and_stale_sequence(
    producer: Producer, server: Server, name: str, sequence: int, kind: type[errors.OutOfOrderError]
) -> None:
    """DIFFERS: our client cannot tell from Apache Kafka's answer."""
    manager = producer._core.manager
    assert manager is not None
    # The client's sequence differs from the broker's, as after a restored backup or a defect of the client.
    partition = manager.sequences._of((name, 0))
    partition.next = sequence
    partition.last_acked = sequence - 1
    future = producer.send(name, b"lost" * 2)
    later = None
    with suppress(errors.OutOfOrderError):  # the answer to the first record may arrive earlier
        later = producer.send(name, b"lost" * 2)
    with pytest.raises(errors.OutOfOrderError) as caught:
        future.result(30)
    assert caught.value.code == OUT_OF_ORDER
    assert type(caught.value) is (kind if server.name == "oncelog" else errors.OutOfOrderError)
    metrics = producer.metrics()
    gaps, stale = metrics.sequence_gap_total, metrics.stale_sequence_total
    assert gaps + stale >= 1
    if server.name == "oncelog":
        assert (gaps > 0, stale > 0) == (kind is errors.SequenceGapError, kind is errors.StaleSequenceError)
    assert later is None or isinstance(later.exception(30), errors.KafkaError)
    with pytest.raises(errors.OutOfOrderError):
        producer.commit_transaction()
