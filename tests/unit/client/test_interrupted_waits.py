"""Calls of consumers and admin clients from a signal handler, which interrupts a call of the same thread."""

from __future__ import annotations

import contextlib
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.client.consumer import tables
from support.servers import OncelogCluster

RECORDS = 20


@pytest.fixture
def topic(oncelog_cluster: OncelogCluster) -> str:
    name = f"interrupted-{uuid.uuid4().hex[:8]}"
    with Producer(oncelog_cluster.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % number, partition=0)
    return name


@pytest.fixture
def admin(oncelog_cluster: OncelogCluster) -> Iterator[Admin]:
    with Admin(oncelog_cluster.bootstrap) as made:
        yield made


@pytest.fixture
def consumer(oncelog_cluster: OncelogCluster, topic: str) -> Iterator[Consumer]:
    with Consumer(oncelog_cluster.bootstrap, group_id=topic, auto_offset_reset="earliest") as made:
        made.assign([(topic, 0)])
        yield made


@contextlib.contextmanager
def handling(handler: Callable[[], object]) -> Iterator[list[object]]:
    """Call the handler once, at the first SIGUSR1. Yield a list with what it returned or raised."""
    results: list[object] = []

    def handle(*_: object) -> None:
        try:
            results.append(handler())
        except errors.OncelogError as error:
            results.append(error)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield results
    finally:
        signal.signal(signal.SIGUSR1, before)


CALLS: dict[str, Callable[[Admin, Consumer, str], object]] = {
    "list_topics": lambda admin, consumer, topic: admin.list_topics(),
    "create_topics": lambda admin, consumer, topic: admin.create_topics(f"{topic}-2"),
    "commit": lambda admin, consumer, topic: consumer.commit({(topic, 0): 1}),
    "commit_async": lambda admin, consumer, topic: consumer.commit_async({(topic, 0): 1}).result(),
    "position": lambda admin, consumer, topic: consumer.position(topic, 0),
    "poll": lambda admin, consumer, topic: consumer.poll(20),
    "tables": lambda admin, consumer, topic: next(consumer.tables(timeout=20)),
    "close": lambda admin, consumer, topic: consumer.close(),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("outer", ["blocking call", "commit_async", "result"])
def test_call_inside_the_wait_of_a_call_is_rejected_at_once(
    name: str,
    outer: str,
    admin: Admin,
    consumer: Consumer,
    topic: str,
    oncelog_cluster: OncelogCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread holds the lock of the outcome for which it waits. Before, the event loop waited for that lock."""
    condition = threading.Condition
    wait_for, wait = condition.wait_for, condition.wait
    signals = iter((signal.SIGUSR1,))

    def interrupt() -> None:
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                signal.raise_signal(number)

    def signalled(self: Any, *args: Any) -> bool:
        interrupt()
        return wait(self, *args)

    def signalled_for(self: Any, *args: Any) -> bool:
        interrupt()
        return wait_for(self, *args)

    with (
        handling(lambda: CALLS[name](admin, consumer, topic)) as results,
        Producer(oncelog_cluster.bootstrap, linger_ms=0) as producer,
    ):
        sent = producer.send(topic, b"x")
        monkeypatch.setattr(condition, "wait", signalled)
        monkeypatch.setattr(condition, "wait_for", signalled_for)
        if outer == "blocking call":
            admin.list_topics()
        elif outer == "commit_async":
            consumer.commit_async({(topic, 0): 2}).result(20)
        else:
            sent.result(20)
        monkeypatch.undo()
        (error,) = results
        assert isinstance(error, errors.UsageError)
        assert "inside another call of the same thread" in str(error)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["poll", "tables"])
def test_poll_while_tables_converts_records_loses_none(
    name: str, admin: Admin, consumer: Consumer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the poll moved the position past the records, and `tables` left them out."""
    decode = tables.decode
    signals = iter((signal.SIGUSR1,))

    def signalled(*args: Any, **options: Any) -> Any:
        for number in signals:
            signal.raise_signal(number)
        return decode(*args, **options)

    monkeypatch.setattr(tables, "decode", signalled)
    with handling(lambda: CALLS[name](admin, consumer, topic)) as results:
        found = [value for table in consumer.tables(timeout=2) for value in table.column("value").to_pylist()]
    (error,) = results
    assert isinstance(error, errors.UsageError)
    assert "while tables() converts records" in str(error)
    assert found == [b"%d" % number for number in range(RECORDS)]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["list_topics", "commit", "position", "close"])
def test_call_in_a_signal_handler_returns_while_poll_waits(
    name: str, admin: Admin, consumer: Consumer, topic: str
) -> None:
    consumer.seek_to_end()
    assert consumer.poll(0.1) == []
    sender = threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1))
    with handling(lambda: CALLS[name](admin, consumer, topic)) as results:
        sender.start()
        try:
            found: object = consumer.poll(1.5)
        except errors.ClientClosedError as error:
            found = error
        sender.join()
    assert not any(isinstance(each, Exception) for each in results)
    assert len(results) == 1
    assert isinstance(found, errors.ClientClosedError) if name == "close" else found == []


@pytest.mark.timeout(30)
def test_poll_in_a_delivery_callback_is_rejected_at_once(
    oncelog_cluster: OncelogCluster, consumer: Consumer, topic: str
) -> None:
    """Before, it waited in the thread of the event loop, which then served no client any more."""
    called: SimpleQueue[object] = SimpleQueue()

    def callback(*_: object) -> None:
        try:
            called.put(consumer.poll(1))
        except errors.UsageError as error:
            called.put(error)

    with Producer(oncelog_cluster.bootstrap) as producer:
        producer.send(topic, b"x", on_delivery=callback)
        error = called.get(timeout=20)
    assert isinstance(error, errors.UsageError)
    assert "inside the client's own event loop" in str(error)
