"""A compacted topic in worlds with three brokers: one client writes keys, with transactions and without."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from oncelog.protocol.records import Record, decode_records
from oncelog.sim.world import World
from support.cluster_clients import Client, Producer, Routes
from support.cluster_plans import BROKERS, Put, Work
from support.cluster_watch import COMPACTED, DiskWatch
from support.raw_client import RefusedError
from support.replica_invariants import InvariantError

WRITER = "compacted-writer"
_PARTITION = COMPACTED, 0
_CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "400",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "10000",
}
"""As in Kafka, a deleted key may return if a replica is away for longer than `delete.retention.ms` (seed 62166)."""


@dataclass
class _Written:
    """One write as its client knows it."""

    key: bytes
    value: bytes | None
    offset: int = -1
    committed: bool | None = None


class Compaction:
    """Write one value after the other, so that the order of all values is known. Invariant 14."""

    def __init__(self, world: World, routes: Routes, disks: DiskWatch, outcomes: Counter[str]) -> None:
        self.over = False
        self.topic_id: UUID
        self._world = world
        self._disks = disks
        self._outcomes = outcomes
        self._client = Client(routes, "")
        self._writer = Client(routes, WRITER)
        self._started = False
        self._history: list[_Written] = []

    async def create(self) -> None:
        """Create the topic. Its segments are small, because the active one is not compacted."""
        self.topic_id = await self._client.create_topic_with(COMPACTED, len(BROKERS), _CONFIGS)
        for client in (self._client, self._writer):
            client.topics[self.topic_id] = COMPACTED

    async def run(self, workload: list[Work], producer: Producer) -> None:
        """Carry out the steps of a plan, and read the topic now and then."""
        for work in workload:
            if not isinstance(work, Put):
                continue
            if self.over:
                return
            if work.commit is None:
                await self._put(producer, work.key, delete=work.delete)
            else:
                await self._transact(producer, work)
            if len(self._history) % 10 == 0:
                await self._read(until_stable=False)
            await asyncio.sleep(work.pause_s)

    def _next(self, key: int, *, delete: bool) -> _Written:
        written = _Written(b"k%d" % key, None if delete else b"c%d" % len(self._history))
        self._history.append(written)
        return written

    async def _put(self, producer: Producer, key: int, *, delete: bool) -> None:
        written = self._next(key, delete=delete)
        written.offset, written.committed = await producer.send(written.value, written.key), True

    async def _transact(self, producer: Producer, work: Put) -> None:
        written = self._next(work.key, delete=work.delete)
        try:
            if not self._started:
                await self._writer.start()
                self._started = True
            written.offset = await self._writer.write(
                self.topic_id, 0, [written.value], self._world.now_ms(), written.key
            )
            for number in range(0 if self.over else work.others):
                await self._put(producer, (work.key + 1 + number % 2) % 3, delete=False)
            await asyncio.sleep(work.stall_s)
            await self._writer.end(bool(work.commit))
            written.committed = work.commit
        except RefusedError as error:
            self._outcomes[error.code.name] += 1
            self._started = False

    async def finish(self) -> None:
        """Decide the last transaction."""
        await self._writer.start()

    async def check(self) -> None:
        """Check the last values, also on the disks of all brokers."""
        records = await self._read(until_stable=True)
        self._outcomes["compacted"] += sum(each.committed is True for each in self._history) - len(records)
        last = {record.key: record for record in records}
        self._last = {key: record for key, record in last.items() if record.value is not None}  # the others may be gone

    async def _read(self, *, until_stable: bool) -> list[Record]:
        """Read all committed records, and check that they are in order, and the last of each key is the last write."""
        records, end = await self._client.read_records(self.topic_id, 0, until_stable=until_stable)
        numbers = [int(record.value[1:]) for record in records if record.value is not None]
        if numbers != sorted(set(numbers)) or any(self._history[number].committed is False for number in numbers):
            raise InvariantError(14, f"{COMPACTED} has {records} after {self._history}")
        last = {record.key: record for record in records}
        for key in {written.key for written in self._history}:
            value = last[key].value if key in last else None
            allowed: list[bytes | None] = [None]
            for written in self._history:
                if written.key != key or written.committed is False:
                    continue
                if written.committed and written.offset < end:
                    allowed.clear()
                allowed.append(written.value)
            if value not in allowed:
                raise InvariantError(14, f"{key!r} has the value {value!r}, instead of one of {allowed}")
        return records

    def check_disk(self, number: int) -> None:
        """Check after a clean stop that a broker has the last value of each key."""
        found = {
            record.offset: (record.key, record.value)
            for header, view in self._disks.batches(number, _PARTITION)
            if not header.is_control
            for record in decode_records(view)
        }
        for key, record in self._last.items():
            if found.get(record.offset) != (key, record.value):
                raise InvariantError(14, f"broker {number} lacks {record}")
