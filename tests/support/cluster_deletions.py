"""DeleteRecords and retention in worlds with three brokers: one producer writes to a topic and deletes its records."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

from oncelog.log.checkpoint import decode_checkpoint
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.records import iter_batches
from oncelog.protocol.schema import Message
from oncelog.sim.world import World
from support.cluster_clients import Client, Producer, Routes
from support.cluster_plans import BROKERS, Trim, Work
from support.cluster_watch import DiskWatch
from support.replica_invariants import InvariantError

TRIMMED = "trimmed"
KEPT = 6
"""Retention keeps at least this many records at the end, even if a truncation removes some records after them."""
_PARTITION = TRIMMED, 0
_CHECKPOINT = "data/log-start-offset-checkpoint"


class _Deleter(Client):
    def _broker_of(self, request: Message) -> int:
        return (
            self.routes.leader(*_PARTITION)
            if isinstance(request, DeleteRecordsRequest)
            else super()._broker_of(request)
        )


class Deletions:
    """Write and delete in turns, so that the records that each request may delete are known. Invariants 2, 5 and 13."""

    def __init__(self, world: World, routes: Routes, disks: DiskWatch, outcomes: Counter[str]) -> None:
        self.over = False
        self.topic_id: UUID
        self.values: dict[int, bytes] = {}
        """The acknowledged value at each offset."""
        self.start = 0
        """The start offset that a broker has acknowledged."""
        self._world = world
        self._routes = routes
        self._disks = disks
        self._outcomes = outcomes
        self._client = _Deleter(routes, "")
        self._retains = False

    async def create(self, retention_bytes: int) -> None:
        """Create the topic. Its segments are small, so that they are deleted."""
        configs = {"internal.segment.bytes": "400", "retention.bytes": str(retention_bytes)}
        self._retains = retention_bytes >= 0
        self.topic_id = await self._client.create_topic_with(TRIMMED, len(BROKERS), configs)
        self._client.topics[self.topic_id] = TRIMMED

    async def run(self, workload: list[Work], producer: Producer, check: Any) -> None:
        """Carry out the steps of a plan. `check(partition, offset, value)` looks for an acknowledged record."""
        number = 0
        for work in workload:
            if not isinstance(work, Trim):
                continue
            for _ in range(work.count):
                if self.over:
                    return
                await self.write(producer, b"d%d" % number, check)
                number += 1
            upto = max(self.values, default=-1) + 1 - work.keep
            if upto > self.start:
                await self._delete(upto, whole=not work.keep)
            await self._probe()
            await asyncio.sleep(work.pause_s)

    async def write(self, producer: Producer, value: bytes, check: Any) -> None:
        """Write one record."""
        offset = await producer.send(value)
        self.values[offset] = value
        if self._retains:
            self._may_delete(offset + 1 - KEPT)
        check(_PARTITION, offset, value)

    def _may_delete(self, offset: int) -> None:
        self._disks.deletable[_PARTITION] = max(self._disks.deletable[_PARTITION], offset)

    async def _delete(self, offset: int, *, whole: bool) -> None:
        """Delete the records before an offset, or all that are committed, until a leader acknowledges it."""
        self._may_delete(offset)
        wanted = DeleteRecordsPartition(partition_index=0, offset=-1 if whole else offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TRIMMED, partitions=[wanted])], timeout_ms=1000)

        def error_of(response: Any) -> int:
            code: int = response.topics[0].partitions[0].error_code
            # The high watermark of a new leader may be lower for a moment.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if code == ErrorCode.OFFSET_OUT_OF_RANGE else code

        response = await self._client.call(request, error_of)
        found = response.topics[0].partitions[0].low_watermark
        if found > self._disks.deletable[_PARTITION] or (found < offset and not whole):
            raise InvariantError(13, f"DeleteRecords up to {offset} has answered {found}")
        self.start = max(self.start, found)
        self._outcomes["deletions"] += 1

    async def _probe(self) -> None:
        """Read before the acknowledged start. No leader may return these records."""
        start, state = self.start, self._routes.state(*_PARTITION)
        if not start or state.leader not in BROKERS:
            return
        wanted = FetchPartition(
            partition=0,
            current_leader_epoch=state.leader_epoch,
            fetch_offset=max(0, start - 3),
            partition_max_bytes=1 << 16,
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic_id=self.topic_id, partitions=[wanted])],
        )
        try:
            response: Any = await (await self._client.connection(state.leader)).call(request)
        except ConnectionLostError:
            return
        if response.error_code or response.responses[0].partitions[0].error_code:
            return
        for header, _ in iter_batches(response.responses[0].partitions[0].records or b"", partial_ok=True):
            if header.next_offset <= start:
                raise InvariantError(
                    13, f"{state} returns offset {header.base_offset}, although the log starts at {start} for clients"
                )

    async def check(self) -> None:
        """Check that the topic has all records that were not deleted, each once."""
        await self._probe()
        first = max(self.start, self._disks.deletable[_PARTITION])
        records, _ = await self._client.read_records(self.topic_id, 0, first=first)
        found = {record.offset: record.value for record in records if record.offset >= first}
        wanted = {offset: value for offset, value in self.values.items() if offset >= first}
        if found != wanted:
            raise InvariantError(5, f"{TRIMMED} has {found} from {first} on, but {wanted} was acknowledged")

    def check_start(self, number: int) -> None:
        """Check where the log of a broker starts, after a clean stop."""
        files = self._world.brokers[number].disk.files
        entries = decode_checkpoint(bytes(files[_CHECKPOINT].data)) if _CHECKPOINT in files else []
        starts = [int(offset) for topic, _, offset in entries if topic == TRIMMED]
        found = max([self._disks.first(number, _PARTITION), *starts])
        if not self.start <= found <= max(self.start, self._disks.deletable[_PARTITION]):
            raise InvariantError(13, f"the log of broker {number} starts at {found}, instead of {self.start}")
