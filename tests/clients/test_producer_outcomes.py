"""The outcome of each record, and how it is reported: oversized batches, unread failures, closing."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from oncelog import Producer, aio, errors
from oncelog.client.discovery.topology import Topology
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.records import BatchHeader, iter_batches
from support.proxy import HOLD, LOSE_ANSWER, PASS, Produced, Proxy
from support.reading import read
from support.servers import Server
from support.wire import Wire, until

LARGE = {"linger_ms": 500, "batch_size": 60_000, "retry_backoff_ms": 2, "retry_backoff_max_ms": 10}
"""Batches that a topic with max.message.bytes = 2000 rejects as a whole."""


def batches(wire: Wire, topic: Any) -> list[BatchHeader]:
    return [header for header, _ in iter_batches(wire.fetch(topic).records or b"")]


# -- batches that are too large ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_batch_that_is_too_large_is_split(wire: Wire, server: Server, name: str, codec: str) -> None:
    topic = wire.create_topic(name, max_message_bytes="2000")
    chance = random.Random(7)
    values = [chance.randbytes(100) for _ in range(900)]
    with Producer(server.bootstrap, compression_type=codec, **LARGE) as producer:
        futures = [producer.send(name, value, b"k%d" % i, headers=[("h", None)]) for i, value in enumerate(values)]
        producer.flush()
        assert [future.result(0).offset for future in futures] == list(range(900))
    assert wire.values(topic) == values
    written = batches(wire, topic)
    assert all(header.size <= 2_000 for header in written)
    assert [header.base_sequence for header in written] == [header.base_offset for header in written]
    assert {header.producer_epoch for header in written} == {0}


def test_only_the_oversized_record_fails(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name, max_message_bytes="2000")
    values = [b"x" * (5_000 if i == 13 else 100) for i in range(40)]
    with Producer(server.bootstrap, **LARGE) as producer:
        futures = [producer.send(name, value) for value in values]
        producer.flush()
        failed = [type(future.exception(0)) for future in futures]
    assert failed == [errors.RecordTooLargeError if i == 13 else type(None) for i in range(40)]
    assert wire.values(topic) == [value for value in values if len(value) == 100]


@pytest.mark.parametrize("options", [{"acks": 1}, {"max_in_flight_requests_per_connection": 1}])
def test_batch_is_split_without_idempotence_or_pipelining(
    wire: Wire, server: Server, name: str, options: dict[str, Any]
) -> None:
    topic = wire.create_topic(name, max_message_bytes="2000")
    with Producer(server.bootstrap, **LARGE, **options) as producer:
        for i in range(300):
            producer.send(name, b"%0100d" % i)
    assert sorted(map(int, wire.values(topic))) == list(range(300))  # type: ignore[arg-type]


def test_batch_is_split_within_a_transaction_and_as_tables(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name, max_message_bytes="2000")
    table = pa.table({"value": [b"%0100d" % i for i in range(300)]})
    with Producer(server.bootstrap, transactional_id=name, **LARGE) as producer, producer.transaction() as within:
        first = within.send_table(name, table).result(30)
        assert first == {(name, 0): 0}
        future = within.send(name, b"last")
    assert future.result(0).offset == 300
    until(lambda: len(wire.values(topic, committed=True)), lambda count: count == 301, "all records are visible")
    assert [int(value or b"") for value in wire.values(topic)[:300]] == list(range(300))


def test_lost_answer_to_a_split_batch_duplicates_nothing(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    topic = wire.create_topic(name, max_message_bytes="2000")
    proxy.rule = lambda request: LOSE_ANSWER if request.number % 3 == 2 else PASS
    with Producer(server.bootstrap, **LARGE) as producer:
        futures = [producer.send(name, b"%0100d" % i) for i in range(200)]
        producer.flush()
        assert [future.result(0).offset for future in futures] == list(range(200))
    assert [int(value or b"") for value in wire.values(topic)] == list(range(200))


# -- reports ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def compacted(wire: Wire, name: str) -> str:
    """Create a topic that rejects records without a key."""
    wire.create_topic(name, cleanup_policy="compact")
    return name


def test_close_reports_failures_that_were_not_read(server: Server, compacted: str) -> None:
    def blocking() -> None:
        with Producer(server.bootstrap) as producer:
            for _ in range(3):
                producer.send(compacted, b"without a key")

    with pytest.raises(errors.RequestError, match="key") as caught:
        blocking()
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert "3 records" in caught.value.__notes__[0]

    async def body() -> None:
        async with aio.Producer(server.bootstrap) as producer:
            await producer.send(compacted, b"without a key")

    with pytest.raises(errors.RequestError, match="key"):
        asyncio.run(body())


def test_close_does_not_replace_the_error_of_the_block(server: Server, compacted: str) -> None:
    def broken() -> None:
        with Producer(server.bootstrap) as producer:
            producer.send(compacted, b"without a key")
            raise KeyError

    with pytest.raises(KeyError) as caught:
        broken()
    assert "closing the producer" in caught.value.__notes__[0]
    assert "key" in caught.value.__notes__[0]


def refused(result: Callable[[float], object]) -> None:
    with pytest.raises(errors.RequestError):
        result(30)


@pytest.mark.parametrize(
    "look",
    [
        lambda future: future.exception(30),
        lambda future: refused(future.result),
        lambda future: future.add_done_callback(lambda _: None),
    ],
    ids=["exception", "result", "callback"],
)
def test_close_does_not_report_failures_that_were_read(
    server: Server, compacted: str, look: Callable[[Any], object]
) -> None:
    with Producer(server.bootstrap) as producer:
        look(producer.send(compacted, b"without a key"))


def test_callbacks_run_in_order_and_their_errors_are_logged(
    wire: Wire, server: Server, compacted: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[tuple[int | None, str]] = []

    def tell(place: Any, error: BaseException | None) -> None:
        outcomes.append((None if place is None else place.offset, type(error).__name__))
        if len(outcomes) == 2:
            raise ZeroDivisionError("a fault of the user's")
        if len(outcomes) == 3:
            producer.flush()

    with caplog.at_level(logging.ERROR), Producer(server.bootstrap) as producer:
        for i in range(6):
            producer.send(compacted, b"%d" % i, b"key", on_delivery=tell)
        producer.flush()
        producer.send(compacted, b"without a key", on_delivery=tell)
    assert outcomes == [*((i, "NoneType") for i in range(6)), (None, "RequestError")]
    assert "a fault of the user's" in caplog.text
    assert "use oncelog.aio there" in caplog.text, "a blocking call in a callback"


def test_records_of_a_rejected_batch_raise_its_error(server: Server, compacted: str) -> None:
    with Producer(server.bootstrap, linger_ms=500) as producer:
        futures = [producer.send(compacted, b"x", key) for key in (b"a", None, b"c")]
        producer.flush()
        said = [str(future.exception(0)) for future in futures]
    assert all("INVALID_RECORD" in text for text in said)
    assert "key" in said[1]
    assert ["because of another record in it" in text for text in said] == [True, False, True]


def test_exiting_process_reports_unsent_records(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    script = f"""
        from oncelog import Producer
        def send():
            Producer({server.bootstrap!r}, linger_ms=60_000).send({name!r}, b"x")
        send()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stderr.startswith("the process ends before 1 records are acknowledged"), done.stderr


