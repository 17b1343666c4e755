"""One broker that is killed at any disk write, and a writer that is killed at any moment: still exactly once.

The writer counts: transaction n writes n to both partitions; some transactions are aborted. A successor learns from the
committed log how far its predecessor got. In the end, each number is present once, in order, in both partitions.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from oncelog.sim.world import PORT, World
from support.chaos import Chaos
from support.raw_client import RawWriter

PARTITIONS = 2
GOAL = 60
LIVES = 3
"""At least this many. A writer may count beyond its goal until it is killed for the first times."""
LIMIT_S = 600.0
"""In virtual time. A run that needs more hangs."""


class Counter:
    """The writer. `done` is the last number that it has seen committed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.fork()
        self.lives = 0
        self.finished = False

    async def live(self) -> None:
        """Live once: take over, and continue to count."""
        self.lives += 1
        writer = RawWriter("broker-1", PORT, "counter")
        topic = await writer.create_topic("numbers", PARTITIONS)
        await writer.start()
        number = len(await self.committed(writer, topic))
        while number < GOAL or self.lives < LIVES:
            commit = self.rng.random() < 0.7
            for partition in range(PARTITIONS):
                value = str(number) if commit else f"aborted {number}"
                await writer.write(topic, partition, [value.encode()], self.world.now_ms())
            await writer.end(commit)
            number += commit
        self.finished = True

    async def committed(self, reader: RawWriter, topic: UUID) -> list[int]:
        """Return the numbers that a read_committed reader sees: equal in both partitions, without gaps and
        duplicates.
        """
        partitions = [await reader.read_committed(topic, partition) for partition in range(PARTITIONS)]
        expected = [str(number).encode() for number in range(len(partitions[0]))]
        assert partitions == [expected] * PARTITIONS
        return list(range(len(expected)))


async def count(world: World) -> tuple[int, int]:
    broker = await world.start_broker()
    counter, chaos = Counter(world), Chaos(world, broker)
    rng = world.fork()
    reign = asyncio.create_task(chaos.reign())
    while not counter.finished:
        process = world.process(f"writer-{counter.lives}")
        life = world.loop.spawn(process, counter.live())
        deadline = world.loop.time() + rng.uniform(0.02, 1)
        while not life.done() and world.loop.time() < deadline:
            await asyncio.sleep(0.01)
        if life.done():
            life.result()
        else:
            world.loop.kill(process)
            world.network.drop(process)
    chaos.over = True
    await reign
    writer = RawWriter("broker-1", PORT, "counter")
    topic = await writer.create_topic("numbers", PARTITIONS)
    await writer.start()
    assert len(await counter.committed(writer, topic)) >= GOAL
    await broker.stop()
    return counter.lives, chaos.deaths


@pytest.mark.parametrize("seed", range(20))
def test_each_number_is_in_the_log_once(seed: int) -> None:
    lives, deaths = World(seed).run(count, limit_s=LIMIT_S)
    assert lives >= LIVES
    assert deaths > 0


def test_same_seed_gives_the_same_world() -> None:
    worlds = [World(99), World(99), World(100)]
    for world in worlds:
        world.run(count, limit_s=LIMIT_S)
    assert worlds[0].trace == worlds[1].trace
    assert worlds[0].digest() == worlds[1].digest()
    assert worlds[0].digest() != worlds[2].digest()
