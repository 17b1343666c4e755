"""Members of one group that copy records in transactions, while the broker and the members are killed.

Each record of `in` must be in `out` once, although the members hand over partitions meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from oncelog import aio, errors
from oncelog.client.types import ConsumerRecord
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.sim.world import PORT, World
from support.chaos import Chaos
from support.raw_client import RawWriter

PARTITIONS = 4
RECORDS = 25
SESSION_MS = 6000
MEMBERS = 2
GROUP = "copies"
_CLASSIC = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": SESSION_MS // 6}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "range": {"partition_assignment_strategy": "range", **_CLASSIC},
    "cooperative-sticky": {"partition_assignment_strategy": "cooperative-sticky", **_CLASSIC},
    "consumer": {"group_protocol": "consumer"},
}
"""The options of a member: an assignor of the classic protocol, or the consumer protocol."""
BROKER = {
    "group_consumer_min_session_timeout_ms": SESSION_MS,
    "group_consumer_session_timeout_ms": SESSION_MS,
    "group_consumer_min_heartbeat_interval_ms": SESSION_MS // 6,
    "group_consumer_heartbeat_interval_ms": SESSION_MS // 6,
}


async def committed_offsets(reader: RawWriter) -> list[int]:
    """Return the committed offsets of the group, -1 without one. Those of open transactions do not count."""
    asked = OffsetFetchRequestTopics(name="in", partition_indexes=list(range(PARTITIONS)))
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])])
    response = await reader.call(request, lambda r: r.groups[0].error_code, 9)
    found = {each.partition_index: int(each.committed_offset) for each in response.groups[0].topics[0].partitions}
    return [found[index] for index in range(PARTITIONS)]


class Copies:
    """The whole scenario."""

    def __init__(self, world: World, *kinds: str) -> None:
        """`kinds`: keys of KINDS. Each life of a member has one of them."""
        self.world = world
        self.rng = world.fork()
        self.kinds = kinds
        self.owners: dict[tuple[int, int], str] = {}
        """The member that has read a partition, by the epoch and the partition."""
        self.committed = [-1] * PARTITIONS
        self.done = False
        self.out: UUID

    async def member(self, name: str) -> None:
        """Run a member until it is killed."""
        options: dict[str, Any] = {"bootstrap_servers": f"broker-1:{PORT}", "client_id": name}
        async with (
            aio.Producer(**options, transactional_id=name, transaction_timeout_ms=60_000) as producer,
            aio.Consumer(
                **options,
                group_id=GROUP,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                **KINDS[self.kinds[0] if len(self.kinds) == 1 else self.rng.choice(self.kinds)],
            ) as consumer,
        ):
            consumer.subscribe(["in"])
            while not self.done:
                records = await consumer.poll(0.2, max_records=3)
                self.check_owner(consumer, records)
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
                            self.check_owner(consumer, records)
                        for record in records:
                            await producer.send("out", record.value, partition=record.partition)
                        producer.send_offsets(consumer)
                except (errors.AbortableError, errors.GroupError):
                    consumer.seek_to_committed()

    def check_owner(self, consumer: aio.Consumer, records: list[ConsumerRecord]) -> None:
        """Check that no other member has read these partitions in the same epoch.

        Epochs begin again if a group changes its protocol while it has no members.
        """
        if self.kinds == ("consumer",):
            metadata = consumer._core.group_metadata()
            for partition in {record.partition for record in records}:
                owner = self.owners.setdefault((metadata.generation_id, partition), metadata.member_id)
                assert owner == metadata.member_id, f"{partition} has two owners in epoch {metadata.generation_id}"

    async def check_committed(self, reader: RawWriter) -> None:
        """Check that no committed offset has gone back."""
        found = await committed_offsets(reader)
        assert all(now >= before for now, before in zip(found, self.committed, strict=True)), (found, self.committed)
        self.committed = found

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
        broker = await self.world.start_broker(group_initial_rebalance_delay_ms=0, **BROKER)
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
            await self.check_committed(reader)
            found = [await reader.read_committed(self.out, index, until_stable=False) for index in range(PARTITIONS)]
            self.done = all(len(values) >= RECORDS for values in found)
        await asyncio.gather(*members)
        chaos.over = True
        await reign
        for index in range(MEMBERS):  # abort what they left open
            last = RawWriter("broker-1", PORT, f"copy-{index}")
            await last.start()
        found = [await reader.read_committed(self.out, index) for index in range(PARTITIONS)]
        assert [Counter(values) for values in found] == [Counter(values) for values in expected]
        await self.check_committed(reader)
        source_ends = [len(await reader.read_committed(source, index)) for index in range(PARTITIONS)]
        assert all(now >= end for now, end in zip(self.committed, source_ends, strict=True)), self.committed
        await broker.stop()
        return chaos.deaths
