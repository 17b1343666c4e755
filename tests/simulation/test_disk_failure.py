"""Disks that fail at any step: full, unable to write, to read, or to sync. No acknowledged record is lost.

One broker has two log directories, and a writer notes the acknowledged records. Then a disk fails permanently. In the
end, the machine loses its power (or the process is killed) and gets working disks, and every acknowledged record must
be present. After a failed sync, the simulated disk behaves like Linux: further syncs succeed and write nothing to the
device.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.net.connection import ClientConnection, connect
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch, decode_records, iter_batches
from oncelog.sim.world import PORT, SimBroker, World

PARTITIONS = 4
LIVES = 3
DIRECTORIES = ("a", "b")
FAULTS = (
    (("write",), errno.ENOSPC),
    (("write",), errno.EIO),
    (("sync",), errno.EIO),
    (("read",), errno.EIO),
    (("read", "write", "sync"), errno.EIO),
)
STORAGE = ErrorCode.KAFKA_STORAGE_ERROR


class Writer:
    """Write numbers, and note which of them were acknowledged."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.number = 0
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.refused: set[int] = set()
        self.topic_id: Any = None
        self._connection: ClientConnection | None = None

    async def call(self, request: Any) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = await connect("broker-1", PORT, request_timeout_ms=2000, connect_timeout_ms=500)
        return await self._connection.call(request)

    def hang_up(self) -> None:
        """Close the connection. The next call uses the broker that runs then."""
        self._connection = None

    async def create(self, **configs: str) -> None:
        entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1, configs=entries)
        await self.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        self.topic_id = (await self.describe()).topic_id

    async def describe(self) -> Any:
        return (await self.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))).topics[0]

    async def write(self, partition: int) -> None:
        self.number += 1
        value = b"%d" % self.number
        batch = build_batch([Record(0, self.world.now_ms(), None, value)])
        data = PartitionProduceData(index=partition, records=batch)
        topic = TopicProduceData(topic_id=self.topic_id, partition_data=[data])
        answer = await self.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]))
        found = answer.responses[0].partition_responses[0]
        assert found.error_code in (0, STORAGE), found
        if found.error_code:
            self.refused.add(partition)
        else:
            self.acknowledged[partition, found.base_offset] = value

    async def fetch(self, partition: int, offset: int) -> Any:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic_id=self.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])
        return (await self.call(request)).responses[0].partitions[0]

    async def end(self, partition: int) -> int:
        """Return the end of the partition, once everything that an earlier broker may have reported is committed
        (KIP-207).
        """
        asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=partition, timestamp=-1)])
        while True:
            answer = await self.call(ListOffsetsRequest(replica_id=-1, topics=[asked]))
            found = answer.topics[0].partitions[0]
            if found.error_code != ErrorCode.OFFSET_NOT_AVAILABLE:
                assert not found.error_code, found
                return int(found.offset)
            await asyncio.sleep(0.001)

    async def read(self, partition: int) -> dict[int, bytes]:
        values: dict[int, bytes] = {}
        offset = 0
        end = await self.end(partition)
        while True:
            found = await self.fetch(partition, offset)
            assert not found.error_code, found
            if offset >= end:
                return values
            for header, view in iter_batches(found.records):
                values |= {record.offset: bytes(record.value or b"") for record in decode_records(view)}
                offset = header.next_offset


async def look(writer: Writer, broker: SimBroker) -> None:
    """Check that all answers of the broker agree about what is offline. The rest has a leader and accepts writes."""
    running = broker.broker
    assert running is not None
    if running.failed.done():
        return
    shown = (await writer.describe()).partitions
    for index, partition in enumerate(shown):
        offline = running.partitions.is_offline("t", index)
        assert (partition.leader_id == -1) == offline
        assert partition.offline_replicas == ([1] if offline else [])
        if offline:
            assert (await writer.fetch(index, 0)).error_code == STORAGE
    assert writer.refused <= {index for index, partition in enumerate(shown) if partition.leader_id == -1}


async def suffer(world: World, *, lose_power: bool) -> int:
    """Run a broker several times with failing disks. Return how often a directory went offline."""
    settings: dict[str, Any] = {"log_dirs": DIRECTORIES, "log_flush_offset_checkpoint_interval_ms": 50}
    if lose_power:
        settings["log_flush_interval_messages"] = 1
    rng = world.fork()
    broker = await world.start_broker(**settings)
    writer = Writer(world)
    await writer.create(internal_segment_bytes="400")
    failures = 0
    for _ in range(LIVES):
        writer.refused.clear()
        kinds, number = rng.choice(FAULTS)
        prefix = rng.choice([f"{name}/" for name in DIRECTORIES] * 2 + [""])
        broker.disk.fail_in(rng.randrange(80), kinds, number, prefix)
        try:
            for _ in range(60):
                partitions = rng.sample(range(PARTITIONS), 2)
                await asyncio.gather(*(writer.write(partition) for partition in partitions))
                await writer.fetch(partitions[0], 0)
                await asyncio.sleep(rng.choice([0, 0, 0.03]))
            await look(writer, broker)
        except ConnectionLostError:
            assert broker.broker is not None
            assert broker.broker.failed.done()
        assert broker.broker is not None
        failures += len(DIRECTORIES) - len(broker.broker.directories.online)
        broker.crash() if lose_power else broker.kill()
        writer.hang_up()
        broker.disk.heal()
        await broker.start()
        for partition in range(PARTITIONS):
            values = await writer.read(partition)
            for (home, offset), value in writer.acknowledged.items():
                assert home != partition or values.get(offset) == value, f"lost {value!r} at {partition}, {offset}"
    await broker.stop()
    return failures


def run(seed: int, scenario: Callable[[World], Any]) -> int:
    failures: int = World(seed).run(scenario, limit_s=600)
    return failures


@pytest.mark.parametrize("lose_power", [True, False], ids=["power", "kill"])
def test_acknowledged_records_are_not_lost(lose_power: bool) -> None:
    failures = 0
    for seed in range(30):
        failures += run(seed, lambda world: suffer(world, lose_power=lose_power))
    assert failures > 30
