"""Our client against a broker that is killed: consume, process, produce, commit the offsets, all in one transaction.

Each record of `in` must be in `out` once, in order, however often broker and pipeline are killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from oncelog import aio, errors
from oncelog.sim.world import PORT, World
from support.chaos import Chaos
from support.raw_client import RawWriter

PARTITIONS = 2
RECORDS = 40
LIMIT_S = 3600.0
SERVERS = f"broker-1:{PORT}"
SESSION_MS = 6000


async def fill(topic: UUID, writer: RawWriter, world: World) -> None:
    """Write the records of `in`, different ones for each partition."""
    await writer.start()
    for partition in range(PARTITIONS):
        for number in range(RECORDS):
            await writer.write(topic, partition, [f"{partition}:{number}".encode()], world.now_ms())
    await writer.end(commit=True)


async def pipeline(finished: Callable[[], Awaitable[bool]]) -> None:
    """Run the pipeline until it is killed."""
    options = {"bootstrap_servers": SERVERS, "client_id": "pipeline"}
    async with (
        aio.Producer(**options, transactional_id="pipeline", transaction_timeout_ms=60_000) as producer,
        aio.Consumer(
            **options,
            group_id="pipeline",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=SESSION_MS // 3,
        ) as consumer,
    ):
        consumer.subscribe(["in"])
        while not await finished():
            records = await consumer.poll(0.2, max_records=7)
            if not records:
                continue
            async with producer.transaction():
                for record in records:
                    await producer.send("out", record.value, partition=record.partition)
                producer.send_offsets(consumer)


class Copy:
    """The whole scenario."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.fork()
        self.lives = 0
        self.failures: list[str] = []
        self.reader = RawWriter("broker-1", PORT, "reader")
        self.out: UUID

    async def finished(self, reader: RawWriter) -> bool:
        """Return whether everything is present, using a separate connection."""
        for partition in range(PARTITIONS):
            if len(await reader.read_committed(self.out, partition, until_stable=False)) < RECORDS:
                return False
        return True

    async def life(self) -> None:
        try:
            reader = RawWriter("broker-1", PORT, "reader")
            await pipeline(lambda: self.finished(reader))
        except errors.KafkaError as error:
            self.failures.append(type(error).__name__)

    async def run(self) -> int:
        broker = await self.world.start_broker(group_initial_rebalance_delay_ms=0)
        source = await self.reader.create_topic("in", PARTITIONS)
        self.out = await self.reader.create_topic("out", PARTITIONS)
        await fill(source, RawWriter("broker-1", PORT, "source"), self.world)
        # If a broker never lives as long as a session, it never notices that a member is dead.
        chaos = Chaos(self.world, broker, calm_s=3 * SESSION_MS / 1000)
        reign = asyncio.create_task(chaos.reign())
        while not await self.finished(self.reader):
            self.lives += 1
            process = self.world.process(f"pipeline-{self.lives}")
            life = self.world.loop.spawn(process, self.life())
            deadline = self.world.loop.time() + self.rng.choice([0.2, 0.4, 0.6, 60])
            while not life.done() and self.world.loop.time() < deadline:
                await asyncio.sleep(0.05)
            if life.done():
                life.result()
            else:
                self.world.loop.kill(process)
                self.world.network.drop(process)
        chaos.over = True
        await reign
        last = RawWriter("broker-1", PORT, "pipeline")
        await last.start()
        expected = [[f"{partition}:{number}".encode() for number in range(RECORDS)] for partition in range(PARTITIONS)]
        found = [await self.reader.read_committed(self.out, partition) for partition in range(PARTITIONS)]
        assert found == expected
        await broker.stop()
        return chaos.deaths


@pytest.mark.parametrize("seed", range(8))
def test_each_record_is_copied_once(seed: int) -> None:
    assert World(seed).run(lambda world: Copy(world).run(), limit_s=LIMIT_S) > 0


def test_same_seed_gives_the_same_world() -> None:
    worlds = [World(77), World(77)]
    for world in worlds:
        world.run(lambda world: Copy(world).run(), limit_s=LIMIT_S)
    assert worlds[0].trace == worlds[1].trace
    assert worlds[0].digest() == worlds[1].digest()
