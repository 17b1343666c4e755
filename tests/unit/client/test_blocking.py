"""Blocking classes are derived from the coroutine classes: users, editors and `help` see the same interface."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import sys
import threading
from collections.abc import Iterator
from typing import get_type_hints

import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.blocking import Blocking, BlockingCluster, LoopThread, blocking, on_loop
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.producer.resumed import AsyncResumedTransaction, ResumedTransaction

PAIRS = [
    (Admin, aio.Admin),
    (Consumer, aio.Consumer),
    (Producer, aio.Producer),
    (ResumedTransaction, AsyncResumedTransaction),
    (BlockingCluster, ClusterClient),
]
"""(blocking class, coroutine class)"""

INTERNAL = {
    *("backoff", "connection", "open_connection", "require_broker", "troubles", "unreachable"),
    *("metrics", "known_coordinator", "learn_coordinator", "forget_coordinator"),
}
"""Methods of `ClusterClient` that its other methods, the clients' loops and the sink call on the event loop."""


class Awaited:
    """Return the thread that runs each method."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended = threading.Event()

    async def echo(self, value: object, *, twice: bool = False) -> tuple[str, object]:
        """Return the arguments."""
        await asyncio.sleep(0)
        return threading.current_thread().name, [value, value] if twice else value

    async def forever(self) -> None:
        """Wait until the caller cancels."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    def at_once(self, value: int) -> tuple[str, int]:
        """Return without a coroutine."""
        return threading.current_thread().name, value + 1


class Waiting(Blocking[Awaited]):
    def __init__(self) -> None:
        super().__init__(Awaited())

    echo = blocking(Awaited.echo)
    forever = blocking(Awaited.forever)
    at_once = on_loop(Awaited.at_once)

    def close(self) -> None:
        self._awaited.begun.clear()


def made(kind: type) -> list[str]:
    """Return the names of the methods that `kind` derives from its coroutine class."""
    functions = [(name, found) for name, found in vars(kind).items() if inspect.isfunction(found)]
    return [name for name, found in functions if found.__code__.co_qualname == "blocking.<locals>.run"]


@pytest.mark.parametrize(("kind", "of"), PAIRS, ids=lambda kind: kind.__module__)
def test_signature_and_docstring_equal_those_of_the_coroutine(kind: type, of: type) -> None:
    assert made(kind)
    for name in made(kind):
        ours = getattr(kind, name)
        theirs = getattr(of, name, ours.__wrapped__)
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert get_type_hints(ours) == get_type_hints(theirs)
        assert ours.__doc__ == theirs.__doc__
        assert ours.__doc__
        assert not inspect.iscoroutinefunction(ours)
        assert (ours.__module__, ours.__qualname__) == (kind.__module__, f"{kind.__qualname__}.{name}")
    assert {name for name in vars(of) if not name.startswith("_")} - {"start"} <= {*dir(kind), *INTERNAL}
    public = [found for name, found in vars(kind).items() if not name.startswith("_")]
    assert not any(inspect.iscoroutinefunction(found) for found in public)


def shown(method: object) -> str:
    """Return the text of `help` on one line and without quotes: Python 3.13 wraps it, 3.14 shows bare types."""
    text = " ".join(pydoc.render_doc(method, renderer=pydoc.plaintext).split())
    return text.replace("( ", "(").replace("'", "")


def test_help_shows_the_signature_of_a_method() -> None:
    text = shown(Admin.create_topics)
    assert "create_topics(self, topics: str | Iterable[str], partitions: int = -1" in text
    assert "Create one or more topics, and wait until the brokers know them" in text
    assert "async" not in text


def test_coroutine_runs_on_the_loop_and_returns_its_result() -> None:
    with Waiting() as waiting:
        assert waiting.echo(1) == ("oncelog-client", 1)
        assert waiting.echo(value=2, twice=True) == ("oncelog-client", [2, 2])
        assert waiting.at_once(3) == ("oncelog-client", 4)
        with pytest.raises(TypeError, match=r"Awaited\.echo\(\) missing 1 required positional argument: 'value'"):
            waiting.echo()  # type: ignore[call-arg]


def test_generator_runs_in_the_calling_thread() -> None:
    with Waiting() as waiting:

        def asks() -> Iterator[object]:
            yield threading.current_thread() is threading.main_thread()
            yield waiting.echo("within")

        assert waiting.echo(asks()) == ("oncelog-client", [True, ("oncelog-client", "within")])
        assert waiting.echo(value=asks())[1] == [True, ("oncelog-client", "within")]


def test_blocking_call_on_the_loop_is_rejected() -> None:
    with Waiting() as waiting:

        async def wrong() -> None:
            waiting.echo(1)

        with pytest.raises(errors.UsageError, match=r"use oncelog\.aio there"):
            waiting._thread.run(wrong())


def test_interrupted_call_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C interrupts the caller while it waits for the future."""
    waiting = Waiting()
    start = waiting._thread.start

    class Interrupted:
        def __init__(self, work: object) -> None:
            self.future = start(work)  # type: ignore[arg-type]

        def result(self, timeout: float | None) -> None:
            assert waiting._awaited.begun.wait(60)
            raise KeyboardInterrupt

        def cancel(self) -> None:
            self.future.cancel()

    monkeypatch.setattr(waiting._thread, "start", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        waiting.forever()
    assert waiting._awaited.ended.wait(60), "the call is cancelled"


def test_asyncio_admin_has_documented_coroutine_functions() -> None:
    calls = {name: found for name, found in vars(aio.Admin).items() if not name.startswith("_")}
    assert len(calls) > 30
    for name, found in calls.items():
        assert inspect.iscoroutinefunction(found)
        assert next(iter(inspect.signature(found).parameters)) == "self"
        assert (found.__module__, found.__name__, found.__qualname__) == (aio.Admin.__module__, name, f"Admin.{name}")
    assert "async list_topics(self, *, internal: bool = False) -> dict[str, int]" in shown(aio.Admin.list_topics)


def test_event_loop_survives_a_callback_that_exits() -> None:
    """Before, its thread ended, and every later call waited forever."""
    thread = LoopThread()
    thread.call(sys.exit, 3)
    assert thread.run(asyncio.sleep(0, "ran"), 10) == "ran"
    thread.call(thread.loop.stop)
