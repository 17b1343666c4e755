"""Faults of simulated worlds."""

from __future__ import annotations

import asyncio
import contextlib

from oncelog.sim.world import SimBroker, World


class Chaos:
    """Kill the broker repeatedly, during and between writes, at work and during its recovery."""

    def __init__(self, world: World, broker: SimBroker, *, calm_s: float = 0.5) -> None:
        """`calm_s`: the approximate maximum life of the broker."""
        self.calm_s = calm_s
        self.world = world
        self.rng = world.fork()
        self.broker = broker
        self.deaths = 0
        self.over = False

    async def reign(self) -> None:
        while not self.over:
            for _ in range(self.rng.randrange(4)):
                await asyncio.sleep(self.rng.uniform(0, 0.05))
                self.world.network.reset()  # answers are lost
            if self.rng.random() < 0.5:
                self.broker.die_in(self.rng.randrange(60))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.broker.died(), self.rng.uniform(0, self.calm_s))
            if self.broker.alive:
                self.broker.kill()
            self.deaths += 1
            await asyncio.sleep(self.rng.uniform(0, 1))
            while not await self.broker.start(die_in=self.rng.choice([None, self.rng.randrange(20)])):
                self.deaths += 1
        self.broker.disk.spare()
