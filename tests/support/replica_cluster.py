"""Simulated brokers with replicated partitions. A test elects the leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

from oncelog.broker.broker import Broker
from oncelog.cluster.brokers import epoch_path
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.replica import Replica
from oncelog.cluster.store import Set
from oncelog.cluster.topic_nodes import write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.log.log import Log
from oncelog.net.connection import ClientConnection, connect
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import Record, build_batch, decode_records, iter_batches
from oncelog.sim.world import PORT, World

T = TypeVar("T")


def topic_id_of(number: int) -> UUID:
    """Return the id of the topic that was created after so many others."""
    return UUID(int=(4 << 76) + number)


def values(log: Log, end: int | None = None) -> list[bytes]:
    """Return the values of all records before `end`."""
    found: list[bytes] = []
    offset, end = log.log_start_offset, log.log_end_offset if end is None else end
    while offset < end:
        for header, view in iter_batches(log.read(offset, 1 << 20, upto=end, at_least_one=True)):
            found += [bytes(record.value or b"") for record in decode_records(view)]
            offset = header.next_offset
    return found


def contents(log: Log) -> bytes:
    """Return all batches of a log."""
    data = b""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = bytes(log.read(offset, 1 << 20, upto=log.log_end_offset, at_least_one=True))
        for header, _ in iter_batches(part):
            offset = header.next_offset
        data += part
    return data


class ReplicaCluster:
    """Three brokers in one world, and topics of one partition."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.infos: dict[str, PartitionInfo] = {}
        self._connections: dict[int, ClientConnection] = {}

    @staticmethod
    def run(
        scenario: Callable[[ReplicaCluster], Coroutine[Any, Any, None]],
        *,
        seed: int = 1,
        store_latency_s: tuple[float, float] = (0.0, 0.0),
        **settings: Any,
    ) -> None:
        """Run a scenario with brokers 1, 2 and 3, which stop at the end."""

        async def main(world: World) -> None:
            cluster = ReplicaCluster(world)
            for number in (1, 2, 3):
                machine = await world.start_broker(number, **settings)
                machine.disk.map_bytes = 1  # all reads are live pages, so a truncation under one kills the process
            await scenario(cluster)
            for machine in world.brokers.values():
                if machine.alive:
                    await machine.stop()

        World(seed, store_latency_s=store_latency_s).run(main, limit_s=3600)

    def broker(self, number: int) -> Broker:
        """Return the broker that runs on a machine."""
        found = self.world.brokers[number].broker
        assert found is not None
        return found

    def replica(self, number: int, topic: str) -> Replica | None:
        """Return the open replica of partition 0."""
        return self.broker(number).partitions.opened_replica(topic, 0)

    def opened(self, number: int, topic: str = "t") -> Replica:
        """Return the open replica of partition 0, which must exist."""
        found = self.replica(number, topic)
        assert found is not None
        return found

    def records(self, number: int) -> list[bytes]:
        """Return the values of all records of a broker's replica of topic t."""
        return values(self.opened(number).log)

    async def inside(self, number: int, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a broker's process."""
        machine = self.world.brokers[number]
        assert machine.process is not None
        return await self.world.loop.spawn(machine.process, work)

    async def eventually(self, is_true: Callable[[], bool], limit_s: float = 60) -> None:
        """Wait until something is true."""
        async with asyncio.timeout(limit_s):
            while not is_true():
                await asyncio.sleep(0.01)

    async def create(self, name: str, replicas: tuple[int, ...], *, least: int = 1, **configs: str) -> None:
        """Create a topic that the first replica leads, and wait until all replicas have opened it."""
        info = PartitionInfo(
            replicas, PartitionState(replicas[0], 0, replicas, leader_broker_epoch=self.epoch(replicas[0]))
        )
        settings = {"min.insync.replicas": str(least), **configs}
        topic = TopicInfo(name, topic_id_of(len(self.infos)), (info,), settings)
        self.infos[name] = info
        write_topic(ChangeLog(self.world.store), topic)
        await self.eventually(lambda: self.broker(replicas[0]).partitions.leads(name, 0))
        await self.eventually(lambda: all(self.replica(number, name) for number in replicas[1:]))

    def epoch(self, number: int) -> int:
        """Return the broker epoch of a broker's last registration."""
        return self.world.store.get(epoch_path(number)).version

    def state(self, topic: str) -> PartitionState:
        """Return the state in the tree."""
        return decode_state(self.world.store.get(state_path(topic, 0)))

    async def elect(self, topic: str, leader: int, isr: tuple[int, ...]) -> None:
        """Elect a leader, and wait until it knows."""
        old = self.state(topic)
        new = PartitionState(leader, old.leader_epoch + 1, isr, old.version, self.epoch(leader))
        path = state_path(topic, 0)
        ChangeLog(self.world.store).write([Set(path, encode_state(new), old.version)], path)
        await self.eventually(lambda: self._leads(leader, topic, new.leader_epoch))

    def _leads(self, number: int, topic: str, epoch: int) -> bool:
        image = self.broker(number).metadata.image
        info = image.partition(topic, 0)
        return info is not None and info.leader_epoch >= epoch and self.broker(number).partitions.leads(topic, 0)

    async def append(
        self, number: int, topic: str, value: bytes, *, key: bytes | None = None, acks: int = -1
    ) -> ErrorCode:
        """Append a record as a producer does. Return the outcome, with acks=1 of the append only."""

        async def work() -> ErrorCode:
            batch = memoryview(bytearray(build_batch([Record(0, self.world.now_ms(), key, value)])))
            done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            try:
                replica = self.broker(number).partitions.require(topic, 0)
                result = replica.append(batch, now_ms=self.world.now_ms(), all_replicas=acks == -1)
            except ProtocolError as error:
                return error.code
            if acks == -1:
                replica.when_committed(result.last_offset, done.set_result)
                return await done
            return ErrorCode.NONE

        return await self.inside(number, work())

    async def connection(self, number: int) -> ClientConnection:
        """Return an open connection to a broker. Raises ConnectionLostError."""
        if number not in self._connections or self._connections[number].closed:
            self._connections[number] = await connect(
                f"broker-{number}", PORT, client_id="test", connect_timeout_ms=1000
            )
        return self._connections[number]

    async def agree(self, topic: str, replicas: tuple[int, ...], limit_s: float = 60) -> bytes:
        """Wait until all replicas have the same log and high watermark. Return the log."""

        def same() -> bool:
            found = [self.replica(number, topic) for number in replicas]
            if not all(found):
                return False
            marks = {(each.log.log_end_offset, each.log.high_watermark) for each in found if each is not None}
            return len(marks) == 1 and all(end == mark for end, mark in marks)

        await self.eventually(same, limit_s)
        logs = {contents(each.log) for number in replicas if (each := self.replica(number, topic)) is not None}
        assert len(logs) == 1
        return logs.pop()