# -- timeouts --------------------------------------------------------------------------------------------------------


def test_close_with_a_short_timeout_reports_what_may_be_in_the_log(
    wire: Wire, server: Server, proxy: Proxy, name: str
) -> None:
    wire.create_topic(name, 2)
    producer = Producer(server.bootstrap, linger_ms=0, max_in_flight_requests_per_connection=1)
    producer.send(name, b"before", partition=0).result(30)
    proxy.rule = lambda request: HOLD
    sent = producer.send(name, b"sent", partition=0)
    until(lambda: len(proxy.seen), lambda count: count == 2, "the second request is at the proxy")
    waiting = producer.send(name, b"waiting", partition=0)
    with pytest.raises(errors.TimedOutError):
        producer.flush(0.01)
    with pytest.raises(errors.TimedOutError) as caught:
        producer.close(0.01)
    assert "2 records" in caught.value.__notes__[0]
    assert isinstance(sent.exception(0), errors.DeliveryTimeoutError)
    assert "may or may not be in the log" in str(sent.exception(0))
    error = waiting.exception(0)
    assert type(error) is errors.TimedOutError
    assert "were not sent before the producer was closed; they are not in the log" in str(error)
    producer.close()
    with pytest.raises(errors.UsageError, match="closed"):
        producer.send(name, b"late")


