"""Members of one group keep their partitions through rebalances, while the broker and the members are killed.

Each record of `in` must be in `out` once, although the members hand over partitions meanwhile.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from oncelog import aio, errors
from oncelog.sim.world import PORT, World
from support.chaos import Chaos
from support.raw_client import RawWriter

PARTITIONS = 4
RECORDS = 25
LIMIT_S = 3600.0
SESSION_MS = 6000
MEMBERS = 2


class Copies:
    """The whole scenario."""

    def __init__(self, world: World, strategy: str) -> None:
        self.world = world
        self.rng = world.fork()
        self.strategy = strategy
        self.done = False
        self.out: UUID

    async def member(self, name: str) -> None:
        """Run a member until it is killed."""
        options = {"bootstrap_servers": f"broker-1:{PORT}", "client_id": name}
        async with (
            aio.Producer(**options, transactional_id=name, transaction_timeout_ms=60_000) as producer,
            aio.Consumer(
                **options,
                group_id="copies",
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                partition_assignment_strategy=self.strategy,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=SESSION_MS // 6,
            ) as consumer,
        ):
            consumer.subscribe(["in"])
            while not self.done:
                records = await consumer.poll(0.2, max_records=3)
                if not records:
                    continue
                try:
                    async with producer.transaction():
                        for _ in range(self.rng.choice([1, 1, 3])):
                            for record in records:
                                await producer.send("out", record.value, partition=record.partition)
                            await asyncio.sleep(self.rng.choice([0, 0, 0.3, 2]))  # a rebalance may occur meanwhile
                            # and revoke partitions whose records were sent
                            records = await consumer.poll(0.3, max_records=3)
                        for record in records:
                            await producer.send("out", record.value, partition=record.partition)
                        producer.send_offsets(consumer)
                except (errors.AbortableError, errors.GroupError):
                    consumer.seek_to_committed()

    async def lives(self, index: int) -> None:
        """Run a member that is killed and restarted, until everything is present."""
        life = 0
        while not self.done:
            life += 1
            process = self.world.process(f"member-{index}-{life}")

            async def live() -> None:
                try:
                    await self.member(f"copy-{index}")
                except errors.KafkaError:
                    return  # as a program that exits: it is restarted

            task = self.world.loop.spawn(process, live())
            end = self.world.loop.time() + self.rng.choice([1, 3, 20, 60])
            while not task.done() and self.world.loop.time() < end and not self.done:
                await asyncio.sleep(0.05)
            if task.done():
                task.result()
            else:
                self.world.loop.kill(process)
                self.world.network.drop(process)

    async def run(self) -> int:
        broker = await self.world.start_broker(group_initial_rebalance_delay_ms=0)
        reader = RawWriter("broker-1", PORT, "reader")
        source = await reader.create_topic("in", PARTITIONS)
        self.out = await reader.create_topic("out", PARTITIONS)
        writer = RawWriter("broker-1", PORT, "source")
        await writer.start()
        expected = [[f"{partition}:{number}".encode() for number in range(RECORDS)] for partition in range(PARTITIONS)]
        for partition, values in enumerate(expected):
            for value in values:
                await writer.write(source, partition, [value], self.world.now_ms())
        await writer.end(commit=True)
        chaos = Chaos(self.world, broker, calm_s=3 * SESSION_MS / 1000)
        reign = asyncio.create_task(chaos.reign())
        members = [asyncio.create_task(self.lives(index)) for index in range(MEMBERS)]
        while not self.done:
            await asyncio.sleep(1)
            found = [await reader.read_committed(self.out, index, until_stable=False) for index in range(PARTITIONS)]
            self.done = all(len(values) >= RECORDS for values in found)
        await asyncio.gather(*members)
        chaos.over = True
        await reign
        for index in range(MEMBERS):  # abort what they left open
            last = RawWriter("broker-1", PORT, f"copy-{index}")
            await last.start()
        found = [await reader.read_committed(self.out, index) for index in range(PARTITIONS)]
        assert [sorted(values) for values in found] == [sorted(values) for values in expected]
        await broker.stop()
        return chaos.deaths


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(4))
def test_each_record_is_copied_once(seed: int, strategy: str) -> None:
    World(seed).run(lambda world: Copies(world, strategy).run(), limit_s=LIMIT_S)
