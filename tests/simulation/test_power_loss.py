"""A machine that loses its power repeatedly, with `flush.messages=1` for all topics: transactions survive it.

A writer counts: transaction n writes n to both partitions; some are aborted. Each file keeps a random part of its
unsynced data. Without the setting, one broker cannot guarantee this: its coordinator may lose a transaction that a
partition keeps, and the partition's `read_committed` readers then wait indefinitely. The second test shows that.
"""

from __future__ import annotations

import asyncio
from typing import Any

from oncelog.sim.world import PORT, World
from support.raw_client import RawWriter

PARTITIONS = 2
NUMBERS = 40
LIMIT_S = 600.0


async def count(world: World, settings: dict[str, Any]) -> int:
    """Count through several power losses, and return their number."""
    rng = world.fork()
    broker = await world.start_broker(**settings)
    losses = 0
    acknowledged = 0

    async def write() -> None:
        nonlocal acknowledged
        writer = RawWriter("broker-1", PORT, "counter")
        topic = await writer.create_topic("numbers", PARTITIONS)
        await writer.start()
        number = len(await writer.read_committed(topic, 0))
        while number < NUMBERS:
            commit = rng.random() < 0.7
            for partition in range(PARTITIONS):
                await writer.write(topic, partition, [b"%d" % number], world.now_ms())
            await writer.end(commit)
            number += commit
            acknowledged = max(acknowledged, number)

    while acknowledged < NUMBERS:
        process = world.process(f"writer-{losses}")
        life = world.loop.spawn(process, write())
        deadline = world.loop.time() + rng.uniform(0.05, 0.3)
        while not life.done() and world.loop.time() < deadline:
            await asyncio.sleep(0.01)
        if life.done():
            life.result()
            break
        world.loop.kill(process)
        world.network.drop(process)
        broker.crash()
        losses += 1
        await broker.start()
    reader = RawWriter("broker-1", PORT, "counter")
    topic = await reader.create_topic("numbers", PARTITIONS)
    await reader.start()
    expected: list[bytes | None] = [b"%d" % number for number in range(NUMBERS)]
    for partition in range(PARTITIONS):
        assert await reader.read_committed(topic, partition) == expected
    await broker.stop()
    return losses


SYNCED = {"log_flush_interval_messages": 1}


def test_each_number_is_in_the_log_once_after_power_losses() -> None:
    losses = [World(seed).run(lambda world: count(world, SYNCED), limit_s=LIMIT_S) for seed in range(12)]
    assert sum(losses) > 24


def test_some_world_without_fsync_loses_records() -> None:
    for seed in range(12):
        try:
            World(seed).run(lambda world: count(world, {}), limit_s=60)
        except (AssertionError, TimeoutError, RuntimeError):
            return
    raise AssertionError("the simulated disk loses nothing: the first test proves nothing")
