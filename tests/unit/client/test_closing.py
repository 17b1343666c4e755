"""Closing a client ends every call that waits in another thread or task with ClientClosedError."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.calls import Calls
from support.processes import wait_until

NOWHERE = "localhost:1"
WITHIN_S = 30.0
TP = ("t", 0)


class Waits(NamedTuple):
    """A call that waits for an unreachable broker. `kind` is the class of its client."""

    kind: str
    options: dict[str, Any]
    call: Callable[[Any], Any]


def reads(call: Callable[[Any], Any], **options: Any) -> Waits:
    return Waits("Consumer", {"group_id": "g", "enable_auto_commit": False, **options}, call)


def writes(call: Callable[[Any], Any], **options: Any) -> Waits:
    return Waits("Producer", {"buffer_memory": 1_000, "batch_size": 100, **options}, call)


def first(items: Any) -> Any:
    return anext(aiter(items)) if hasattr(items, "__aiter__") else next(iter(items))


WAITING = {
    "poll": reads(lambda consumer: consumer.poll(None)),
    "a loop over records": reads(first),
    "tables": reads(lambda consumer: first(consumer.tables())),
    "commit": reads(lambda consumer: consumer.commit({TP: 1})),
    "committed": reads(lambda consumer: consumer.committed()),
    "position": reads(lambda consumer: consumer.position(*TP)),
    "end_offsets": reads(lambda consumer: consumer.end_offsets([TP])),
    "list_topics": reads(lambda consumer: consumer.list_topics()),
    "flush": writes(lambda producer: producer.flush()),
    "partitions_for": writes(lambda producer: producer.partitions_for("unknown")),
    "send to an unknown topic": writes(lambda producer: producer.send("unknown", b"x")),
    "send without memory": writes(lambda producer: producer.send("t", b"x" * 800)),
    "create_topics": Waits("Admin", {}, lambda admin: admin.create_topics("t")),
    "describe_cluster": Waits("Admin", {}, lambda admin: admin.describe_cluster()),
}


def calls_of(client: Any) -> list[Calls]:
    client = getattr(client, "_awaited", client)
    started = getattr(client, "_started", None)
    cluster = client.cluster if started is None else started.cluster
    return [cluster.calls, *([started.polls] if hasattr(started, "polls") else [])]


def is_waiting(client: Any) -> bool:
    buffer = getattr(getattr(client, "_started", None), "buffer", None)
    return any(calls._under_way for calls in calls_of(client)) or bool(getattr(buffer, "memory_waiters", 0))


def prepare(client: Any) -> Any:
    """Give a consumer a partition, and a producer a topic."""
    if hasattr(client, "assign"):
        client.assign([TP])
    elif hasattr(client, "_core"):
        client._core.counts["t"] = 1
        return client.send("t", b"x" * 800)
    return None


def closed(client: Any) -> Any:
    return client.close() if isinstance(client, Admin | aio.Admin) else client.close(0.1)


@pytest.mark.parametrize("name", WAITING)
def test_waiting_call_ends_when_another_thread_closes_the_client(name: str) -> None:
    waits = WAITING[name]
    client = {"Consumer": Consumer, "Producer": Producer, "Admin": Admin}[waits.kind](NOWHERE, **waits.options)
    prepare(client)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waits.call, client)
        wait_until(lambda: is_waiting(client), f"{name} waits")
        with contextlib.suppress(errors.TimedOutError):  # of the producer's record, which was not sent
            closed(client)
        with pytest.raises(errors.ClientClosedError):
            waiting.result(WITHIN_S)
    with pytest.raises(errors.ClientClosedError):
        waits.call(client)


@pytest.mark.parametrize("name", WAITING)
def test_waiting_call_ends_when_another_task_closes_the_client(name: str) -> None:
    waits = WAITING[name]

    async def body() -> None:
        client = getattr(aio, waits.kind)(NOWHERE, **waits.options)
        if hasattr(client, "start"):
            await client.start()
        sent = prepare(client)
        if sent is not None:
            await sent
        waiting = asyncio.ensure_future(waits.call(client))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        with contextlib.suppress(errors.TimedOutError):
            await closed(client)
        with pytest.raises(errors.ClientClosedError):
            await waiting
        with pytest.raises(errors.ClientClosedError):
            await waits.call(client)

    asyncio.run(asyncio.wait_for(body(), WITHIN_S))


def test_cancelled_call_stays_cancelled_although_its_client_is_closed() -> None:
    async def body() -> None:
        consumer = aio.Consumer(NOWHERE)
        await consumer.start()
        consumer.assign([TP])
        polling = asyncio.create_task(consumer.poll(None))
        await asyncio.wait([polling], timeout=0.01)
        polling.cancel()
        await consumer.close()
        with pytest.raises(asyncio.CancelledError):
            await polling

    asyncio.run(asyncio.wait_for(body(), WITHIN_S))


def test_closing_producer_accepts_no_records() -> None:
    producer = Producer(NOWHERE)
    producer._core.counts["t"] = 1
    future = producer.send("t", b"x")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        closing = pool.submit(producer.close, 1.0)
        wait_until(lambda: producer._core.closing, "close() has started")
        with pytest.raises(errors.ClientClosedError):
            producer.send("t", b"late")
        with pytest.raises(errors.TimedOutError):
            closing.result(WITHIN_S)
    assert isinstance(future.exception(0), errors.TimedOutError)


SECOND_LOOP: list[Callable[[Any], Any]] = [
    lambda clients: clients[0].send("t", b"x"),
    lambda clients: clients[0].flush(),
    lambda clients: clients[0].close(),
    lambda clients: clients[1].poll(0),
    lambda clients: clients[1].commit(),
    lambda clients: clients[1].subscribe(["t"]),
    lambda clients: clients[1].close(),
    lambda clients: clients[2].list_topics(),
    lambda clients: clients[2].close(),
]


@pytest.mark.parametrize("call", SECOND_LOOP)
def test_asyncio_client_in_a_second_loop_raises_usage_error(call: Callable[[Any], Any]) -> None:
    """Before, most calls raised asyncio's "Event loop is closed", and a record was accepted that was never sent."""

    async def start() -> tuple[aio.Producer, aio.Consumer, aio.Admin]:
        producer, admin = aio.Producer(NOWHERE), aio.Admin(NOWHERE)
        consumer = aio.Consumer(NOWHERE, group_id="g")
        await producer.start()
        await consumer.start()
        consumer.assign([TP])
        with pytest.raises(errors.ConnectionFailedError):
            await admin.reach(0.1)
        return producer, consumer, admin

    async def use() -> None:
        with pytest.raises(errors.UsageError, match="belongs to another event loop"):
            await call(clients)

    with asyncio.Runner() as first_loop, asyncio.Runner() as second_loop:
        clients = first_loop.run(start())
        second_loop.run(use())
        for client in clients:
            first_loop.run(client.close())


def test_client_created_while_python_exits_raises_usage_error() -> None:
    """Python 3.11 starts a thread in an atexit function, but cannot load uvloop there. Later ones start no thread."""
    program = """
import atexit
from oncelog import Admin, errors

def late():
    try:
        with Admin("localhost:1"):
            print("works")
    except errors.UsageError as error:
        print(error)

atexit.register(late)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    sentence = "a client needs a thread, which Python cannot start while it exits"
    assert done.stdout == "works\n" or sentence in done.stdout, done.stderr
