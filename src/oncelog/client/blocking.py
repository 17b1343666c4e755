"""Run the asyncio clients for blocking code: one background thread per process runs the event loop of all clients.

A forked process (as PySpark's daemon creates them) does not have its parent's thread. Its first client starts a new
thread. Clients that were created before the fork belong to the parent, and the child must not use them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
from asyncio.futures import _chain_future  # type: ignore[attr-defined]
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from sys import is_finalizing
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from oncelog import errors
from oncelog.client.calls import FORKED
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.topology import Topology
from oncelog.client.guards import Guard, GuardedCondition, refuse_under_guard
from oncelog.client.requests.broker_fanout import gather_brokers

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("oncelog.client")


class _Outcome(concurrent.futures.Future[T]):
    """The outcome of a coroutine. A thread that waits for it holds a lock, which the event loop needs to set it."""

    _outcomes: ClassVar[Guard] = Guard()

    def __init__(self) -> None:
        super().__init__()
        self._condition = GuardedCondition(self._outcomes)

    def result(self, timeout: float | None = None) -> T:
        """Return the result. Raises UsageError in code that interrupts such a wait of the same thread."""
        refuse_under_guard("result()")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None. Raises UsageError as `result` does."""
        refuse_under_guard("exception()")
        return super().exception(timeout)


class LoopThread:
    """An event loop in a daemon thread. `LoopThread.shared()` returns the one of the process."""

    _shared: ClassVar[LoopThread | None] = None
    _guard: ClassVar[threading.RLock] = threading.RLock()

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
            except (KeyboardInterrupt, SystemExit):  # without the loop, every later call would block forever
                log.exception(
                    "a callback raised this in the client's own thread; ignoring it, so that the client continues"
                )
            else:
                return

    @classmethod
    def shared(cls) -> LoopThread:
        """Return the loop of this process. Start it on the first call, and again in a forked process."""
        with cls._guard:
            if cls._shared is None or cls._shared.process_id != os.getpid():
                try:
                    cls._shared = LoopThread()
                except RuntimeError as error:  # while Python exits, it starts no threads
                    raise errors.UsageError(
                        f"a client needs a thread, which Python cannot start while it exits ({error}); create the "
                        "client before the program ends, for example where you register the atexit function"
                    ) from error
            return cls._shared

    @classmethod
    def _forked(cls) -> None:
        cls._guard = threading.RLock()
        cls._shared = None
        _Outcome._outcomes = Guard()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and return its result. An interrupt (Ctrl-C) cancels the coroutine."""
        self.refuse_wait(work)
        future = self.start(work)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:
            raise errors.ClientClosedError("the client was closed during this call; create a new one") from None
        except BaseException:
            future.cancel()
            raise

    def refuse_wait(self, work: Coroutine[Any, Any, T]) -> None:
        """Raise UsageError if this thread must not wait for the coroutine, which then ends unstarted."""
        try:
            self.refuse_its_own("a blocking call")
            refuse_under_guard("a blocking call")
        except errors.UsageError:
            work.close()
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
            raise errors.UsageError("the interpreter is exiting; call close() on the client before the program ends")
        outcome = _Outcome[T]()

        def begin() -> None:
            try:
                _chain_future(self.loop.create_task(work), outcome)
            except BaseException as error:
                if outcome.set_running_or_notify_cancel():
                    outcome.set_exception(error)
                raise

        self.loop.call_soon_threadsafe(begin)  # `run_coroutine_threadsafe`, with an outcome of our own
        return outcome

    def settle(self, function: Callable[[], object]) -> None:
        """Call a plain function on the loop and wait until it has returned.

        Do nothing if no loop runs any more. Any thread may close an unreferenced generator at any moment.
        """
        if threading.current_thread() is self._thread:
            function()
        elif self.process_id == os.getpid() and not is_finalizing():
            try:
                refuse_under_guard("")
            except errors.UsageError:  # the loop may wait for this thread
                self.call(function)
            else:
                self.run(_called(function))

    def refuse_its_own(self, what: str) -> None:
        """Raise UsageError on the loop's own thread, because a call that blocks the loop would never return."""
        if threading.current_thread() is self._thread:
            raise errors.UsageError(f"{what} cannot run inside the client's own event loop; use oncelog.aio there")

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a call of a plain function on the loop, and return without waiting for it."""
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
    """Rename each method of `kind` that `functools.wraps` has created to its name in `kind`.

    `help` and error messages show that name, instead of the name of the wrapped function in another module.
    """
    for name, found in vars(kind).items():
        if hasattr(found, "__wrapped__"):
            found.__module__, found.__name__, found.__qualname__ = kind.__module__, name, f"{kind.__qualname__}.{name}"


class _Closes(Protocol):
    """A class with `close`, for type checkers. `Blocking` has none, because each class has its own signature."""

    def close(self) -> None: ...


class Blocking(Generic[A]):
    """A blocking class around an object `A` with coroutines that run in the loop's thread. Use as a context manager.

    `blocking` creates the methods from those of `A`, with the same docstrings.
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
    """Return a method of `Blocking[A]` that runs this coroutine of A and waits for it.

    It has the same signature and docstring. It reads iterators among the arguments in the caller's thread, because a
    generator may block, or use this client.
    """
    begin: Callable[..., Coroutine[Any, Any, T]] = method

    @functools.wraps(method)
    def run(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        named = {name: _at_hand(value) for name, value in kwargs.items()}
        return self._thread.run(begin(self._awaited, *map(_at_hand, args), **named))

    return run


def on_loop(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Do the same for a method that does not wait, but must run on the loop."""

    @functools.wraps(method)
    async def run(awaited: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(awaited, *args, **kwargs)

    return blocking(run)


def _at_hand(value: object) -> object:
    return list(value) if isinstance(value, Iterator) else value


class BlockingCluster(Blocking[ClusterClient]):
    """`ClusterClient` for blocking code, with the same names and arguments. Use as a context manager."""

    def __init__(self, bootstrap_servers: str | Iterable[str], **options: Any) -> None:
        self.cluster = ClusterClient(bootstrap_servers, **options)
        super().__init__(self.cluster)

    @property
    def topology(self) -> Topology:
        """The cached metadata of brokers and topics."""
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
        """Start a coroutine of `self.cluster`. Return the future of its result."""
        return self._thread.start(call)

    def run_many(self, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines of `self.cluster` concurrently. Return their results in order, or raise the first error."""
        return self._thread.run(_gather(calls))


async def _gather(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    return list(await asyncio.gather(*calls))
