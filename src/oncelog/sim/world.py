"""Simulate a cluster and its clients in one thread, from one seed. A broker can be killed at any disk write.

```python
async def scenario(world: World) -> None:
    broker = await world.start_broker()
    ...                                   # any asyncio code; broker.address is its bootstrap address
    broker.die_in(3)                      # in the middle of a disk change, after three further ones

World(seed=7).run(scenario)
```

Everything that happens depends only on the seed, because the world has its own clock, network, disks and random
numbers. `trace` has the latest events. `sim.kernel` says what else the world replaces.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from oncelog.broker.broker import Broker
from oncelog.broker.config.listeners import ListenerConfig
from oncelog.broker.config.settings import BrokerConfig
from oncelog.cluster.store import StoreError
from oncelog.sim.kernel import Kernel
from oncelog.sim.machine import Machine, Program

PORT = 9092

WORKER_S = 0.000_05, 0.002
"""How long the work of a worker thread takes, from and to, in seconds."""


class SimBroker(Machine):
    """One broker of a world. Its disk outlives its processes."""

    def __init__(self, world: World, node_id: int, settings: dict[str, Any]) -> None:
        super().__init__(world, f"broker-{node_id}")
        self.node_id = node_id
        self.broker: Broker | None = None
        self._counters: Counter[str] = Counter()
        self._uncounted: Broker | None = None
        self._world = world
        self._settings = settings

    @property
    def address(self) -> str:
        """The broker's address for `bootstrap.servers`."""
        return f"{self.name}:{PORT}"

    async def start(self, *, die_in: int | None = None) -> bool:
        """Start the broker on its disk, which keeps the files of former processes.

        Return False if the broker died during the start, or ended because the metadata store did not answer. With
        `die_in`, call that method before the first disk change.
        """
        process = self.boot()
        self.counters()
        self.broker = self._uncounted = self._world.make_broker(self, self._settings)
        if die_in is not None:
            self.die_in(die_in)
        started = self._world.loop.spawn(process, self.broker.start())
        await asyncio.wait({started, self._world.loop.end_of(process)}, return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            return False
        error = started.exception()
        if isinstance(error, StoreError):
            self._world.note(f"{self.name} cannot start: {type(error).__name__} {error}")
            self.kill()
            return False
        started.result()
        self._world.note(f"{self.name} started")
        return True

    async def stop(self) -> None:
        """Stop the broker cleanly. Cancel a planned death."""
        assert self.process is not None
        assert self.broker is not None
        self.disk.spare()
        self.counters()  # a stopped broker has no logs any more
        await self._world.loop.spawn(self.process, self.broker.stop())
        self.kill()

    def counters(self) -> Counter[str]:
        """Return what the processes of this broker have counted (`Broker.counters`), added up.

        Count a process when it is stopped or when the next one starts; otherwise, in this call.
        """
        counted, self._uncounted = self._uncounted, None
        if counted is not None:
            self._counters += counted.counters()
        return self._counters


class World(Kernel):
    """A cluster, its clients, network and disks. `seed` determines all that happens."""

    def __init__(self, seed: int, *, store_latency_s: tuple[float, float] = (0.0, 0.0)) -> None:
        """With `store_latency_s`, each call of the metadata store takes time, and other processes run meanwhile."""
        super().__init__(seed, store_latency_s=store_latency_s)
        self.machines: dict[str, Machine] = {}
        self.brokers: dict[int, SimBroker] = {}

    def machine(self, name: str, program: Program) -> Machine:
        """Create a machine that runs `program(machine)` each time it is started."""
        machine = self.machines[name] = Machine(self, name, program)
        return machine

    async def start_broker(self, node_id: int = 1, **settings: Any) -> SimBroker:
        """Create a broker and start it. `settings` are fields of BrokerConfig."""
        broker = self.add_broker(node_id, **settings)
        await broker.start()
        return broker

    def add_broker(self, node_id: int = 1, **settings: Any) -> SimBroker:
        """Create a broker that is not started. `settings` are fields of BrokerConfig."""
        broker = self.brokers[node_id] = SimBroker(self, node_id, settings)
        self.machines[broker.name] = broker
        return broker

    def counters(self) -> Counter[str]:
        """Return what all brokers have counted, by the names of the metrics. Call it at the end of a scenario."""
        return sum((broker.counters() for broker in self.brokers.values()), Counter[str]())

    def make_broker(self, machine: SimBroker, settings: dict[str, Any]) -> Broker:
        """Create a broker of the production class, with the disk, store, clock and random numbers of the world."""
        listener = ListenerConfig(host=machine.name, port=PORT)
        config = BrokerConfig(
            **{"node_id": machine.node_id, "client_listeners": (listener,), "log_dirs": ("data",), **settings}
        )
        return Broker(
            config,
            disk=machine.files,
            store=machine.store,
            now_ms=self.now_ms,
            offload=partial(self._offload, self.stream(f"workers {machine.name}")),
            rng=self.stream(f"broker {machine.name}"),
            logger=logging.getLogger("oncelog.sim"),
            boot_id=str(machine.boots),
        )

    async def _offload(self, rng: random.Random, work: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(rng.uniform(*WORKER_S))
        if self._store_latency_s[1]:
            return await self.threads.run(work, *args)
        return work(*args)  # no call of the store waits, so that no thread is needed