def test_purge_drops_what_waits_and_what_is_in_flight(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    wire.create_topic(name)
    gate = threading.Event()

    def when_open(request: Produced) -> str:
        gate.wait(30)
        return PASS

    with Producer(server.bootstrap, linger_ms=0, max_in_flight_requests_per_connection=1) as producer:
        producer.send(name, b"before", partition=0).result(30)
        proxy.rule = when_open
        sent = producer.send(name, b"sent", partition=0)
        until(lambda: len(proxy.seen), lambda count: count == 2, "the second request is at the proxy")
        waiting = producer.send(name, b"waiting", partition=0)
        assert producer.purge(in_flight=False) == 1
        assert isinstance(waiting.exception(0), errors.PurgedError)
        assert not sent.done()
        assert producer.purge() == 1
        assert isinstance(sent.exception(0), errors.DeliveryTimeoutError)
        assert "may or may not be in the log" in str(sent.exception(0))
        gate.set()
        assert producer.send(name, b"after", partition=0).result(30).offset == 2
    assert read(server.bootstrap, name) == [b"before", b"sent", b"after"]
    with pytest.raises(errors.ClientClosedError):
        producer.purge()


def test_send_waits_at_most_max_block_ms_and_never_in_a_callback(
    wire: Wire, server: Server, proxy: Proxy, name: str
) -> None:
    wire.create_topic(name)
    options: dict[str, Any] = {"buffer_memory": 3_000, "max_block_ms": 1_000, "linger_ms": 0}
    raised: list[BaseException] = []

    def more(*_: object) -> None:
        try:
            for _ in range(4):
                producer.send(name, b"y" * 1_000).add_done_callback(lambda _: None)
        except errors.UsageError as error:
            raised.append(error)

    def rule(request: Produced) -> str:
        return HOLD if held else PASS

    held = False
    proxy.rule = rule
    with Producer(server.bootstrap, **options) as producer:
        producer.send(name, b"x", on_delivery=more)
        until(lambda: raised, bool, "the callback has raised")
        assert "a wait for buffer memory (in on_delivery)" in str(raised[0])
        producer.flush()
        held = True
        for _ in range(2):
            producer.send(name, b"z" * 1_000).add_done_callback(lambda _: None)
        with pytest.raises(errors.TimedOutError, match=r"buffer_memory = 3000.* within max_block_ms = 1000"):
            producer.send(name, b"z" * 1_000)
        held = False


# -- wrong addresses --------------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield an address that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_unreachable_address_is_reported_in_time(silent: str) -> None:
    unreachable = pytest.raises(errors.TimedOutError, match=f"300 ms.*{silent}")
    with Producer(silent, max_block_ms=300) as producer, unreachable as raised:
        producer.send("t", b"x")
    assert raised.value.advice.startswith("Check bootstrap_servers")
    with pytest.raises(errors.TimedOutError, match=f"300 ms.*{silent}"):
        Producer(silent, transactional_id="t", max_block_ms=300, socket_connection_setup_timeout_ms=100)


def test_wrong_advertised_address_is_reported(
    wire: Wire, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.create_topic(name)
    update = Topology.update

    def wrong(self: Topology, *arguments: Any, **options: Any) -> None:
        update(self, *arguments, **options)
        self.brokers = dict.fromkeys(self.brokers, ("127.0.0.1", 1))

    monkeypatch.setattr(Topology, "update", wrong)
    options = {"request_timeout_ms": 200, "delivery_timeout_ms": 300, "linger_ms": 0}
    with Producer(server.bootstrap, **options) as producer:
        error = producer.send(name, b"x").exception(30)
        assert isinstance(error, errors.TimedOutError)
        assert "127.0.0.1:1" in str(error), error
