"""An asyncio event loop with a virtual clock. If all tasks wait, the clock jumps to the next timer.

Each callback and task belongs to a `Process`, which it inherits through its context. After a process is killed, none of
its callbacks runs again, not even a `finally`, as after `kill -9`. The callbacks of a paused process run after it
resumes, as after SIGSTOP and SIGCONT. A process reads the monotonic clock of its machine, and sets its timers by it.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from oncelog.sim.clock import Clock

T = TypeVar("T")

STALL_LIMIT = 1_000_000
"""Rounds of the loop without a step of the clock, after which the loop counts as spinning."""
MOST_CANCELLED = 100
"""If there are more timers than this, and most are cancelled, the loop removes the cancelled ones."""


class StalledError(RuntimeError):
    """Raised if all tasks wait and no timer is set, or if the loop spins while the clock does not move."""


class ProcessDied(BaseException):
    """Raised by the disk and by the metadata store if the caller's process is dead or dies during the call."""


class Process:
    """A broker or a client, whose tasks are killed together. `host` is its address in the network."""

    def __init__(self, name: str, clock: Clock | None = None) -> None:
        self.name = name
        self.host = name
        self.clock = clock or Clock()
        self.alive = True
        self.running = True
        """False if the process is dead or paused."""
        self.held: list[asyncio.Handle] = []
        """The callbacks that are due since the process was paused."""
        self.end: asyncio.Future[None] | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 100

    def own(self, task: asyncio.Task[Any]) -> None:
        """Add a task. From time to time, remove the tasks that are done."""
        self.tasks.append(task)
        if len(self.tasks) > self._prune_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._prune_at = 2 * len(self.tasks) + 100

    def __repr__(self) -> str:
        state = "" if self.running else ", paused" if self.alive else ", dead"
        return f"Process({self.name}{state})"


_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("oncelog.sim.process", default=None)


def current_process() -> Process | None:
    """Return the process that is running now, or None."""
    return _current.get()


class _Handle(asyncio.Handle):
    """A callback that is skipped if its process is dead, and held back while the process is paused."""

    _cancelled: bool

    __slots__ = ("_process",)

    def __init__(self, callback: Callable[..., object], args: Any, loop: SimLoop, context: contextvars.Context) -> None:
        super().__init__(callback, args, loop, context)
        self._process = context.get(_current)

    def _run(self) -> None:
        process = self._process
        if process is None or process.running:
            super()._run()
        elif process.alive:
            process.held.append(self)


