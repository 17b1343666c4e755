"""Read partitions, including their control records, with plain Fetch requests for `oncelog topic consume`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from oncelog import errors
from oncelog.client.requests.offsets import EARLIEST, LATEST, list_offsets
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.aborted import AbortedTransactions
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from oncelog.protocol.records import Record, decode_control, decode_records, iter_batches

if TYPE_CHECKING:
    from oncelog.client.discovery.cluster import ClusterClient

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
MAX_WAIT_MS = 500
MAX_BYTES = 16 * 1024 * 1024
PARTITION_MAX_BYTES = 1024 * 1024
RETRY_S = 0.1
PROGRESS_S = 30.0
"""How long a read with an end waits for the next record."""


class Start(NamedTuple):
    """Where to begin.

    At `offset`, counted from the end if negative, or at the first record at or after `timestamp`.
    """

    offset: int = 0
    timestamp: int | None = None


BEGINNING = Start(timestamp=EARLIEST)
END = Start(timestamp=LATEST)
STORED = Start(-1, EARLIEST)
"""The group's committed position, at which its consumer starts."""


class Marker(NamedTuple):
    """A control record: the end of a transaction in this partition."""

    offset: int
    timestamp: int
    commit: bool
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


class PartitionTailer:
    """Read the records of some partitions of a topic, and wait for new ones."""

    def __init__(
        self, cluster: ClusterClient, topic: str, partitions: Iterable[int], *, isolation: int, markers: bool
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._isolation = isolation
        self._markers = markers
        self.positions: dict[int, int] = dict.fromkeys(partitions, 0)
        self._rests: dict[int, float] = {}
        """The loop's time until which no Fetch is sent for a partition, because its leader rejected one or is down."""

    async def seek(self, start: Start) -> None:
        """Find every partition's first offset. A timestamp after the last record means the end."""
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
            raise errors.OffsetOutOfRangeError(f"offset {start.offset} does not exist yet: {where}")

    async def ends(self) -> dict[int, int]:
        """Return the end of each partition: with read_committed its last stable offset."""
        return await self._offsets(list(self.positions), LATEST)

    async def ends_at(self, timestamp: int) -> dict[int, int]:
        """Return each partition's offset of the first record at or after a time, or its end."""
        found, ends = await asyncio.gather(self._offsets(list(self.positions), timestamp), self.ends())
        return {number: ends[number] if at < 0 else min(at, ends[number]) for number, at in found.items()}

    async def _offsets(self, numbers: list[int], timestamp: int) -> dict[int, int]:
        wanted = dict.fromkeys(((self._topic, number) for number in numbers), timestamp)
        isolation = self._isolation if timestamp == LATEST else READ_UNCOMMITTED
        found = await list_offsets(self._cluster, wanted, isolation_level=isolation)
        return {number: item.offset for (_, number), item in found.items()}

    async def read(self, ends: dict[int, int] | None = None) -> AsyncIterator[tuple[int, Record | Marker]]:
        """Yield (partition, record), forever or up to `ends`.

        Raises TimedOutError if there are `ends`, and no partition has advanced for `PROGRESS_S`.
        """
        now = asyncio.get_running_loop().time
        advanced = now()
        while True:
            wanted = [p for p, at in self.positions.items() if ends is None or at < ends[p]]
            if not wanted:
                return
            if ends is not None and now() - advanced > PROGRESS_S:
                raise self._timed_out(wanted, ends)
            rests = {number: self._rests.get(number, 0.0) - now() for number in wanted}
            if min(rests.values()) > 0:
                await asyncio.sleep(min(rests.values()))
            before = dict(self.positions)
            ready = [number for number, rest in rests.items() if rest <= 0]
            for leader, numbers in (await self._by_leader(ready)).items():
                for data in await self._fetch(leader, numbers):
                    for item in self._items(data):
                        if ends is None or item.offset < ends[data.partition_index]:
                            yield data.partition_index, item
            if self.positions != before:
                advanced = now()

    def _timed_out(self, numbers: list[int], ends: dict[int, int]) -> errors.TimedOutError:
        where = "; ".join(
            f"{self._topic}-{number} has not returned the records from offset {self.positions[number]} to its end "
            f"{ends[number]}"
            for number in numbers
        )
        return errors.TimedOutError(f"no record arrived for {PROGRESS_S:g} s: {where}")

    async def _by_leader(self, numbers: list[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number in numbers:
            leader = (await self._cluster.partition(self._topic, number)).leader
            found.setdefault(leader, []).append(number)
        return found

    async def _fetch(self, leader: int, numbers: list[int]) -> list[PartitionData]:
        """Send one Fetch.

        Omit and pause partitions that fail with a retriable error, so that the others do not wait for them.
        """
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
            return self._later(numbers)
        found = [data for item in response.responses for data in item.partitions]
        for code in {response.error_code, *(data.error_code for data in found)} - {0}:
            if not ErrorCode.of(code).retriable:
                raise errors.error_for(code, f"Fetch of topic {self._topic!r}")
        if response.error_code:
            return self._later(numbers)
        self._later([data.partition_index for data in found if data.error_code])
        return [data for data in found if not data.error_code]

    def _later(self, numbers: list[int]) -> list[PartitionData]:
        if numbers:
            self._cluster.topology.forget(self._topic)
        self._rests |= dict.fromkeys(numbers, asyncio.get_running_loop().time() + RETRY_S)
        return []

    def _items(self, data: PartitionData) -> Iterator[Record | Marker]:
        """Yield the records and, if wanted, the markers of one response, without aborted transactions."""
        number = data.partition_index
        aborted = data.aborted_transactions if self._isolation == READ_COMMITTED else None
        hidden = AbortedTransactions((item.first_offset, item.producer_id) for item in aborted or ())
        for header, view in iter_batches(data.records or b"", partial_ok=True):
            drop = hidden.hides(header, view)
            if header.is_control:
                # compaction may leave the batch without its marker
                if self._markers and header.count and header.base_offset >= self.positions[number]:
                    commit, coordinator_epoch = decode_control(view)
                    yield Marker(
                        header.base_offset,
                        header.max_timestamp,
                        commit,
                        header.producer_id,
                        header.producer_epoch,
                        coordinator_epoch,
                    )
            elif not drop:
                for record in decode_records(view):
                    if record.offset >= self.positions[number]:
                        yield record
            self.positions[number] = max(self.positions[number], header.next_offset)


async def tail(
    cluster: ClusterClient, topic: str, partitions: Collection[int], start: Start, *, isolation: int, markers: bool
) -> PartitionTailer:
    """Return a tailer of these partitions, or of all if none is named, at `start`. Raises UnknownTopicError."""
    known = await cluster.topic(topic)
    for partition in partitions:
        await cluster.partition(topic, partition)
    tailer = PartitionTailer(
        cluster, topic, sorted(partitions or known.partitions), isolation=isolation, markers=markers
    )
    await tailer.seek(start)
    return tailer
