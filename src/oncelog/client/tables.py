"""Arrow tables through the producer and the consumer: the only part of the client that needs pyarrow and numpy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from oncelog import errors
from oncelog.client.batch import TopicPartition
from oncelog.columns.decode import SCHEMA, SCHEMA_WITH_HEADERS, decode_batches
from oncelog.columns.encode import encode_partition, partition_of
from oncelog.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from oncelog.client.delivery import Delivery
    from oncelog.client.reader import Raw, Reader
    from oncelog.client.sender import Sender

COLUMNS = ("key", "value", "headers", "partition", "timestamp")
HEADROOM = 1024
"""What a batch leaves free below max.request.size, for the request around it."""


class TableFuture:
    """The fate of a table: that of all its batches."""

    def __init__(self, deliveries: list[Delivery]) -> None:
        self._deliveries = deliveries

    def done(self) -> bool:
        """Whether every batch has its outcome."""
        return all(delivery.ready for delivery in self._deliveries)

    def result(self, timeout: float | None = None) -> dict[TopicPartition, int]:
        """(topic, partition) -> offset of the table's first record there; raises the first batch's error, if there is
        one.

        `timeout` in seconds, for all together: TimedOutError.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        first: dict[TopicPartition, int] = {}
        for delivery in self._deliveries:
            if not delivery.wait(None if deadline is None else max(deadline - time.monotonic(), 0)):
                raise errors.TimedOutError(f"no answer for a table's batch in {timeout} s")
            delivery.seen = True
            if delivery.error is not None:
                for other in self._deliveries:
                    other.seen = True
                raise delivery.error
            first.setdefault(delivery.tp, delivery.base_offset)
        return first


def _column(table: pa.Table, name: str) -> Any:
    return table.column(name) if name in table.column_names else None


def partitions_of_rows(sender: Sender, topic: str, table: pa.Table) -> Any:
    """The partition of each row, int32: its column, else by key (murmur2), else one that is chosen for the table."""
    count = sender.counts[topic]
    given = _column(table, "partition")
    if given is not None:
        rows = np.asarray(given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given).astype(np.int32)
        if len(rows) and (rows.min() < 0 or rows.max() >= count):
            raise errors.UnknownTopicError(f"topic {topic!r} has partitions 0 to {count - 1}, the table names others")
        return rows
    keys = _column(table, "key")
    rows = np.full(len(table), -1, np.int32) if keys is None else partition_of(keys, count)
    keyless = np.flatnonzero(rows < 0)
    if len(keyless):
        # In contiguous shares: each row's order against its neighbours is kept within its partition.
        rows[keyless] = np.arange(len(keyless)) * count // len(keyless)
    return rows


def send_table(
    sender: Sender, topic: str, table: pa.Table, wait_for_room: Callable[[str, float], None]
) -> TableFuture:
    """Encode a table by partition and put its batches into the accumulator, as they are."""
    unknown = [name for name in table.column_names if name not in COLUMNS]
    if unknown or not {"key", "value"} & set(table.column_names):
        names = ", ".join(table.column_names)
        raise errors.UsageError(f"a table has key, value or both, and some of {', '.join(COLUMNS)}; not {names}")
    rows = partitions_of_rows(sender, topic, table)
    timestamps = _milliseconds(_column(table, "timestamp"))
    order = np.argsort(rows, kind="stable")
    bounds = np.searchsorted(rows[order], np.arange(sender.counts[topic] + 1))
    options = sender.options
    limit = max(min(options["max_request_size"] - HEADROOM, max(options["batch_size"], 1 << 18)), 1)
    deliveries = []
    for partition in range(sender.counts[topic]):
        mine = order[bounds[partition] : bounds[partition + 1]]
        if not len(mine):
            continue
        encoded = encode_partition(
            _column(table, "key"),
            _column(table, "value"),
            _column(table, "headers"),
            timestamps,
            rows=mine,
            max_batch_bytes=limit,
            codec=options["compression_type"],
            level=options["compression_level"],
        )
        deliveries += [_enter(sender, (topic, partition), batch.buffer, wait_for_room) for batch in encoded]
    return TableFuture(deliveries)


def _enter(
    sender: Sender, tp: TopicPartition, data: bytearray, wait_for_room: Callable[[str, float], None]
) -> Delivery:
    deadline = time.monotonic() + sender.options["max_block_ms"] / 1000
    while (batch := sender.append_encoded(tp, data)) is None:
        wait_for_room(tp[0], deadline)
    return batch.delivery


def _milliseconds(column: Any) -> Any:
    """Timestamps in ms: now, where there are none."""
    if column is None:
        return time.time_ns() // 1_000_000
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def decode(reader: Reader, raw: list[Raw], *, include_headers: bool) -> pa.Table:
    """One table of what was fetched; the reader's positions move behind it."""
    tables: list[pa.Table] = []
    for index, (fetched, start) in enumerate(raw):
        topic, partition = fetched.tp
        aborted = None if fetched.aborted is None else [(pid, first) for first, pid in fetched.aborted]
        try:
            table, after = decode_batches(
                [fetched.raw],
                topic=topic,
                partition=partition,
                start_offset=start,
                aborted=aborted,
                include_headers=include_headers,
                check_crcs=reader.options["check_crcs"],
            )
        except ProtocolError as error:
            _go_back(reader, raw[index:])
            if tables:
                break  # what lies before it comes first: the damage is still there at the next poll
            raise errors.error_for(error.code, f"{topic}-{partition} behind offset {start}: {error}") from error
        state = reader.states.get(fetched.tp)
        if state is not None:
            state.consumed = after
        tables.append(table)
    if not tables:
        return (SCHEMA_WITH_HEADERS if include_headers else SCHEMA).empty_table()
    return pa.concat_tables(tables)


def _go_back(reader: Reader, raw: list[Raw]) -> None:
    """What was taken and not given to the user is read again."""
    for fetched, start in reversed(raw):
        state = reader.states.get(fetched.tp)
        if state is not None:
            state.seek(start)
