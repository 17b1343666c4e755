"""Close a client that another thread or task uses, or exit without closing it, on a real broker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.protocol.errors import ErrorCode
from support.processes import wait_until
from support.proxy import PASS, Proxy
from support.reading import read
from support.servers import Server

EARLIEST = {"auto_offset_reset": "earliest"}
WITHIN_S = 60.0

READS: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda consumer: consumer.poll(None),
    "loop": lambda consumer: list(consumer),
    "tables": lambda consumer: list(consumer.tables()),
}


@pytest.fixture
def topic(server: Server, admin: Admin, name: str) -> str:
    """Create a topic with one partition and three records."""
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        for number in range(3):
            producer.send(name, b"%d" % number)
    return name


@pytest.mark.parametrize("how", READS)
def test_consumer_waiting_in_poll_can_be_closed_by_another_thread(
    server: Server, admin: Admin, topic: str, how: str
) -> None:
    consumer = Consumer(server.bootstrap, group_id=topic, **EARLIEST)
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1), "the consumer has joined and read")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(READS[how], consumer)
        wait_until(lambda: consumer._core.polls._under_way, "the poll waits for more records")
        consumer.close()
        with pytest.raises(errors.ClientClosedError):
            reading.result(WITHIN_S)
    assert not admin.describe_group(topic).members, "the member has left its group"


def test_thread_that_closes_a_polling_consumer_calls_its_listener(server: Server, admin: Admin, topic: str) -> None:
    called: list[tuple[int, object]] = []
    consumer = Consumer(server.bootstrap, group_id=topic, **EARLIEST)
    consumer.subscribe([topic], on_revoked=lambda gone: called.append((threading.get_ident(), gone)))
    wait_until(lambda: consumer.poll(0.1), "the consumer has joined and read")
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(consumer.poll, None)
        wait_until(lambda: consumer._core.polls._under_way, "the poll waits for more records")
        consumer.close()
        with pytest.raises(errors.ClientClosedError):
            polling.result(WITHIN_S)
    assert called == [(threading.get_ident(), [(topic, 0)])]


@pytest.mark.parametrize("tables", [False, True])
def test_loop_raises_at_the_next_record_after_another_thread_closes_the_consumer(
    server: Server, topic: str, tables: bool
) -> None:
    """A loop that ends without an error would mean that it has read all records."""
    consumer = Consumer(server.bootstrap, **EARLIEST)
    consumer.assign([(topic, 0)])
    loop: Iterator[Any] = consumer.tables() if tables else iter(consumer)
    next(loop)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(consumer.close).result(WITHIN_S)
    with pytest.raises(errors.ClientClosedError, match="the consumer is closed"):
        next(loop)


def test_loop_raises_after_another_task_closes_the_consumer(server: Server, topic: str) -> None:
    async def body() -> None:
        consumer = aio.Consumer(server.bootstrap, **EARLIEST)
        await consumer.start()
        consumer.assign([(topic, 0)])
        records = aiter(consumer)
        await anext(records)
        await asyncio.create_task(consumer.close())
        with pytest.raises(errors.ClientClosedError):
            await anext(records)

    asyncio.run(asyncio.wait_for(body(), WITHIN_S))


def test_listener_may_close_the_polling_consumer(server: Server, admin: Admin, topic: str) -> None:
    consumer = Consumer(server.bootstrap, group_id=topic, **EARLIEST)
    consumer.subscribe([topic], on_assigned=lambda _: consumer.close())
    with pytest.raises(errors.ClientClosedError):
        consumer.poll(WITHIN_S)
    assert not admin.describe_group(topic).members


def test_coroutine_listener_may_close_the_polling_consumer(server: Server, admin: Admin, topic: str) -> None:
    async def body() -> None:
        consumer = aio.Consumer(server.bootstrap, group_id=topic, **EARLIEST)
        await consumer.start()

        async def close(_: object) -> None:
            await consumer.close()

        consumer.subscribe([topic], on_assigned=close)
        with pytest.raises(errors.ClientClosedError):
            await consumer.poll(WITHIN_S)

    asyncio.run(asyncio.wait_for(body(), WITHIN_S))
    assert not admin.describe_group(topic).members


@pytest.fixture
def rejecting(proxy: Proxy) -> Proxy:
    """Reject records for now."""
    proxy.rule = lambda request: ErrorCode.NOT_ENOUGH_REPLICAS
    return proxy


def commit_elsewhere(producer: Producer, topic: str, pool: ThreadPoolExecutor) -> Any:
    producer.begin_transaction()
    producer.send(topic, b"in a transaction")
    committing = pool.submit(producer.commit_transaction, WITHIN_S)
    wait_until(lambda: producer._core._ending, "the commit is in flight")
    return committing


def test_close_ends_a_commit_that_cannot_complete(server: Server, admin: Admin, name: str, rejecting: Proxy) -> None:
    admin.create_topics(name)
    producer = Producer(server.bootstrap, transactional_id=name)
    with ThreadPoolExecutor(1) as pool:
        committing = commit_elsewhere(producer, name, pool)
        producer.close(0.2)
        with pytest.raises(errors.ClientClosedError):
            committing.result(WITHIN_S)
    assert read(server.bootstrap, name) == []


def test_close_waits_for_a_commit_that_can_complete(server: Server, admin: Admin, name: str, rejecting: Proxy) -> None:
    admin.create_topics(name)
    producer = Producer(server.bootstrap, transactional_id=name)
    with ThreadPoolExecutor(2) as pool:
        committing = commit_elsewhere(producer, name, pool)
        closing = pool.submit(producer.close)
        wait_until(lambda: producer._core.closing, "close() has started")
        rejecting.rule = lambda request: PASS
        closing.result(WITHIN_S)
        committing.result(WITHIN_S)
    wait_until(lambda: read(server.bootstrap, name) == [b"in a transaction"], "the record is visible")


def test_close_aborts_the_transaction_if_its_commit_fails(
    server: Server, admin: Admin, name: str, rejecting: Proxy
) -> None:
    """Otherwise, read_committed readers would wait until the transaction times out."""
    admin.create_topics(name)
    producer = Producer(server.bootstrap, transactional_id=name)
    with ThreadPoolExecutor(2) as pool:
        rejecting.rule = lambda request: PASS if request.number == 0 else ErrorCode.NOT_ENOUGH_REPLICAS
        producer.begin_transaction()
        producer.send(name, b"written").result(WITHIN_S)
        producer.send(name, b"rejected")
        committing = pool.submit(producer.commit_transaction, WITHIN_S)
        wait_until(lambda: producer._core._ending, "the commit is in flight")
        closing = pool.submit(producer.close)
        wait_until(lambda: producer._core.closing, "close() has started")
        rejecting.rule = lambda request: ErrorCode.INVALID_RECORD
        with pytest.raises(errors.KafkaError):
            committing.result(WITHIN_S)
        closing.result(WITHIN_S)
    assert admin.describe_transaction(name).state in ("PrepareAbort", "CompleteAbort")


def run_program(tmp_path: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    return subprocess.run(
        [sys.executable, path, *arguments], capture_output=True, text=True, timeout=WITHIN_S, env=dict(os.environ)
    )


LEFT = {
    "a loop that is held by the module": "raise SystemExit(1)",
    "a loop that is held by the last traceback": """
        def held(loop):
            for record in loop:
                raise ValueError(record)
        held(records)
        """,
    "a generator that closes the consumer": """
        def reading():
            with consumer:
                yield from consumer
        loop = reading()
        next(loop)
        raise SystemExit(1)
        """,
}


@pytest.mark.parametrize("how", LEFT)
def test_process_exits_during_a_loop_over_records(server: Server, topic: str, tmp_path: Path, how: str) -> None:
    program = f"""
        import sys
        from oncelog import Consumer
        consumer = Consumer(sys.argv[1], auto_offset_reset="earliest")
        consumer.assign([(sys.argv[2], 0)])
        records = iter(consumer)
        next(records)
        {LEFT[how]}"""
    assert run_program(tmp_path, program, server.bootstrap, topic).returncode == 1


def test_pending_outcome_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    program = """
        from oncelog import Producer
        producer = Producer("localhost:1")
        producer._core.counts["t"] = 1
        def waiting():
            try:
                yield
            finally:
                producer.send("t", b"x").result()
        held = waiting()
        next(held)
        raise SystemExit(1)
        """
    ended = run_program(tmp_path, program)
    assert ended.returncode == 1
    assert "the interpreter is exiting" in ended.stderr
