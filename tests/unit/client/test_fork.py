"""In a forked child process, each call of a client that the parent created raises an error at once."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.blocking import LoopThread


def raises_in_a_child(work: Callable[[], object]) -> bool:
    """Return whether `work` raises UsageError, and names the fork, in a child of this process."""
    with warnings.catch_warnings():  # newer Pythons warn of every fork in a process with threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        status = 1
        try:
            work()
        except errors.UsageError as error:
            status = 0 if "fork" in str(error) else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_starting_work_on_the_parents_loop_raises_in_forked_child() -> None:
    thread = LoopThread.shared()
    thread.run(asyncio.sleep(0))
    assert raises_in_a_child(lambda: thread.start(asyncio.sleep(0)))


def test_parents_producer_raises_in_forked_child() -> None:
    producer = Producer("nowhere:1")
    producer._core.counts["t"] = 1
    assert raises_in_a_child(lambda: producer.send("t", b"x"))
    assert not producer.send("t", b"x").done()
    producer._thread.run(producer._core.sender.close())


TP = ("t", 0)
CONSUMER: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda consumer: consumer.poll(None),
    "loop": lambda consumer: next(iter(consumer)),
    "tables": lambda consumer: next(consumer.tables()),
    "commit": lambda consumer: consumer.commit({TP: 1}),
    "commit_async": lambda consumer: consumer.commit_async({TP: 1}).result(),
    "seek": lambda consumer: consumer.seek(*TP, 1),
    "pause": lambda consumer: consumer.pause(),
    "wakeup": lambda consumer: consumer.wakeup(),
    "assignment": lambda consumer: consumer.assignment(),
    "close": lambda consumer: consumer.close(),
}


@pytest.mark.parametrize("name", CONSUMER)
def test_parents_consumer_raises_in_forked_child(name: str) -> None:
    with Consumer("localhost:1", group_id="g") as consumer:
        consumer.assign([TP])
        assert raises_in_a_child(lambda: CONSUMER[name](consumer))
        assert consumer.assignment() == [TP], "the parent's client is unchanged"


def test_parents_admin_and_producer_raise_in_forked_child() -> None:
    with Admin("localhost:1") as admin:
        assert raises_in_a_child(admin.list_topics)
    with Producer("localhost:1") as producer:
        assert raises_in_a_child(producer.flush)
        assert raises_in_a_child(lambda: producer.partitions_for("t"))
        assert raises_in_a_child(lambda: producer.producer_id)
        assert raises_in_a_child(producer.close)


def test_waiting_for_the_parents_record_raises_in_forked_child() -> None:
    producer = Producer("localhost:1")
    producer._core.counts["t"] = 1
    future = producer.send("t", b"x")
    assert raises_in_a_child(future.result)
    with pytest.raises(errors.TimedOutError):
        producer.close(0)


def test_parents_asyncio_clients_raise_in_forked_child() -> None:
    async def make() -> list[Any]:
        consumer, producer = aio.Consumer("localhost:1"), aio.Producer("localhost:1")
        await consumer.start()
        await producer.start()
        consumer.assign([TP])
        return [consumer, producer, aio.Admin("localhost:1")]

    consumer, producer, admin = asyncio.run(make())
    for call in (
        lambda: consumer.poll(None),
        lambda: consumer.commit(),
        lambda: producer.send("t", b"x"),
        lambda: producer.flush(),
        lambda: admin.list_topics(),
    ):
        assert raises_in_a_child(lambda call=call: asyncio.run(awaited(call)))


async def awaited(call: Callable[[], Any]) -> None:
    await call()
