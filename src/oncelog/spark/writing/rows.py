"""Write a task's rows from Arrow batches into the partitions, and wait for every response."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.discovery.reasons import known_partitions
from oncelog.client.producer.batch import RECORD_OVERHEAD
from oncelog.columns.encode import EncodedBatch, Rows, partition_of
from oncelog.columns.values import numbers, valid_bits
from oncelog.protocol.compression import Codec
from oncelog.protocol.records import HEADER_SIZE, next_sequence, stamp
from oncelog.spark.cluster import partitions
from oncelog.spark.cluster.transactions import outcome_of
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Owner, Span
from oncelog.spark.writing.options import OVERHEAD_BYTES, SinkOptions

CODECS = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


class RowWriter:
    """Write the rows of an iterator in one transaction. ProduceRows calls it once.

    `first_turn`: the partition, modulo their number, of the first rows that name none and have no key.
    """

    def __init__(
        self,
        cluster: BlockingCluster,
        options: SinkOptions,
        iterator: Iterator[pa.RecordBatch],
        *,
        new_protocol: bool,
        first_turn: int,
    ) -> None:
        self.cluster, self.options, self.iterator, self.new_protocol = cluster, options, iterator, new_protocol
        self._spans: dict[TopicPartition, Span] = {}
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        self._counts: dict[str, int] = {}
        self._turns: dict[str, int] = defaultdict(lambda: first_turn)
        self._codec = CODECS[options.compression]

    def peek(self) -> bool:
        """Compute Arrow batches until one has rows, and keep it. Return whether there is one."""
        for batch in self.iterator:
            if batch.num_rows:
                self.iterator = chain([batch], self.iterator)
                return True
        return False

    def __call__(self, owner: Owner) -> op.Rows:
        """Write all rows, or only count them if the batch is committed already."""
        count = 0
        for batch in self.iterator:
            count += batch.num_rows
            if owner.pid >= 0 and batch.num_rows:
                outcome = self._write(owner, batch)
                if outcome is not op.RequestOutcome.DONE:
                    return op.Rows(outcome, 0, ())
        return op.Rows(op.RequestOutcome.DONE, count, tuple(self._spans[at] for at in sorted(self._spans)))

    def _write(self, owner: Owner, batch: pa.RecordBatch) -> op.RequestOutcome:
        made = self._rows_of(batch)
        queues = {at: deque(self._encode(made, rows)) for at, rows in self._divide(batch)}
        # Batches of one partition go one after the other, those of different partitions at the same time.
        while queues:
            outcome = self._send(owner, {at: queue.popleft() for at, queue in queues.items()})
            if outcome is not op.RequestOutcome.DONE:
                return outcome
            queues = {at: queue for at, queue in queues.items() if queue}
        return op.RequestOutcome.DONE

    def _send(self, owner: Owner, turn: dict[TopicPartition, EncodedBatch]) -> op.RequestOutcome:
        calls = []
        for at, encoded in turn.items():
            stamp(encoded.buffer, owner.pid, owner.epoch, self._sequences[at], transactional=True)
            self._sequences[at] = next_sequence(self._sequences[at], encoded.count)
            calls.append(
                partitions.produce_async(self.cluster, owner, at, encoded.buffer, new_protocol=self.new_protocol)
            )
        for (at, encoded), response in zip(turn.items(), self.cluster.run_many(calls), strict=True):
            outcome = outcome_of(response, f"Produce into {at.topic}-{at.partition}")
            if outcome is not op.RequestOutcome.DONE:
                return outcome
            first = response.responses[0].partition_responses[0].base_offset
            known = self._spans.get(at)
            self._spans[at] = Span(at, first if known is None else known.first, first + encoded.count - 1)
        return op.RequestOutcome.DONE

    def _rows_of(self, batch: pa.RecordBatch) -> Rows:
        """Return the rows, ready to be encoded. Raises MisuseError, before anything of the Arrow batch is written."""
        now_ms = int(time.time() * 1000)
        try:
            made = Rows(_column(batch, "key"), batch.column("value"), _column(batch, "headers"), now_ms)
        except ValueError as error:
            raise MisuseError(str(error)) from error
        limit, longest = self.options.max_request_size, made.longest() + HEADER_SIZE + RECORD_OVERHEAD
        if longest > limit:
            raise MisuseError(
                f"option kafka.max.request.size={limit}: a row has about {longest} bytes of key, value and headers; "
                "raise the option, and max.message.bytes of the topic if necessary"
            )
        return made

    def _encode(self, made: Rows, rows: Any) -> list[EncodedBatch]:
        limit = self.options.max_request_size - OVERHEAD_BYTES
        return list(made.batches(rows, max_batch_bytes=limit, codec=self._codec))

    def _divide(self, batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Any]]:
        """Yield (partition, numbers of its rows)."""
        for topic, rows in self._by_topic(batch):
            count = self._partitions(topic)
            placed = self._place(batch, rows, topic, count)
            for partition in np.unique(placed):
                yield TopicPartition(topic, int(partition)), rows[placed == partition]

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
        every = np.arange(batch.num_rows, dtype=np.int64)
        if self.options.topic is not None:
            yield self.options.topic, every
            return
        column = batch.column("topic")
        if column.null_count:
            raise MisuseError("column topic: a row has no topic; fill the column, or set option topic")
        named = column.dictionary_encode()
        codes = numbers(named.indices, np.int32)
        topics = named.dictionary.to_pylist()
        if self.options.decision_topic in topics:
            raise MisuseError(
                f"column topic: a row names {self.options.decision_topic}, which is the sink's decision topic (option "
                "decisionTopic); only the sink may write to it"
            )
        for code, topic in enumerate(topics):
            yield topic, every[codes == code]

    def _place(self, batch: pa.RecordBatch, rows: Any, topic: str, count: int) -> Any:
        """Return the partition of each row: its column's, otherwise its key's, otherwise the next in turn."""
        placed = np.full(len(rows), self._turns[topic] % count, np.int32)
        self._turns[topic] += 1
        if "key" in batch.schema.names:
            by_key = partition_of(batch.column("key"), count)[rows]
            placed = np.where(by_key < 0, placed, by_key)
        if "partition" in batch.schema.names:
            column = batch.column("partition")
            given = numbers(column, np.int32)[rows]  # undefined where `named` is false
            named = valid_bits(column)[rows] != 0
            if bool((named & ((given < 0) | (given >= count))).any()):
                known = known_partitions(topic, count)
                raise MisuseError(f"column partition: a row has an unknown partition; {known}")
            placed = np.where(named, given, placed)
        return placed

    def _partitions(self, topic: str) -> int:
        if topic not in self._counts:
            try:
                self._counts[topic] = len(self.cluster.topic(topic).partitions)
            except errors.UnknownTopicError as error:
                raise MisuseError(
                    f"topic {topic!r} does not exist; create it with `oncelog topic create {topic}`"
                ) from error
        return self._counts[topic]


def _column(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name) if name in batch.schema.names else None