class _Timer(asyncio.TimerHandle):
    """A `_Handle` that becomes due at a time."""

    _cancelled: bool
    _scheduled: bool

    __slots__ = ("_local", "_process")

    def __init__(
        self,
        when: float,
        local: float,
        callback: Callable[..., object],
        args: Any,
        loop: SimLoop,
        context: contextvars.Context,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._local = local
        self._process = context.get(_current)

    def when(self) -> float:
        """Return the time in terms of the clock of the process that has set the timer."""
        return self._local

    def _run(self) -> None:
        process = self._process
        if process is None or process.running:
            super()._run()
        elif process.alive:
            process.held.append(self)


class _Selector:
    """A selector without sockets, which asyncio's loop closes at its end."""

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""


class LoopNetwork(Protocol):
    """The calls of a simulated network that an event loop forwards to it."""

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        """Accept connections. Return an object with the methods of `asyncio.Server`."""

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a listener. Return the transport and the protocol of the connection."""


class SimLoop(asyncio.BaseEventLoop):
    """Run callbacks in the order of their times. A program runs in the same order each time."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[tuple[float, int, _Timer]]
    """A heap of all timers: when each is due, and its number, so that equal times keep the order of the calls."""
    _stopping: bool
    _check_closed: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._spins = 0
        self._timers = 0
        self._cancelled_timers = 0
        self.clocks_differ = False
        """Whether some process has a monotonic clock that does not show the world's time."""
        self._selector = _Selector()
        self.network: LoopNetwork
        self.set_task_factory(_make_task)

    @property
    def now(self) -> float:
        """The world's time: the seconds of virtual time since the loop was created."""
        return self._now

    def time(self) -> float:
        """Return what the monotonic clock of the current process shows, by default the world's time."""
        if self.clocks_differ and (process := _current.get()) is not None:
            return process.clock.monotonic(self._now)
        return self._now

    def _run_once(self) -> None:
        """Run the callbacks that are due. If there are none, first advance the clock to the next timer.

        Raises StalledError if there is no timer, or if the loop spins.
        """
        scheduled, ready = self._prune(), self._ready
        if ready or self._stopping:
            self._spins += 1
            if self._spins > STALL_LIMIT:
                raise StalledError(f"the loop spins at {self._now} s")
        elif scheduled:
            if scheduled[0][0] > self._now:
                self._now = scheduled[0][0]
                self._spins = 0
        else:
            raise StalledError("all tasks wait, and no timer is scheduled")
        now = self._now
        while scheduled and scheduled[0][0] <= now:
            timer = heapq.heappop(scheduled)[2]
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle: Any = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _prune(self) -> list[tuple[float, int, _Timer]]:
        """Remove the cancelled timers at the top of the heap, or all if most are cancelled. Return the heap."""
        scheduled = self._scheduled
        if len(scheduled) > MOST_CANCELLED and 2 * self._cancelled_timers > len(scheduled):
            scheduled[:] = [each for each in scheduled if not each[2]._cancelled]
            heapq.heapify(scheduled)
            self._cancelled_timers = 0
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)[2]._scheduled = False
            self._cancelled_timers -= 1
        return scheduled

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        """Count the cancelled timers in the heap. Called by `TimerHandle.cancel`."""
        self._cancelled_timers += handle._scheduled

    # -- processes -----------------------------------------------------------------------------------------------------

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine as a task of a process."""
        return self.create_task(work, context=context_of(process))

    def kill(self, process: Process) -> None:
        """Kill a process: none of its callbacks runs again."""
        process.alive = process.running = False
        process.held.clear()
        if process.end is not None and not process.end.done():
            process.end.set_result(None)
        for task in process.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def end_of(self, process: Process) -> asyncio.Future[None]:
        """Return a future that is done when the process is dead. Do not cancel it."""
        if process.end is None:
            process.end = self.create_future()
            if not process.alive:
                process.end.set_result(None)
        return process.end

    def pause(self, process: Process) -> None:
        """Stop a process between two callbacks. Its connections stay open, and their bytes wait."""
        process.running = False

    def resume(self, process: Process) -> None:
        """Let a paused process continue. Callbacks that became due during the pause run in the order of their times."""
        if process.alive:
            process.running = True
            self._ready.extend(process.held)
            process.held.clear()

    # -- callbacks -----------------------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback for the process of the context."""
        self._check_closed()
        handle = _Handle(callback, args, self, contextvars.copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback for the process of the context. `when` is a time of the caller's clock."""
        local = when
        if self.clocks_differ and (process := _current.get()) is not None:
            when = process.clock.when(local)
        return self._at(when, local, callback, args, context)

    def call_at_world(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback for the process of the context. `when` is the world's time, see `now`."""
        return self._at(when, when, callback, args, context)

    def _at(
        self, when: float, local: float, callback: Callable[..., object], args: Any, context: contextvars.Context | None
    ) -> asyncio.TimerHandle:
        self._check_closed()
        context = contextvars.copy_context() if context is None else context
        timer = _Timer(when, local, callback, args, self, context)
        self._timers += 1
        heapq.heappush(self._scheduled, (when, self._timers, timer))
        timer._scheduled = True
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback like `call_soon`, because there are no threads here."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run the function now, because a thread would make the order random. Return its result as a future."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller handles all errors
            future.set_exception(error)
        return future

    # -- network -------------------------------------------------------------------------------------------------------

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        start_serving: bool = True,
        **_: Any,
    ) -> Any:
        """Listen in the simulated network."""
        listener = self.network.listen(protocol_factory, host, port)
        listener.serving = start_serving
        return listener

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> Any:
        """Connect in the simulated network."""
        return await self.network.connect(protocol_factory, host, port)

    def _write_to_self(self) -> None:
        """Do nothing, because no selector waits."""


def context_of(process: Process) -> contextvars.Context:
    """Return a context in which `process` is the current process."""
    context = contextvars.copy_context()
    context.run(_current.set, process)
    return context


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    process = _current.get() if context is None else context.get(_current)
    if process is not None:
        process.own(task)
    return task
