"""Faults of the brokers and links of a `PeerWorld`, and worlds by their seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from oncelog.sim.world import World
from support.peer_world import PeerWorld

SETTLE_S = 60


async def among_faults(peers: PeerWorld, work: Iterable[Coroutine[Any, Any, Any]], rng: random.Random) -> None:
    """Run the work while things break. Then mend everything, and wait until open transactions have ended."""
    nemesis = asyncio.ensure_future(break_things(peers, rng))
    await asyncio.gather(*work)
    nemesis.cancel()
    await asyncio.gather(nemesis, return_exceptions=True)
    brokers = peers.world.brokers
    for node_id in peers.ids:
        brokers[node_id].resume()
    peers.world.network.heal()
    for node_id in peers.ids:
        if not brokers[node_id].alive:
            await peers.restart(node_id)
    await asyncio.sleep(SETTLE_S)


async def break_things(peers: PeerWorld, rng: random.Random) -> None:
    """Let a broker or a link fail, one after the other."""
    network = peers.world.network
    while True:
        await asyncio.sleep(rng.uniform(0.1, 3))
        victim, other = rng.sample(list(peers.ids), 2)
        machine = peers.world.brokers[victim]
        match rng.randrange(6):
            case 0 | 1:
                machine.kill()
                if rng.random() < 0.5:
                    await peers.expire(victim)
                await asyncio.sleep(rng.uniform(0, 3))
                await peers.restart(victim)
            case 2:
                network.cut(f"broker-{victim}", f"broker-{other}", both_ways=rng.random() < 0.5)
                await asyncio.sleep(rng.uniform(0, 5))
                network.heal()
            case 3:
                network.reset(machine.name)
            case 4:
                network.slow(f"broker-{victim}", f"broker-{other}", rng.uniform(0, 1))
            case 5:
                machine.pause()
                await asyncio.sleep(rng.uniform(0, 10))
                machine.resume()


def run_seeds(scenario: Callable[[World], Coroutine[Any, Any, int]], seeds: Iterable[int], *, limit_s: float) -> int:
    """Run the worlds of these seeds, and return the sum of their results. An error names its seed."""
    total = 0
    for seed in seeds:
        try:
            total += World(seed).run(scenario, limit_s=limit_s)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return total
