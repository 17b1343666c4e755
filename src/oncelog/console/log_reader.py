"""Read the batch headers of a part of a partition, with a bound on the bytes of each load.

Kafka has no request for headers, so the records come along and are dropped. What was read is kept while somebody looks,
so each load asks only for what is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client.requests.partition_fetch import fetch_partition
from oncelog.console.log_spans import Batch, batch_of
from oncelog.protocol.aborted import AbortedTransactions
from oncelog.protocol.compression import Buffer
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.records import BatchHeader, iter_batches

if TYPE_CHECKING:
    from oncelog.client.admin.topics import PartitionInfo
    from oncelog.client.discovery.cluster import ClusterClient
    from oncelog.protocol.topics import TopicPartition

FETCH_BYTES = 512 * 1024
FETCHES = 6
"""Fetches of one load, so it reads at most about 3 MiB. The next load continues."""
MOST_BATCHES = 8_000
EMPTY_AT_MOST = 3
"""Responses without a batch in a row that show that nothing is there. A throttled broker returns some, too."""

Fetched = tuple[BatchHeader, memoryview, bool]


class LogReader:
    """The batches of one partition that were read so far."""

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self._begin = -1
        self._stable_at = -1
        self._tail_at = -1
        self._leader_epoch = -1
        self._empty = 0
        """Responses in a row without a batch."""

    async def read(self, cluster: ClusterClient, at: TopicPartition, info: PartitionInfo, begin: int, end: int) -> bool:
        """Read the batches from `begin` to `end` that are not known. Return whether that is complete."""
        if begin < self._begin or self._begin < 0 or info.leader_epoch != self._leader_epoch:
            self.batches = {}  # the log may have been truncated, or the window has moved back
            self._begin = self._stable_at = self._tail_at = begin
            self._leader_epoch = info.leader_epoch
        elif begin > self._begin:
            self._begin = begin
            self.batches = {first: batch for first, batch in self.batches.items() if batch.last >= begin}
            self._stable_at, self._tail_at = max(self._stable_at, begin), max(self._tail_at, begin)
        left = FETCHES
        stable_end, tail_end = min(end, info.last_stable_offset), min(end, info.high_watermark)
        while left and self._stable_at < stable_end and len(self.batches) < MOST_BATCHES:
            left -= 1
            found = await fetch(cluster, at, self._stable_at, isolation_level=1)
            self._stable_at = self._keep(found, self._stable_at, stable_end, decided=True)
        self._tail_at = max(self._tail_at, self._stable_at)
        while left and self._stable_at >= stable_end and self._tail_at < tail_end and len(self.batches) < MOST_BATCHES:
            left -= 1
            found = await fetch(cluster, at, self._tail_at, isolation_level=0)
            self._tail_at = self._keep(found, self._tail_at, tail_end, decided=False)
        return self._stable_at >= stable_end and self._tail_at >= tail_end

    @property
    def read_to(self) -> int:
        """Return the offset up to which the batches are known."""
        return max(self._stable_at, self._tail_at)

    def _keep(self, found: list[Fetched], at: int, end: int, *, decided: bool) -> int:
        for header, view, hidden in found:
            self.batches[header.base_offset] = batch_of(header, view, hidden if decided else None)
            at = max(at, header.next_offset)
        if found:
            self._empty = 0
            return at
        self._empty += 1
        return at if self._empty < EMPTY_AT_MOST else end


async def fetch(
    cluster: ClusterClient, at: TopicPartition, offset: int, *, isolation_level: int, max_bytes: int = FETCH_BYTES
) -> list[Fetched]:
    """Return batches from an offset on, each with its bytes, and whether it belongs to an aborted transaction.

    Without read_committed (`isolation_level` 1), the last value is always False. Raises KafkaError, also for batches of
    Kafka's old message formats (before 0.11) and damaged headers.
    """
    data = await fetch_partition(
        cluster, at, offset, isolation_level=isolation_level, max_bytes=max_bytes, max_wait_ms=0
    )
    aborted = data.aborted_transactions or () if isolation_level else ()
    hidden = AbortedTransactions((item.first_offset, item.producer_id) for item in aborted)
    try:
        return list(_batches(data.records or b"", hidden))
    except ProtocolError as error:
        raise errors.error_for(error.code, f"{at[0]}-{at[1]} from offset {offset} on: {error}") from error


def _batches(records: Buffer, hidden: AbortedTransactions) -> Iterator[Fetched]:
    for header, view in iter_batches(records, partial_ok=True):
        yield header, view, hidden.hides(header, view)
