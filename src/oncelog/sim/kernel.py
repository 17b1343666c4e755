"""The deterministic kernel of a world: its loop, network, metadata store, random numbers and trace.

Everything that happens depends only on the seed. While a kernel runs, it replaces the clocks of the `time` module and
`os.urandom`, and seeds the `random` module.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from oncelog.cluster.store_memory import MemoryStore
from oncelog.sim.clock import Clock
from oncelog.sim.loop import Process, ProcessDied, SimLoop, current_process
from oncelog.sim.network import Network
from oncelog.sim.store import StoreLink
from oncelog.sim.threads import Threads

T = TypeVar("T")
K = TypeVar("K", bound="Kernel")

TRACE_LINES = 10_000
"""The trace keeps this many lines, the latest ones. Its digest covers all lines."""


class Kernel:
    """The parts that all machines of a world share."""

    def __init__(self, seed: int, *, store_latency_s: tuple[float, float] = (0.0, 0.0)) -> None:
        """`store_latency_s` is the range of the latency of a request to the metadata store, and of its answer."""
        self.seed = seed
        self.loop = SimLoop()
        self._streams: dict[str, random.Random] = {}
        self.network = self.loop.network = Network(self.loop, self.stream)
        self.network.trace = lambda what: self.note(f"net: {what}")
        self.network.on_bus_error = self._on_bus_error
        self.errors: list[dict[str, Any]] = []
        self._over = False
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._digest = hashlib.sha256()
        self.store = MemoryStore(lambda: int(self.loop.now * 1000))
        self.threads = Threads(self.loop)
        self._store_latency_s = store_latency_s
        self._store_links: dict[str, StoreLink] = {}
        self._processes: list[Process] = []
        self._clocks: dict[str, Clock] = {}
        self._wall_ms = 0
        self.at_end: list[Callable[[], None]] = [self.threads.end]
        """Called after the last callback of the run, in order."""
        self.loop.set_exception_handler(self._on_error)

    # -- random numbers and the trace ----------------------------------------------------------------------------------

    def stream(self, name: str) -> random.Random:
        """Return the random generator of this name. Its numbers depend only on the seed and on the name.

        So if one part of a world draws more numbers, or does not exist, other parts still draw the same numbers.
        """
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = random.Random(f"{self.seed} {name}")
        return found

    def fork(self) -> random.Random:
        """Return a new random generator. It depends on the number of earlier calls, so prefer `stream`."""
        return random.Random(self.stream("fork").getrandbits(64))

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        line = f"{self.loop.now:.6f} {what}"
        self.trace.append(line)
        self._digest.update(line.encode())

    def digest(self) -> str:
        """Return a short digest of everything that happened."""
        return self._digest.hexdigest()[:16]

    # -- processes and clocks ------------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """Create a process on the machine of the same name. Its tasks can be killed together."""
        process = Process(name, self.clock(name))
        self._processes.append(process)
        return process

    def store_link(self, host: str) -> StoreLink:
        """Return the way from a machine to the metadata store."""
        link = self._store_links.get(host)
        if link is None:
            rng = self.stream(f"store {host}")
            link = StoreLink(host, self.store, rng, self._store_latency_s, lambda what: self.note(f"store: {what}"))
            self._store_links[host] = link
        return link

    def clock(self, host: str) -> Clock:
        """Return the clocks of a machine."""
        clock = self._clocks.get(host)
        if clock is None:
            clock = self._clocks[host] = Clock(wall_ms=self._wall_ms)
        return clock

    def skew(self, host: str, *, rate: float = 1.0, boot_s: float = 0.0, drift: float = 0.0, wall_ms: int = 0) -> None:
        """Give a machine clocks that are wrong, before its first process starts. See `Clock`."""
        if host in self._clocks:
            raise RuntimeError(f"{host!r} has a clock already. Skew it before its first process starts")
        clock = self._clocks[host] = Clock(rate=rate, boot_s=boot_s, drift=drift, wall_ms=self._wall_ms + wall_ms)
        self.loop.clocks_differ |= not clock.exact

    def now_ms(self) -> int:
        """Return the wall clock of the current process in ms, or the correct time outside all processes."""
        process = current_process()
        clock = self.clock("") if process is None else process.clock
        return clock.wall_ms(self.loop.now)

    def set_clock(self, ms: int, host: str | None = None) -> None:
        """Move the wall clock of one machine, or of all, by `ms`. The monotonic clock does not change."""
        if host is None:
            self._wall_ms += ms
        for clock in [self.clock(host)] if host is not None else self._clocks.values():
            clock.set_wall(ms)
        self.note(f"wall clock{'' if host is None else f' of {host}'} set by {ms} ms")

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self: K, scenario: Callable[[K], Coroutine[Any, Any, T]], *, limit_s: float | None = None) -> T:
        """Run `scenario(world)` as the process "client", and return its result.

        Raises RuntimeError if there were unhandled errors. Raises TimeoutError after `limit_s` of virtual time. Tasks
        that poll each other forever are not detected as stalled, so only this limit ends them.
        """
        client = self.process("client")
        with self._patched_functions(), _without_collections():
            try:
                task = self.loop.spawn(client, asyncio.wait_for(scenario(self), limit_s))
                result = self.loop.run_until_complete(task)
            except TimeoutError as error:
                raise TimeoutError(f"seed {self.seed}: not done after {limit_s} s") from error
            finally:
                self._end()
        if self.errors:
            raise RuntimeError(f"seed {self.seed}: unhandled errors: {self.errors}")
        return result

    def _on_bus_error(self, process: Process | None) -> None:
        """Kill the process and fail the run, because no correct program reads a mapped page that is gone."""
        self.errors.append({"message": f"{process} has read beyond the end of a mapped file (SIGBUS)"})
        if process is not None:
            self.loop.kill(process)
            self.network.drop(process)

    def _on_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._over and not isinstance(context.get("exception"), ProcessDied):
            self.errors.append(context)

    def _end(self) -> None:
        self._over = True  # later errors come from killed tasks, such as a response without a waiting caller
        for process in self._processes:
            self.loop.kill(process)
        self.network.shut_down()
        for end in self.at_end:
            end()
        for process in self._processes:
            for task in process.tasks:
                _close_task(task)
        self.loop.close()

    @contextmanager
    def _patched_functions(self) -> Iterator[None]:
        """Replace the functions through which code reads clocks and random numbers."""
        loop = self.loop

        def wall_nanoseconds() -> int:
            process = current_process()
            return (self.clock("") if process is None else process.clock).wall_ns(loop.now)

        def nanoseconds() -> int:
            return int(loop.time() * 1e9)

        chance = self.stream("os.urandom")
        replacements: list[tuple[Any, str, Any]] = [
            (time, "time", lambda: wall_nanoseconds() / 1e9),
            (time, "time_ns", wall_nanoseconds),
            (time, "monotonic", loop.time),
            (time, "monotonic_ns", nanoseconds),
            (time, "perf_counter", loop.time),
            (time, "perf_counter_ns", nanoseconds),
            (os, "urandom", chance.randbytes),
            (random, "_urandom", chance.randbytes),
        ]
        originals = [(module, name, getattr(module, name)) for module, name, _ in replacements]
        state = random.getstate()
        random.seed(self.seed)
        for module, name, value in replacements:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in originals:
                setattr(module, name, value)
            random.setstate(state)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable the garbage collector. It would run finalizers at moments that depend on what ran before the world."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _close_task(task: asyncio.Task[Any]) -> None:
    """Close the coroutine of a dead process, and ignore its errors."""
    if task.done():
        if not task.cancelled():
            task.exception()
        return
    coroutine: Any = task.get_coro()
    with suppress(BaseException):
        coroutine.close()
