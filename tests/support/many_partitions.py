"""A simulated world of three brokers with so many partitions that requests and responses are large.

Other worlds have a few partitions, so no worker thread handles their messages. In each round of this one, a client
writes a record to every partition with acks=all, and a broker is killed meanwhile. At the end, the client reads every
partition from its leader: each acknowledged record must be at its offset.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from typing import Any

from oncelog.net.connection import ClientConnection, connect
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch, decode_records, iter_batches
from oncelog.protocol.schema import Message
from oncelog.sim.world import PORT, World
from support.replica_invariants import InvariantError

BROKERS = (1, 2, 3)
TOPIC = "many"
LIMIT_S = 120.0
"""How long everything may take to become healthy, in virtual time."""


class Errors(logging.Handler):
    """Keep the first error that a broker logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of the record, except if a killed process is cleaned up without its event loop."""
        if record.exc_info and str(record.exc_info[1]) == "no running event loop":
            return
        self.first = self.first or logging.Formatter().format(record)


class ManyPartitions:
    """One run. `run` raises InvariantError."""

    def __init__(self, world: World, partitions: int, rounds: int) -> None:
        self.world = world
        self.partitions, self.rounds = partitions, rounds
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """The value at each (partition, offset)."""
        self._rng = world.stream("faults")
        self._connections: dict[int, ClientConnection] = {}

    async def run(self) -> int:
        """Run the world. Return the number of acknowledged records."""
        for number in BROKERS:
            machine = self.world.add_broker(number, min_insync_replicas=2)
            await machine.start()
        await asyncio.sleep(1)  # until each broker knows the others
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=[*BROKERS]) for index in range(self.partitions)
        ]
        topic = CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assignments)
        created = await self._call(1, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        if created is None or created.topics[0].error_code:
            raise InvariantError(12, f"the topic was not created: {created}")
        await self._healthy()
        for number in range(self.rounds):
            fault = asyncio.create_task(self._kill())
            await self._write(b"%d" % number)
            await fault
            await self._healthy()
        if not self.acknowledged:
            raise InvariantError(12, "no record was acknowledged")
        for isolation_level in (0, 1):
            await self._check(isolation_level)
        for machine in self.world.brokers.values():
            await machine.stop()
        return len(self.acknowledged)

    async def _kill(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, 1))
        machine = self.world.brokers[self._rng.choice(BROKERS)]
        machine.kill()
        await asyncio.sleep(self._rng.uniform(0.1, 5))
        await machine.start()

    async def _call(self, broker: int, request: Message, version: int | None = None) -> Any:
        """Return the response of a broker, or None if the connection was lost."""
        try:
            if broker not in self._connections or self._connections[broker].closed:
                self._connections[broker] = await connect(
                    f"broker-{broker}", PORT, request_timeout_ms=90_000, connect_timeout_ms=500
                )
            return await self._connections[broker].call(request, version)
        except ConnectionLostError:
            return None

    async def _leaders(self) -> dict[int, list[int]]:
        """Return the partitions of each leader, as broker 1, 2 or 3 knows them."""
        found: dict[int, list[int]] = {}
        for part in await self._described():
            found.setdefault(part.leader_id, []).append(part.partition_index)
        return found

    async def _described(self) -> list[Any]:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        while True:
            for broker in BROKERS:
                answer = await self._call(broker, request, 9) if self.world.brokers[broker].alive else None
                if answer is not None and not answer.topics[0].error_code:
                    return list(answer.topics[0].partitions)
            await asyncio.sleep(0.1)

    async def _healthy(self) -> None:
        """Wait until all replicas of all partitions are in sync."""
        deadline = self.world.loop.now + LIMIT_S
        while True:
            parts = await self._described()
            bad = [part for part in parts if part.leader_id < 0 or len(part.isr_nodes) < len(BROKERS)]
            if len(parts) == self.partitions and not bad:
                return
            if self.world.loop.now > deadline:
                raise InvariantError(12, f"{len(bad)} of {len(parts)} partitions are unhealthy: {bad[:1]}")
            await asyncio.sleep(0.2)

    async def _write(self, value: bytes) -> None:
        """Write a record to each partition until it is acknowledged."""
        left, deadline = set(range(self.partitions)), self.world.loop.now + LIMIT_S
        batch = bytes(build_batch([Record(0, self.world.now_ms(), None, value)]))
        while left:
            if self.world.loop.now > deadline:
                raise InvariantError(12, f"{len(left)} partitions are not writable, for example {min(left)}")
            leaders = await self._leaders()
            await asyncio.gather(
                *(self._write_to(broker, left & set(some), batch, value, left) for broker, some in leaders.items())
            )
            await asyncio.sleep(0.1)

    async def _write_to(self, broker: int, some: set[int], batch: bytes, value: bytes, left: set[int]) -> None:
        if broker < 0 or not some:
            return
        data = [PartitionProduceData(index=index, records=batch) for index in sorted(some)]
        topic = TopicProduceData(name=TOPIC, partition_data=data)
        answer = await self._call(broker, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]), 11)
        for part in [] if answer is None else answer.responses[0].partition_responses:
            if not part.error_code:
                self.acknowledged[part.index, part.base_offset] = value
                left.discard(part.index)

    async def _check(self, isolation_level: int) -> None:
        """Read all partitions until each acknowledged record is there. Invariant 5.

        A new leader learns from its followers which records are committed.
        """
        deadline = self.world.loop.now + LIMIT_S
        while True:
            found = await self._read(isolation_level)
            wrong = [where for where, value in self.acknowledged.items() if found.get(where) != value]
            if not wrong:
                return
            if self.world.loop.now > deadline:
                where = wrong[0]
                what = f"{self.acknowledged[where]!r} was acknowledged at {where}, which has {found.get(where)!r}"
                raise InvariantError(5, f"{len(wrong)} records: {what}")
            await asyncio.sleep(1)

    async def _read(self, isolation_level: int) -> dict[tuple[int, int], bytes | None]:
        """Return the value at each (partition, offset), from one Fetch of each leader."""
        found: dict[tuple[int, int], bytes | None] = {}
        for broker, some in (await self._leaders()).items():
            named = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in some]
            topic = FetchTopic(topic=TOPIC, partitions=named)
            request = FetchRequest(session_epoch=-1, isolation_level=isolation_level, topics=[topic])
            answer = await self._call(broker, request, 12)
            if answer is None or answer.error_code:
                raise InvariantError(5, f"broker {broker} did not answer a Fetch of {len(some)} partitions: {answer}")
            for part in answer.responses[0].partitions:
                for _, view in iter_batches(memoryview(part.records or b"")):
                    found.update(((part.partition_index, each.offset), each.value) for each in decode_records(view))
        return found


def run_world(seed: int, partitions: int, rounds: int = 3) -> int:
    """Run the world of a seed. Return the number of acknowledged records. Raises InvariantError."""
    errors, logger = Errors(), logging.getLogger("oncelog.sim")
    logger.addHandler(errors)
    try:
        count: int = World(seed).run(lambda world: ManyPartitions(world, partitions, rounds).run(), limit_s=3600)
    except InvariantError as error:
        if errors.first:
            error.add_note(errors.first)
        raise
    finally:
        logger.removeHandler(errors)
    if errors.first:
        raise InvariantError(12, f"a broker has logged an error: {errors.first}")
    return count


def main() -> None:
    """Run the worlds of some seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many (1)")
    parser.add_argument("--partitions", type=int, default=10_000, help="of the topic (10000)")
    parser.add_argument("--rounds", type=int, default=3, help="writes to each partition, and kills (3)")
    options = parser.parse_args()
    logging.getLogger("oncelog.sim").propagate = False
    for seed in range(options.seed, options.seed + options.seeds):
        began = time.monotonic()
        print(f"seed {seed}", flush=True)
        records = run_world(seed, options.partitions, options.rounds)
        print(f"{options.partitions} partitions, {records} acknowledged records, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
