"""Reads partitions with plain Fetch requests, control records included, for `oncelog topic consume`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from oncelog import errors
from oncelog.client.offsets import EARLIEST, LATEST, list_offsets
from oncelog.net.connection import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from oncelog.protocol.records import Record, decode_control, decode_records, iter_batches

if TYPE_CHECKING:
    from oncelog.client.cluster import ClusterClient

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
MAX_WAIT_MS = 500
MAX_BYTES = 16 * 1024 * 1024
PARTITION_MAX_BYTES = 1024 * 1024
RETRY_S = 0.1


class Start(NamedTuple):
    """Where to begin: `offset`, counted from the end if negative; or the first record at or after `timestamp`."""

    offset: int = 0
    timestamp: int | None = None


BEGINNING = Start(timestamp=EARLIEST)
END = Start(timestamp=LATEST)
STORED = Start(-1, EARLIEST)
"""Where the group is; the reader of a group goes on there by itself."""


class Marker(NamedTuple):
    """A control record: the end of a transaction in this partition."""

    offset: int
    timestamp: int
    commit: bool
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


class Reader:
    """The records of some partitions of a topic, from `start` on."""

    def __init__(
        self, cluster: ClusterClient, topic: str, partitions: Iterable[int], *, isolation: int, markers: bool
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._isolation = isolation
        self._markers = markers
        self.positions: dict[int, int] = dict.fromkeys(partitions, 0)

    async def seek(self, start: Start) -> None:
        """Finds every partition's first offset; a timestamp after the last record means the end."""
        numbers = list(self.positions)
        if start.timestamp is not None:
            self.positions = await self._offsets(numbers, start.timestamp)
            late = [number for number in numbers if self.positions[number] < 0]
            self.positions |= await self._offsets(late, LATEST)
            return
        first, end = await asyncio.gather(self._offsets(numbers, EARLIEST), self.ends())
        for number in numbers:
            wanted = start.offset if start.offset >= 0 else end[number] + start.offset
            self.positions[number] = max(wanted, first[number])
        if all(self.positions[number] > end[number] for number in numbers):
            where = ", ".join(f"{self._topic}-{number} ends at {end[number]}" for number in numbers)
            raise errors.OffsetOutOfRangeError(f"offset {start.offset} is not there yet: {where}")

    async def ends(self) -> dict[int, int]:
        """The end of each partition for this reader: its last stable offset if it reads committed records only."""
        return await self._offsets(list(self.positions), LATEST)

    async def ends_at(self, timestamp: int) -> dict[int, int]:
        """The first offset of each partition whose record is not before a time, or its end."""
        found, ends = await asyncio.gather(self._offsets(list(self.positions), timestamp), self.ends())
        return {number: ends[number] if at < 0 else min(at, ends[number]) for number, at in found.items()}

    async def _offsets(self, numbers: list[int], timestamp: int) -> dict[int, int]:
        wanted = dict.fromkeys(((self._topic, number) for number in numbers), timestamp)
        isolation = self._isolation if timestamp == LATEST else READ_UNCOMMITTED
        found = await list_offsets(self._cluster, wanted, isolation_level=isolation)
        return {number: item.offset for (_, number), item in found.items()}

    async def read(self, ends: dict[int, int] | None = None) -> AsyncIterator[tuple[int, Record | Marker]]:
        """(partition, record), for ever, or up to `ends`."""
        while True:
            wanted = [p for p, at in self.positions.items() if ends is None or at < ends[p]]
            if not wanted:
                return
            for leader, numbers in (await self._by_leader(wanted)).items():
                for data in await self._fetch(leader, numbers):
                    for item in self._items(data):
                        if ends is None or item.offset < ends[data.partition_index]:
                            yield data.partition_index, item

    async def _by_leader(self, numbers: list[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number in numbers:
            leader = (await self._cluster.partition(self._topic, number)).leader
            found.setdefault(leader, []).append(number)
        return found

    async def _fetch(self, leader: int, numbers: list[int]) -> list[PartitionData]:
        """One Fetch; what fails and may pass is tried again in the next round."""
        known = await self._cluster.topic(self._topic)
        partitions = [
            FetchPartition(
                partition=number, fetch_offset=self.positions[number], partition_max_bytes=PARTITION_MAX_BYTES
            )
            for number in numbers
        ]
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=self._isolation,
            topics=[FetchTopic(topic=self._topic, topic_id=known.topic_id, partitions=partitions)],
        )
        try:
            response: FetchResponse = await (await self._cluster.connection(leader)).call(request)
        except (ConnectionLostError, errors.ConnectionFailedError):
            return await self._later()
        codes = {response.error_code, *(data.error_code for item in response.responses for data in item.partitions)}
        for code in codes - {0}:
            if not ErrorCode.of(code).retriable:
                raise errors.error_for(code, f"reading {self._topic}")
        if codes - {0}:
            return await self._later()
        return [data for item in response.responses for data in item.partitions]

    async def _later(self) -> list[PartitionData]:
        self._cluster.topology.forget(self._topic)
        await asyncio.sleep(RETRY_S)
        return []

    def _items(self, data: PartitionData) -> Iterator[Record | Marker]:
        """Records and, where asked for, markers of one answer, without those of aborted transactions."""
        number = data.partition_index
        hidden = Aborted(data) if self._isolation == READ_COMMITTED else None
        for header, view in iter_batches(data.records or b"", partial_ok=True):
            drop = hidden is not None and hidden.hides(header.base_offset, header.producer_id, header.is_transactional)
            if header.is_control and header.count:  # compaction may leave the batch without its marker
                commit, coordinator_epoch = decode_control(view)
                if hidden is not None and not commit:
                    hidden.ended(header.producer_id)
                if self._markers and header.base_offset >= self.positions[number]:
                    yield Marker(
                        header.base_offset,
                        header.max_timestamp,
                        commit,
                        header.producer_id,
                        header.producer_epoch,
                        coordinator_epoch,
                    )
            elif not header.is_control and not drop:
                for record in decode_records(view):
                    if record.offset >= self.positions[number]:
                        yield record
            self.positions[number] = max(self.positions[number], header.next_offset)


class Aborted:
    """The aborted transactions of one answer, followed through its batches (Kafka's `CompletedFetch`)."""

    def __init__(self, data: PartitionData) -> None:
        self._later = sorted((item.first_offset, item.producer_id) for item in data.aborted_transactions or ())
        self._open: set[int] = set()

    def hides(self, base_offset: int, producer_id: int, transactional: bool) -> bool:
        """Whether a batch belongs to an aborted transaction; to be asked for each batch, in order."""
        while self._later and self._later[0][0] <= base_offset:
            self._open.add(self._later.pop(0)[1])
        return transactional and producer_id in self._open

    def ended(self, producer_id: int) -> None:
        """The transaction's ABORT marker was met."""
        self._open.discard(producer_id)
