"""Simulate a cluster and its clients in one thread, from one seed. A broker can be killed at any disk write.

```python
async def scenario(world: World) -> None:
    broker = await world.start_broker()
    ...                                   # any asyncio code; broker.address is its bootstrap address
    broker.die_in(3)                      # in the middle of a disk change, after three further ones

World(seed=7).run(scenario)
```

Everything that happens depends only on the seed, because the world has its own clock, network, disks and random
numbers. `trace` has the latest events. While the world runs, it replaces the clocks of the `time` module and
`os.urandom`, and seeds the `random` module.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from oncelog.broker.broker import Broker
from oncelog.broker.config.listeners import Listener
from oncelog.broker.config.settings import BrokerConfig
from oncelog.cluster.store_memory import MemoryStore
from oncelog.sim.disk import PowerFailure, SimDisk
from oncelog.sim.loop import Process, SimLoop
from oncelog.sim.network import Network

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
"""The wall clock at the start of a world, in ms."""

TRACE_LINES = 10_000
"""The trace keeps this many lines, the latest ones. Its digest covers all lines."""

PORT = 9092


class SimBroker:
    """One broker of a world. Its disk outlives its processes."""

    def __init__(self, world: World, node_id: int, settings: dict[str, Any]) -> None:
        self.node_id = node_id
        self.disk = SimDisk(world.fork(), lambda what: world.note(f"disk {node_id}: {what}"))
        self.process: Process | None = None
        self.broker: Broker | None = None
        self._world = world
        self._settings = settings

    @property
    def host(self) -> str:
        """The broker's host name in the network."""
        return f"broker-{self.node_id}"

    @property
    def address(self) -> str:
        """The broker's address for `bootstrap.servers`."""
        return f"{self.host}:{PORT}"

    @property
    def alive(self) -> bool:
        """Whether the broker's process is alive."""
        return self.process is not None and self.process.alive

    async def start(self, *, die_in: int | None = None) -> bool:
        """Start the broker on its disk, which keeps the files of former processes.

        Return False if the broker died during the start. With `die_in`, call that method before the first disk change.
        """
        if self.alive:
            raise RuntimeError(f"{self.host} runs already")
        process = self.process = self._world.process(self.host)
        self.broker = self._world.make_broker(self.node_id, self.disk, self._settings)
        if die_in is not None:
            self.die_in(die_in)
        started = self._world.loop.spawn(process, self.broker.start())
        while process.alive and not started.done():
            await asyncio.sleep(0.000_1)
        if not process.alive:
            return False
        started.result()
        self._world.note(f"{self.host} started")
        return True

    async def stop(self) -> None:
        """Stop the broker cleanly. A planned death is cancelled."""
        assert self.process is not None
        assert self.broker is not None
        self.disk.spare()
        await self._world.loop.spawn(self.process, self.broker.stop())
        self.kill()

    def kill(self) -> None:
        """Kill the process as with `kill -9`. Its writes remain."""
        self.disk.kill()
        self._died()

    def crash(self) -> None:
        """Crash the machine, as in a power failure. Data that is not synced may be lost."""
        self.disk.crash()
        self._died()

    def die_in(self, changes: int) -> None:
        """Kill the process in the middle of a disk change, after `changes` further ones."""
        self.disk.die_in(changes, self._died)

    async def died(self) -> None:
        """Wait until the broker is dead."""
        while self.alive:
            await asyncio.sleep(0.001)

    def _died(self) -> None:
        if self.process is not None and self.process.alive:
            self._world.note(f"{self.host} died")
            self._world.loop.kill(self.process)
            self._world.network.drop(self.process)


