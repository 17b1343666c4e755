"""An asyncio event loop whose clock is virtual: time passes only when everybody waits, and then at once.

Whatever runs belongs to a `Process`, known from the context that callbacks and tasks inherit. When a process is killed,
none of its callbacks ever runs again, not even a `finally`: that is what `kill -9` means.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

STALL_LIMIT = 1_000_000
"""Rounds of the loop without a step of the clock, after which something is taken to spin."""


class StalledError(RuntimeError):
    """Nothing can ever happen again, or the clock stands still while the loop spins."""


class Process:
    """What dies together: a broker, or a client. `host` is its address in the network."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = name
        self.alive = True
        self.tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 100

    def own(self, task: asyncio.Task[Any]) -> None:
        """Remembers a task, and forgets those that are done now and then."""
        self.tasks.append(task)
        if len(self.tasks) > self._prune_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._prune_at = 2 * len(self.tasks) + 100

    def __repr__(self) -> str:
        return f"Process({self.name}{'' if self.alive else ', dead'})"


_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("oncelog.sim.process", default=None)


def current_process() -> Process | None:
    """The process that is running now."""
    return _current.get()


class _Selector:
    """Where a real loop waits for its sockets, this one moves its clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.advance(timeout)
        return []

    def close(self) -> None:
        """Nothing to give back."""


class LoopNetwork(Protocol):
    """The calls of a simulated network that an event loop forwards to it."""

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        """Accept connections, and return what stands for `asyncio.Server`."""

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a listener."""


class SimLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they fall due; the same program always in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._spins = 0
        self._selector = _Selector(self)
        self.network: LoopNetwork
        self.set_task_factory(_make_task)

    def time(self) -> float:
        """Seconds of virtual time since the loop was made."""
        return self._now

    def advance(self, timeout: float | None) -> None:
        """Moves the clock by what the loop would have waited; StalledError when it would wait for ever."""
        if timeout is None:
            raise StalledError("everybody waits, and nothing is due any more")
        if timeout > 0:
            self._now += timeout
            self._spins = 0
            return
        self._spins += 1
        if self._spins > STALL_LIMIT:
            raise StalledError(f"the loop spins at {self._now} s")

    # -- processes -----------------------------------------------------------------------------------------------------

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a coroutine as part of a process."""
        return self.create_task(work, context=context_of(process))

    def kill(self, process: Process) -> None:
        """Nothing of the process runs any more."""
        process.alive = False
        for task in process.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    # -- what callbacks go through -------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's, for the process of the context."""
        context = contextvars.copy_context() if context is None else context
        return super().call_soon(_if_alive, context.get(_current), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, for the process of the context."""
        context = contextvars.copy_context() if context is None else context
        return super().call_at(when, _if_alive, context.get(_current), callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """There are no threads here."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Runs the function now: a thread would bring disorder."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's
            future.set_exception(error)
        return future

    # -- network -------------------------------------------------------------------------------------------------------

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> Any:
        """Listens in the simulated network."""
        return self.network.listen(protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> Any:
        """Connects in the simulated network."""
        return await self.network.connect(protocol_factory, host, port)

    # -- what BaseEventLoop leaves to its subclasses -------------------------------------------------------------------

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""


def context_of(process: Process) -> contextvars.Context:
    """A context in which `process` is the current one."""
    context = contextvars.copy_context()
    context.run(_current.set, process)
    return context


def _if_alive(process: Process | None, callback: Callable[..., object], *args: Any) -> None:
    if process is None or process.alive:
        callback(*args)


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    process = _current.get() if context is None else context.get(_current)
    if process is not None:
        process.own(task)
    return task
