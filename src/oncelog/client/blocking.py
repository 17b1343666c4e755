"""From blocking code to the asyncio client: one background thread a process runs the event loop for all clients.

A process that was forked (PySpark's daemon does) finds its parent's thread gone: the next client made gets a fresh one.
Clients made before the fork belong to the parent and must not be used by the child.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from sys import is_finalizing
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from oncelog import errors
from oncelog.client.calls import FORKED
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.topology import Topology
from oncelog.client.requests.broker_fanout import gather_brokers

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class LoopThread:
    """An event loop in a daemon thread; `LoopThread.shared()` is the process's."""

    _shared: ClassVar[LoopThread | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = _new_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="oncelog-client", daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        while True:
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit):  # without the loop, every later call would wait for ever
                log.exception("a callback raised this in the client's own thread, where it ends nothing")
            else:
                return

    @classmethod
    def shared(cls) -> LoopThread:
        """This process's loop, started when first asked for (and anew after a fork)."""
        with cls._guard:
            if cls._shared is None or cls._shared.process_id != os.getpid():
                cls._shared = LoopThread()
            return cls._shared

    @classmethod
    def _forked(cls) -> None:
        cls._guard = threading.Lock()
        cls._shared = None

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and return its result; an interrupt (Ctrl-C) cancels it."""
        try:
            self.refuse_its_own("a blocking call")
        except errors.UsageError:
            work.close()
            raise
        future = self.start(work)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:
            raise errors.ClientClosedError("the client was closed while this call waited") from None
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop, and return without waiting for it.

        Raises UsageError if no loop runs any more: in a forked child, and while the interpreter exits.
        """
        if self.process_id != os.getpid():
            work.close()
            raise errors.UsageError(FORKED)
        if is_finalizing():
            work.close()
            raise errors.UsageError("the interpreter is exiting: close() the client before")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def settle(self, function: Callable[[], object]) -> None:
        """Call a plain function on the loop and wait until it has returned.

        Do nothing if no loop runs any more. Any thread may close an unreferenced generator at any moment.
        """
        if threading.current_thread() is self._thread:
            function()
        elif self.process_id == os.getpid() and not is_finalizing():
            self.run(_called(function))

    def refuse_its_own(self, what: str) -> None:
        """UsageError on the loop's own thread: what waits there waits for ever."""
        if threading.current_thread() is self._thread:
            raise errors.UsageError(f"{what} inside the client's own event loop: use oncelog.aio there")

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have a plain function called on the loop soon."""
        with contextlib.suppress(RuntimeError):  # the loop is gone: the interpreter is shutting down
            self.loop.call_soon_threadsafe(function, *args)


async def _called(function: Callable[[], object]) -> None:
    function()


os.register_at_fork(after_in_child=LoopThread._forked)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def name_wrapped_methods(kind: type) -> None:
    """Give each method of `kind` that wraps a function of another module its name in `kind`.

    `help` and error messages show that name. Wrapped are the methods that `functools.wraps` has made.
    """
    for name, found in vars(kind).items():
        if hasattr(found, "__wrapped__"):
            found.__module__, found.__name__, found.__qualname__ = kind.__module__, name, f"{kind.__qualname__}.{name}"


class _Closes(Protocol):
    """For type checkers: had `Blocking` a `close` of its own, they would take its signature for each class's."""

    def close(self) -> None: ...


class Blocking(Generic[A]):
    """A blocking class over one of coroutines, whose object belongs to the loop's thread. Use as a context manager.

    Its methods are made by `blocking`, so that each is written, and described, once.
    """

    def __init__(self, awaited: A) -> None:
        self._thread = LoopThread.shared()
        self._awaited = awaited

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        name_wrapped_methods(cls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _Closes, kind: type[BaseException] | None, error: BaseException | None, trace: object, /
    ) -> None:
        self.close()


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """The method of a `Blocking[A]` that runs this one of A's and waits for it: same signature, same docstring.

    Iterators among the arguments are read here, in the caller's thread: a generator may wait, or ask this very client.
    """
    begin: Callable[..., Coroutine[Any, Any, T]] = method

    @functools.wraps(method)
    def run(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        named = {name: _at_hand(value) for name, value in kwargs.items()}
        return self._thread.run(begin(self._awaited, *map(_at_hand, args), **named))

    return run


def on_loop(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[A], P], T]:
    """As `blocking`, for a method that does not wait but changes what belongs to the loop."""

    @functools.wraps(method)
    async def run(awaited: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(awaited, *args, **kwargs)

    return blocking(run)


def _at_hand(value: object) -> object:
    return list(value) if isinstance(value, Iterator) else value


class BlockingCluster(Blocking[ClusterClient]):
    """`ClusterClient` for blocking code: same names, same arguments. Use as a context manager."""

    def __init__(self, bootstrap_servers: str | Iterable[str], **options: Any) -> None:
        self.cluster = ClusterClient(bootstrap_servers, **options)
        super().__init__(self.cluster)

    @property
    def topology(self) -> Topology:
        """What is known of brokers and topics."""
        return self.cluster.topology

    close = blocking(ClusterClient.close)
    reach = blocking(ClusterClient.reach)
    features = blocking(ClusterClient.features)
    refresh = blocking(ClusterClient.refresh)
    topic = blocking(ClusterClient.topic)
    partition = blocking(ClusterClient.partition)
    topics = blocking(ClusterClient.topics)
    brokers = blocking(ClusterClient.brokers)
    coordinator = blocking(ClusterClient.coordinator)
    call_any = blocking(ClusterClient.call_any)
    call_broker = blocking(ClusterClient.call_broker)
    call_brokers = blocking(gather_brokers)
    call_controller = blocking(ClusterClient.call_controller)
    call_leader = blocking(ClusterClient.call_leader)
    call_coordinator = blocking(ClusterClient.call_coordinator)

    def start(self, call: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin a call of `self.cluster`; its result, or exception, comes with the future."""
        return self._thread.start(call)

    def run_many(self, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines of `self.cluster` at the same time; their results in order, or the first exception."""
        return self._thread.run(_together(calls))


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    return list(await asyncio.gather(*calls))
