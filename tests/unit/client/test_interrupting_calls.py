"""Calls of a producer that interrupt a call of the same thread, as signal handlers, finalizers and loggers do."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog import Producer, errors
from oncelog.client.producer.accumulator import Accumulator
from support.servers import OncelogCluster

WAIT_S = 20


@pytest.fixture
def topic() -> str:
    return f"interrupted-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def producer(oncelog_cluster: OncelogCluster, topic: str) -> Iterator[Producer]:
    with Producer(oncelog_cluster.bootstrap, linger_ms=0) as made:
        made.send(topic, b"first").result(WAIT_S)
        yield made


@contextlib.contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, handler: Callable[[], object]) -> Iterator[list[object]]:
    """Raise a signal once inside the next `append`, which holds the lock. Yield what the handler returned or raised."""
    results: list[object] = []
    append = Accumulator.append

    def handle(*_: object) -> None:
        try:
            results.append(handler())
        except errors.OncelogError as error:
            results.append(error)

    def signalled(*args: Any) -> Any:
        if threading.current_thread() is threading.main_thread() and not results:
            signal.raise_signal(signal.SIGUSR1)
        return append(*args)

    before = signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(Accumulator, "append", signalled)
    try:
        yield results
    finally:
        monkeypatch.setattr(Accumulator, "append", append)
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.timeout(30)
def test_send_in_a_signal_handler_follows_the_interrupted_send(
    producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[object] = []

    def handler() -> object:
        return producer.send(topic, b"inner", headers={"h": "v"}, on_delivery=lambda *args: called.append(args))

    with interrupted(monkeypatch, handler) as (results):
        outer = producer.send(topic, b"outer")
    (inner,) = results
    assert outer.result(WAIT_S).offset == 1
    assert inner.result(WAIT_S).offset == 2  # type: ignore[attr-defined]
    assert called == [(inner.result(0), None)]  # type: ignore[attr-defined]


@pytest.mark.timeout(30)
def test_error_of_a_send_in_a_signal_handler_is_its_outcome(
    producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with interrupted(monkeypatch, lambda: producer.send(topic, b"x" * 2_000_000)) as results:
        outer = producer.send(topic, b"outer")
    (inner,) = results
    outer.result(WAIT_S)
    assert isinstance(inner.exception(WAIT_S), errors.RecordTooLargeError)  # type: ignore[attr-defined]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "call",
    [
        lambda producer, _: producer.flush(),
        lambda producer, _: producer.close(),
        lambda producer, _: producer.purge(),
        lambda producer, _: producer.commit_transaction(),
        lambda producer, _: producer.begin_transaction(),
        lambda producer, topic: producer.send(topic, b"inner").result(),
        lambda producer, topic: producer.send(f"{topic}-2", b"inner"),
    ],
)
def test_call_that_would_block_in_a_signal_handler_is_rejected_at_once(
    oncelog_cluster: OncelogCluster,
    topic: str,
    call: Callable[[Producer, str], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Producer(oncelog_cluster.bootstrap, transactional_id=topic) as producer, producer.transaction():
        producer.send(topic, b"first").result(WAIT_S)
        with interrupted(monkeypatch, lambda: call(producer, topic)) as results:
            outer = producer.send(topic, b"outer")
        (error,) = results
        assert isinstance(error, errors.UsageError)
        assert "inside another call of the same thread" in str(error)
        assert "set a flag" in str(error)
        outer.result(WAIT_S)


@pytest.mark.timeout(30)
def test_finalizer_in_the_thread_of_the_client_may_send(
    producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may run any finalizer in any thread, also while that thread holds the producer's lock."""
    sent: list[Any] = []

    class Last:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            sent.append(producer.send(topic, b"from __del__"))

    drain = Accumulator.drain

    def collecting(*args: Any, **options: Any) -> Any:
        if not sent:
            Last()
            gc.collect()
        return drain(*args, **options)

    monkeypatch.setattr(Accumulator, "drain", collecting)
    producer.send(topic, b"x").result(WAIT_S)
    monkeypatch.setattr(Accumulator, "drain", drain)
    assert sent[0].result(WAIT_S).offset > 0
