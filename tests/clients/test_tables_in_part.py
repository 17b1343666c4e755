"""Tables that are partly sent when an error occurs: the caller learns which rows were sent, and can send the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.producer import table_batches
from support.proxy import HOLD, PASS, Proxy
from support.servers import Server
from support.wire import until

TOO_LARGE = b"x" * 1_100_000
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.binary())])


@pytest.fixture
def topic(server: Server, name: str) -> str:
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name, 3)
    return name


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Yield pieces of one row each, when they are requested."""
    monkeypatch.setattr(table_batches, "PIECE_ROWS", 1)
    monkeypatch.setattr(table_batches, "LOOK_AHEAD", 1)


def numbered(count: int, size: int = 0) -> pa.Table:
    return pa.table({"key": [f"k{i % 7}" for i in range(count)], "value": [b"%0*d" % (size, i) for i in range(count)]})


def values(server: Server, topic: str, count: int) -> list[bytes]:
    """Return this many values of a topic with three partitions, in log order."""
    found: list[bytes] = []
    with Consumer(server.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([(topic, index) for index in range(3)])
        until(lambda: found.extend(r.value or b"" for r in consumer.poll(0.1)), lambda _: len(found) >= count, "all")
    return found


@pytest.mark.usefixtures("one_by_one")
def test_bad_row_reports_sent_and_unsent_rows(server: Server, topic: str) -> None:
    rows = pa.table({"partition": [0, 1, 0, 2, 0], "value": [b"0", b"1", TOO_LARGE, b"3", b"4"]})
    with Producer(server.bootstrap) as producer:
        with pytest.raises(errors.PartlySentError, match=r"2 rows .*more than max_request_size") as caught:
            producer.send_table(topic, rows.to_reader())
        error = caught.value
        assert isinstance(error.__cause__, errors.RecordTooLargeError)
        assert error.sent.rows == 2
        assert error.sent.result(30) == {(topic, 0): 0, (topic, 1): 0}
        rest = error.unsent.read_all()
        assert rest["value"].to_pylist() == [TOO_LARGE, b"3", b"4"]
        assert producer.send_table(topic, rest.slice(1)).result(30) == {(topic, 0): 1, (topic, 2): 0}
    assert sorted(values(server, topic, 4)) == [b"0", b"1", b"3", b"4"]


SMALL: dict[str, Any] = {
    "buffer_memory": 40_000,
    "max_block_ms": 1_000,
    "linger_ms": 0,
    "retry_backoff_ms": 5,
}


def test_unsent_rows_after_a_timeout_are_sent_once(server: Server, topic: str, proxy: Proxy) -> None:
    held = True
    proxy.rule = lambda request: HOLD if held else PASS
    with Producer(server.bootstrap, **SMALL) as producer:
        with pytest.raises(errors.PartlySentError) as caught:
            producer.send_table(topic, numbered(2_000, 100))
        assert isinstance(caught.value.__cause__, errors.TimedOutError)
        held = False
        producer.options["max_block_ms"] = 60_000
        sent, unsent = caught.value.sent, caught.value.unsent.read_all()
        assert 0 < sent.rows < 2_000
        assert sent.rows + len(unsent) == 2_000
        sent.result(30)
        producer.send_table(topic, unsent).result(30)
    found = values(server, topic, 2_000)
    assert sorted(map(int, found)) == list(range(2_000))
    for key in range(7):
        of_key = [int(value) for value in found if int(value) % 7 == key]
        assert of_key == sorted(of_key)


def test_unsent_rows_after_a_timeout_are_sent_once_with_asyncio(server: Server, topic: str, proxy: Proxy) -> None:
    held = True
    proxy.rule = lambda request: HOLD if held else PASS

    async def body() -> None:
        nonlocal held
        async with aio.Producer(server.bootstrap, **SMALL) as producer:
            with pytest.raises(errors.PartlySentError) as caught:
                await producer.send_table(topic, numbered(2_000, 100).to_reader(max_chunksize=300))
            held = False
            producer.options["max_block_ms"] = 60_000
            assert caught.value.sent.rows > 0
            await caught.value.sent
            await (await producer.send_table(topic, caught.value.unsent))

    asyncio.run(body())
    assert sorted(map(int, values(server, topic, 2_000))) == list(range(2_000))


@pytest.mark.usefixtures("one_by_one")
def test_error_of_the_reader_is_the_cause(server: Server, topic: str) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield from numbered(3).to_batches(1)
        raise OSError("the file is gone")

    reader = pa.RecordBatchReader.from_batches(SCHEMA, source())
    with Producer(server.bootstrap) as producer:
        with pytest.raises(errors.PartlySentError, match="the file is gone") as caught:
            producer.send_table(topic, reader)
        assert caught.value.sent.rows == 3
        assert len(caught.value.unsent.read_all()) == 0
        assert isinstance(caught.value.__cause__, OSError)


def test_error_mentions_no_sent_rows_if_nothing_was_sent(server: Server, topic: str, proxy: Proxy) -> None:
    held = True
    proxy.rule = lambda request: HOLD if held else PASS
    with Producer(server.bootstrap, **SMALL) as producer:
        before = [producer.send(topic, b"x" * 9_000, partition=0) for _ in range(4)]
        with pytest.raises(errors.TimedOutError):
            producer.send_table(topic, pa.table({"value": [b"x" * 9_000]}))
        held = False
        assert [future.result(30).offset for future in before] == list(range(4))


@pytest.mark.usefixtures("one_by_one")
def test_partly_sent_table_cannot_be_committed(server: Server, name: str, topic: str) -> None:
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        with pytest.raises(errors.RecordTooLargeError):
            producer.send_table(topic, pa.table({"value": [b"small", TOO_LARGE]}))
        with pytest.raises(errors.AbortableError, match="part of a table"):
            producer.send(topic, b"after")
        with pytest.raises(errors.AbortableError, match="part of a table"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction() as transaction:
            transaction.send_table(topic, numbered(3))
    assert sorted(values(server, topic, 3)) == [b"0", b"1", b"2"]


def test_cancelled_table_cannot_be_committed(server: Server, name: str, topic: str, proxy: Proxy) -> None:
    held = True
    proxy.rule = lambda request: HOLD if held else PASS

    async def body() -> None:
        nonlocal held
        async with aio.Producer(
            server.bootstrap, transactional_id=name, **SMALL | {"max_block_ms": 60_000}
        ) as producer:
            producer.begin_transaction()
            sending = asyncio.ensure_future(producer.send_table(topic, numbered(2_000, 100)))
            while not proxy.seen:
                await asyncio.sleep(0.01)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            held = False
            with pytest.raises(errors.AbortableError, match="part of a table"):
                await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_table(topic, numbered(3))

    asyncio.run(body())
    assert sorted(values(server, topic, 3)) == [b"0", b"1", b"2"]


def test_unsent_table_does_not_affect_the_transaction(server: Server, name: str, topic: str) -> None:
    with Producer(server.bootstrap, transactional_id=name) as producer, producer.transaction() as transaction:
        with pytest.raises(errors.RecordTooLargeError):
            transaction.send_table(topic, pa.table({"value": [b"small", TOO_LARGE]}))
        transaction.send_table(topic, numbered(1))
    assert values(server, topic, 1) == [b"0"]
