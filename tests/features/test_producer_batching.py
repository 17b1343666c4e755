"""I3: records are batched by partition, memory is bounded, and a batch is encoded once, when it is first sent."""

from __future__ import annotations

import threading

import pytest

from oncelog import Producer, errors
from oncelog.protocol.errors import ErrorCode
from support.processes import wait_until
from support.proxy import LOSE_ANSWER, LOSE_REQUEST, PASS, Produced, Proxy
from support.servers import Server
from support.wire import Wire, until


def test_records_of_a_partition_linger_together(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    wire.create_topic(name, 2)
    with Producer(server.bootstrap, linger_ms=60_000) as producer:
        futures = [producer.send(name, b"%d" % number, partition=number % 2) for number in range(20)]
        assert not any(future.done() for future in futures)
        assert proxy.seen == []
        producer.flush()
        assert all(future.done() for future in futures)
    (request,) = proxy.seen
    assert [header.count for header in request.batches] == [10, 10], "one request, with one batch for each partition"


def test_full_batch_is_sent_at_once(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    wire.create_topic(name)
    with Producer(server.bootstrap, linger_ms=60_000, batch_size=1_000) as producer:
        futures = [producer.send(name, b"x" * 90) for _ in range(25)]
        futures[0].result(30)
        futures[15].result(30)
        assert not futures[-1].done(), "the last batch is not full"
        producer.flush()
    assert all(len(records) <= 1_000 for request in proxy.seen for records in request.records)
    assert sum(header.count for request in proxy.seen for header in request.batches) == 25


def test_record_larger_than_batch_size_is_sent_alone(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    wire.create_topic(name)
    with Producer(server.bootstrap, linger_ms=60_000, batch_size=500) as producer:
        small, large, after = (producer.send(name, b"x" * size) for size in (10, 5_000, 10))
        large.result(30)
        assert small.done()
        producer.flush()
        assert after.done()
    assert [header.count for request in proxy.seen for header in request.batches] == [1, 1, 1]


def test_batch_is_encoded_once_and_resent_byte_for_byte(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    topic = wire.create_topic(name)
    fates = [LOSE_REQUEST, LOSE_ANSWER, ErrorCode.NOT_ENOUGH_REPLICAS, LOSE_ANSWER]
    proxy.rule = lambda request: fates[request.number] if request.number < len(fates) else PASS
    with Producer(server.bootstrap) as producer:
        assert producer.send(name, b"v").result(30).offset == 0
    assert len(proxy.seen) == 5
    assert len({records for request in proxy.seen for records in request.records}) == 1
    assert wire.values(topic) == [b"v"]


def test_producer_id_and_sequence_are_assigned_at_the_first_send(
    wire: Wire, server: Server, proxy: Proxy, name: str
) -> None:
    wire.create_topic(name)
    with Producer(server.bootstrap, linger_ms=60_000) as producer:
        producer.send(name, b"v")
        (batch,) = producer._core.accumulator.incomplete()
        assert (batch.producer_id, batch.base_sequence) == (-1, -1)
        producer.flush()
        assert (batch.producer_id, batch.base_sequence) == (producer.producer_id, 0)


def test_memory_is_bounded_and_send_waits_for_it(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    wire.create_topic(name)
    opened = threading.Event()

    def rule(request: Produced) -> str | ErrorCode:
        return PASS if opened.is_set() else ErrorCode.NOT_ENOUGH_REPLICAS

    proxy.rule = rule
    with Producer(server.bootstrap, buffer_memory=20_000, max_block_ms=2_000, linger_ms=0) as producer:
        sent = 0
        try:
            for _ in range(100):
                producer.send(name, b"x" * 1_000)
                sent += 1
        except errors.TimedOutError as error:
            assert "buffer_memory" in str(error)  # noqa: PT017 - the number of records before the error matters
        assert 10 <= sent < 20
        producer._core.options["max_block_ms"] = 30_000
        threading.Timer(0.05, opened.set).start()
        producer.send(name, b"y" * 1_000).result(30)
        producer.flush()
        assert producer._core.accumulator.used == 0
    assert wire.offset(name) == sent + 1


def test_send_waits_for_a_missing_topic_up_to_max_block_ms(server: Server, name: str) -> None:
    with (
        Producer(server.bootstrap, max_block_ms=2_000, allow_auto_create_topics=False) as producer,
        pytest.raises(errors.RetriableError, match=name),
    ):
        producer.send(name, b"v")


def test_record_too_large_for_any_request_is_rejected_at_once(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    with Producer(server.bootstrap, max_request_size=10_000) as producer:
        with pytest.raises(errors.RecordTooLargeError, match="max_request_size"):
            producer.send(name, b"x" * 10_000)
        producer.send(name, b"v").result(30)


def test_batch_waits_while_an_earlier_one_is_retried(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    """No new batch of the partition is sent before it; other partitions continue."""
    wire.create_topic(name, 2)
    opened = threading.Event()

    def rule(request: Produced) -> str | ErrorCode:
        mine = request.request.topic_data[0].partition_data[0].index == 0
        return ErrorCode.NOT_ENOUGH_REPLICAS if mine and not opened.is_set() else PASS

    with Producer(server.bootstrap, linger_ms=0, retry_backoff_ms=5) as producer:
        producer.send(name, b"first", partition=0).result(30)
        proxy.rule = rule
        stuck = producer.send(name, b"stuck", partition=0)
        wait_until(lambda: len(proxy.seen) >= 3, "the batch is retried")
        following = [producer.send(name, b"after", partition=0) for _ in range(3)]
        for _ in range(3):
            producer.send(name, b"other", partition=1).result(30)
        assert not stuck.done()
        opened.set()
        assert [future.result(30).offset for future in (stuck, *following)] == [1, 2, 3, 4]
    tried = [
        request.sequence
        for request in proxy.seen
        if request.request.topic_data[0].partition_data[0].index == 0 and request.sequence > 1
    ]
    assert tried[0] == 2
    assert sum(request.sequence == 1 for request in proxy.seen) >= 2


def test_delivery_timeout_is_reported(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    wire.create_topic(name)
    proxy.rule = lambda request: ErrorCode.NOT_ENOUGH_REPLICAS
    options = {"linger_ms": 0, "request_timeout_ms": 2_000, "delivery_timeout_ms": 2_500}
    # the delivery timeout ends during the pause
    options |= {"retry_backoff_ms": 10_000, "retry_backoff_max_ms": 10_000}
    with Producer(server.bootstrap, None, **options) as producer:
        with pytest.raises(errors.TimedOutError, match="not in the log") as caught:
            producer.send(name, b"v").result(30)
        assert not isinstance(caught.value, errors.DeliveryTimeoutError), (
            "it was rejected each time, so the outcome is certain"
        )
        proxy.rule = lambda request: PASS
        until(
            lambda: producer.send(name, b"w").exception(30), lambda error: error is None, "the next batch is delivered"
        )
    assert wire.offset(name) >= 1