class World:
    """A cluster, its clients, network and disks. `seed` determines all that happens."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = SimLoop()
        self._rng = random.Random(seed)
        self.network = self.loop.network = Network(self.loop, self.fork())
        self.network.trace = lambda what: self.note(f"net: {what}")
        self.store = MemoryStore(lambda: int(self.loop.time() * 1000))
        self.brokers: dict[int, SimBroker] = {}
        self.errors: list[dict[str, Any]] = []
        self._over = False
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._clock_error_ms = 0
        self._digest = hashlib.sha256()
        self._processes: list[Process] = []
        self.loop.set_exception_handler(self._on_error)

    def fork(self) -> random.Random:
        """Return a new random generator, so that the draws of one part do not shift those of another."""
        return random.Random(self._rng.getrandbits(64))

    def now_ms(self) -> int:
        """Return the wall clock in ms."""
        return EPOCH_MS + self._clock_error_ms + int(self.loop.time() * 1000)

    def set_clock(self, ms: int) -> None:
        """Move the wall clock by `ms`, forward or back. The monotonic clock does not change."""
        self._clock_error_ms += ms
        self.note(f"wall clock set by {ms} ms")

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        line = f"{self.loop.time():.6f} {what}"
        self.trace.append(line)
        self._digest.update(line.encode())

    def digest(self) -> str:
        """Return a short digest of everything that happened."""
        return self._digest.hexdigest()[:16]

    def process(self, name: str) -> Process:
        """Create a process. Its tasks can be killed together."""
        process = Process(name)
        self._processes.append(process)
        return process

    async def start_broker(self, node_id: int = 1, **settings: Any) -> SimBroker:
        """Create a broker and start it. `settings` are fields of BrokerConfig."""
        broker = self.brokers[node_id] = SimBroker(self, node_id, settings)
        await broker.start()
        return broker

    def make_broker(self, node_id: int, disk: SimDisk, settings: dict[str, Any]) -> Broker:
        """Create a broker of the production class, with the disk, store, clock and random numbers of the world."""
        listener = Listener(host=f"broker-{node_id}", port=PORT)
        config = BrokerConfig(
            **{"node_id": node_id, "client_listeners": (listener,), "log_dirs": ("data",), **settings}
        )
        return Broker(
            config,
            disk=disk.mount(),
            store=self.store,
            now_ms=self.now_ms,
            offload=self._offload,
            rng=self.fork(),
            logger=logging.getLogger("oncelog.sim"),
        )

    async def _offload(self, work: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(self.network.latency())
        return work(*args)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, scenario: Callable[[World], Coroutine[Any, Any, T]], *, limit_s: float | None = None) -> T:
        """Run `scenario(world)` as the process "client", and return its result.

        Raises RuntimeError if there were unhandled errors. Raises TimeoutError after `limit_s` of virtual time. Tasks
        that poll each other forever are not detected as stalled, so only this limit ends them.
        """
        client = self.process("client")
        with self._patched_functions():
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

    def _on_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._over and not isinstance(context.get("exception"), PowerFailure):
            self.errors.append(context)

    def _end(self) -> None:
        self._over = True  # later errors come from killed tasks, such as a response without a waiting caller
        for process in self._processes:
            self.loop.kill(process)
        for broker in self.brokers.values():
            broker.disk.kill()
        for process in self._processes:
            for task in process.tasks:
                _close_task(task)
        self.loop.close()

    @contextmanager
    def _patched_functions(self) -> Iterator[None]:
        """Replace the functions through which code reads clocks and random numbers."""

        def nanoseconds() -> int:
            return int(self.loop.time() * 1e9)

        def wall_nanoseconds() -> int:
            return (EPOCH_MS + self._clock_error_ms) * 1_000_000 + nanoseconds()

        chance = self.fork()
        replacements: list[tuple[Any, str, Any]] = [
            (time, "time", lambda: wall_nanoseconds() / 1e9),
            (time, "time_ns", wall_nanoseconds),
            (time, "monotonic", self.loop.time),
            (time, "monotonic_ns", nanoseconds),
            (time, "perf_counter", self.loop.time),
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


def _close_task(task: asyncio.Task[Any]) -> None:
    """Close the coroutine of a dead process, and ignore its errors."""
    if task.done():
        if not task.cancelled():
            task.exception()
        return
    coroutine: Any = task.get_coro()
    with suppress(BaseException):
        coroutine.close()
