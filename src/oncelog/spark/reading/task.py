"""Run a task of the source: read one range of offsets as Arrow batches, and prefetch the next Fetch response.

A task holds at most two Fetch responses of `kafka.max.partition.fetch.bytes` each (or a single larger batch), one
decompressed record batch, and one Arrow batch of bounded size. A slow query delays the next Fetch, but memory does not
grow.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages import fetch as fe
from oncelog.protocol.records import is_partial
from oncelog.protocol.schema import NO_UUID
from oncelog.spark.cluster import partitions
from oncelog.spark.cluster.nearest import NearestReplica
from oncelog.spark.commit.errors import SinkError
from oncelog.spark.reading.offsets import EARLIEST, LATEST, Range, shown
from oncelog.spark.reading.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("oncelog.spark")

FETCH_WAIT_MS = 100
METADATA_MAX_AGE_MS = 300_000
_BASE_AND_LENGTH, _LAST_DELTA = struct.Struct(">qi"), struct.Struct(">i")


class DataLossError(SinkError):
    """Offsets that the query needs are no longer in the log."""


def report_loss(what: str, *, fail: bool, then: str = "", instead: str = "") -> None:
    """Raise DataLossError, or log a warning with failOnDataLoss=false.

    `then` says what a query with failOnDataLoss=false does. `instead` is better advice, which the error gives first.
    """
    if fail:
        advice = f"{what}; {instead}to continue without these records, set failOnDataLoss=false"
        raise DataLossError(f"{advice}: {then}" if then else advice)
    log.warning("%s", f"{what}; {then}" if then else what)


@dataclass
class Reading:
    """One run through a range. `topic_id`: the topic of the plan; zero if the plan does not know it."""

    cluster: BlockingCluster
    options: SourceOptions
    range: Range
    topic_id: UUID = NO_UUID

    def __post_init__(self) -> None:
        rack = self.options.rack
        age_ms: int = self.options.client.get("metadata_max_age_ms", METADATA_MAX_AGE_MS)
        self._nearest = NearestReplica(rack, age_ms / 1000) if rack else None
        self._convert: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
        if self.options.typed.converts:
            from oncelog.spark.formats.columns import TypedColumns

            self._convert = TypedColumns(self.options.typed, headers=self.options.include_headers).typed

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records as Arrow batches until the position reaches the end of the range.

        Control records have offsets, too, so the last record may be before the end.
        """
        try:
            if not self._same_topic():
                return
            yield from self._batches()
        except errors.UnknownTopicError as error:
            self._report_loss(
                f"{shown([self.range.at])} no longer exists, so {self.range.size} offsets of it are lost: {error}"
            )

    def _report_loss(self, what: str) -> None:
        report_loss(what, fail=self.options.fail_on_data_loss)

    def _same_topic(self) -> bool:
        at = self.range.at
        found = self.cluster.topic(at.topic).topic_id
        if NO_UUID in (found, self.topic_id) or found == self.topic_id:
            return True
        self._report_loss(
            f"topic {at.topic!r} was deleted and created again after this batch was planned, so offsets "
            f"{self.range.start} to {self.range.end - 1} of {shown([at])} in this batch are lost"
        )
        return False

    def _batches(self) -> Iterator[pa.RecordBatch]:
        from oncelog.columns.decode import decode_pieces

        at, end, options = self.range.at, self.range.end, self.options
        position, moved = self.range.start, time.monotonic()
        under_way = self._fetch(position)
        try:
            while position < end:
                answer = under_way.result()
                if answer.error_code:
                    patient = time.monotonic() - moved < options.patience.poll_ms / 1000
                    there = self._after_gap(position, patient=patient)
                    if there > position:
                        position, moved = there, time.monotonic()
                    under_way = self._fetch(position)
                    continue
                records = answer.records or b""
                after = max(_end_of_batches(records), position)
                if after < end:
                    under_way = self._fetch(after)
                aborted = [(a.producer_id, a.first_offset) for a in answer.aborted_transactions or ()]
                try:
                    pieces = decode_pieces(
                        [records],
                        topic=at.topic,
                        partition=at.partition,
                        start_offset=position,
                        aborted=aborted if options.committed else None,
                        include_headers=options.include_headers or options.typed.reads_headers,
                        end_offset=end,
                    )
                    reached = yield from pieces if self._convert is None else _converted(pieces, self._convert)
                except ProtocolError as error:
                    where = f"Fetch of {shown([at])} at offset {position}"
                    raise errors.error_for(error.code, f"{where}: {error}") from error
                if reached > position:
                    position, moved = reached, time.monotonic()
                elif time.monotonic() - moved > options.patience.poll_ms / 1000:
                    self._stalled(position, answer)
                    return
        finally:
            under_way.cancel()

    def _fetch(self, position: int) -> Future[fe.PartitionData]:
        isolation = partitions.READ_COMMITTED if self.options.committed else partitions.READ_UNCOMMITTED
        return self.cluster.start(
            partitions.fetch_async(
                self.cluster, self.range.at, position, isolation, self.options.fetch_bytes, FETCH_WAIT_MS, self._nearest
            )
        )

    def _after_gap(self, position: int, *, patient: bool) -> int:
        """Return the offset to continue at after an offset that is out of range.

        Return the same offset if a broker that has just started may not know it yet.
        """
        at, end = self.range.at, self.range.end
        first = partitions.list_offsets(self.cluster, {at: EARLIEST})[at]
        if first <= position:
            last = partitions.list_offsets(self.cluster, {at: LATEST})[at]
            if patient and position < last:
                time.sleep(FETCH_WAIT_MS / 1000)
                return position
            self._report_loss(
                f"{shown([at])} ends at offset {last}, so offsets {position} to {end - 1} of this batch are lost"
            )
            return end
        upto = min(first, end)
        self._report_loss(
            f"{shown([at])} begins at offset {first}, so offsets {position} to {upto - 1} of this batch are lost"
        )
        return upto

    def _stalled(self, position: int, answer: fe.PartitionData) -> None:
        shown_to = answer.last_stable_offset if self.options.committed else answer.high_watermark
        self._report_loss(
            f"{shown([self.range.at])} ends at offset {shown_to}, but this batch ends at {self.range.end}; no record "
            f"arrived from {position} on (kafkaConsumer.pollTimeoutMs = {self.options.patience.poll_ms})",
        )


def _converted(
    pieces: Generator[pa.RecordBatch, None, int], convert: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Generator[pa.RecordBatch, None, int]:
    """Yield the converted batches, and return what `pieces` returns."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return int(end.value)
        yield convert(piece)


def _end_of_batches(records: bytes | bytearray | memoryview) -> int:
    """Return the offset after the last whole batch, or -1 if there is none. The next Fetch starts there."""
    position, after, size = 0, -1, len(records)
    while position < size and not is_partial(records, position):
        base, length = _BASE_AND_LENGTH.unpack_from(records, position)
        after = base + _LAST_DELTA.unpack_from(records, position + 23)[0] + 1
        position += max(length, 0) + _BASE_AND_LENGTH.size
    return after
