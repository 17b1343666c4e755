"""Decode record batches from Fetch responses to Arrow tables, without a Python loop over records.

The columns are those of Spark's Kafka source. Like Kafka's consumer (`CompletedFetch`), this module omits all
control batches. If it reads committed records, it omits the batches of aborted transactions, too.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from oncelog.columns.native import kernel
from oncelog.columns.signatures import address, at, at_binary
from oncelog.columns.values import mask
from oncelog.protocol.aborted import AbortedTransactions
from oncelog.protocol.compression import decompress
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import (
    DEFAULT_DECOMPRESSED_LIMIT,
    HEADER_SIZE,
    BatchHeader,
    check_crc,
    iter_batches,
)

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS))

Buffer = bytes | bytearray | memoryview
MAX_CHUNK_BYTES = 1 << 30
"""Payload of one Arrow batch of the table. It is limited because the column's offsets have 32 bits."""
LAST_MS = (2**63 - 1) // 1000
"""The last time in ms that a column of microseconds can hold (in the year 294247)."""
PIECE_BYTES, PIECE_ROWS = 1 << 23, 1 << 16
"""Default limits for one Arrow batch of `decode_pieces`: bytes of decompressed records, and rows."""
SMALLEST_RECORD = 7
"""Bytes of a record without key, value and headers."""


@dataclass(slots=True)
class _Batch:
    """Decompressed records of one batch: all of them, or `count` consecutive ones."""

    header: BatchHeader
    payload: Any
    count: int

    def described(self) -> tuple[int, ...]:
        """Return the numbers that describe this batch to the kernel `decode_batches`.

        The payload is contiguous, because it is an array of `np.frombuffer` or a slice of one.
        """
        header = self.header
        kind = header.timestamp_type
        return (
            address(self.payload), len(self.payload), self.count, header.base_offset,
            header.base_timestamp, kind, header.max_timestamp if kind else -1,
        )  # fmt: skip


def decode_batches(
    chunks: Iterable[Buffer],
    *,
    topic: str,
    partition: int,
    start_offset: int,
    aborted: Sequence[tuple[int, int]] | None = None,
    include_headers: bool = False,
    check_crcs: bool = True,
    end_offset: int | None = None,
    max_bytes: int | None = None,
) -> tuple[pa.Table, int]:
    """Return a table of the records from `start_offset` on and before `end_offset`, and the next offset to read.

    `chunks` are the records of Fetch responses of one partition, in order. An incomplete batch at the end of a chunk is
    omitted. `aborted` has the (producer id, first offset) of each aborted transaction, or is None to read uncommitted
    records. With `max_bytes`, the table ends with the batch that brings the decompressed records to this many bytes.
    For the rest, call this again with the same chunks and the returned offset. Raises ProtocolError (CORRUPT_MESSAGE,
    INVALID_RECORD) for damaged batches.
    """
    next_offset = start_offset
    visible: list[_Batch] = []
    left = max_bytes
    for reached, batch in _unpacked(chunks, aborted, start_offset, end_offset, check_crcs):
        next_offset = reached
        if batch is None:
            continue
        visible.append(batch)
        if left is not None:
            left -= len(batch.payload)
            if left <= 0:
                break
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    tables = [
        _columns(group, topic, partition, start_offset, include_headers) for group in _groups(visible, MAX_CHUNK_BYTES)
    ]
    table = pa.Table.from_batches(tables, schema)
    if end_offset is not None and next_offset > end_offset:
        keep = sum(int(np.searchsorted(_offsets(batch), end_offset)) for batch in tables)
        return table.slice(0, keep), end_offset
    return table, next_offset


def decode_pieces(
    chunks: Iterable[Buffer],
    *,
    topic: str,
    partition: int,
    start_offset: int,
    end_offset: int,
    aborted: Sequence[tuple[int, int]] | None = None,
    include_headers: bool = False,
    max_bytes: int = PIECE_BYTES,
    max_rows: int = PIECE_ROWS,
) -> Generator[pa.RecordBatch, None, int]:
    """Yield the records that `decode_batches` returns in Arrow batches of bounded size; return the next offset.

    An Arrow batch holds at most `max_rows` rows, and at most `max_bytes` of decompressed records or a single larger
    record. Record batches are decompressed one at a time. Raises the ProtocolError of `decode_batches`
    when it reaches the damaged batch.
    """
    reached = start_offset

    def pieces() -> Iterator[_Batch]:
        nonlocal reached
        for following, batch in _unpacked(chunks, aborted, start_offset, end_offset, check_crcs=True):
            if batch is not None:
                yield from _pieces(batch, max_bytes, max_rows)
            reached = following

    for group in _groups(pieces(), max_bytes, max_rows):
        columns = _columns(group, topic, partition, start_offset, include_headers)
        found = columns.slice(0, int(np.searchsorted(_offsets(columns), end_offset)))
        if found.num_rows:
            yield found
        if found.num_rows < columns.num_rows:
            return end_offset
    return min(reached, end_offset)


def _unpacked(
    chunks: Iterable[Buffer],
    aborted: Sequence[tuple[int, int]] | None,
    start_offset: int,
    end_offset: int | None,
    check_crcs: bool,
) -> Iterator[tuple[int, _Batch | None]]:
    """Yield (offset after a batch, its decompressed records). The records are None if the caller needs none of them."""
    next_offset = start_offset
    for header, view in _visible(chunks, aborted):
        if end_offset is not None and header.base_offset >= end_offset:
            yield max(next_offset, end_offset), None  # compaction may have removed all records in between
            return
        next_offset = max(next_offset, header.next_offset)
        if header.is_control or header.count == 0 or header.next_offset <= start_offset:
            yield next_offset, None
            continue
        yield next_offset, _unpack(header, view, check_crcs)


def _unpack(header: BatchHeader, view: memoryview, check_crcs: bool) -> _Batch:
    payload: Buffer = view[HEADER_SIZE:]
    try:
        if check_crcs:
            check_crc(header, view)
        if header.codec:
            payload = decompress(header.codec, payload, DEFAULT_DECOMPRESSED_LIMIT)
    except ProtocolError as error:
        raise ProtocolError(error.code, f"the batch at offset {header.base_offset}: {error}") from error
    if not 0 < header.count <= len(payload) // SMALLEST_RECORD:
        raise _malformed(header)
    return _Batch(header, np.frombuffer(payload, np.uint8), header.count)


def _pieces(batch: _Batch, max_bytes: int, max_rows: int) -> Iterator[_Batch]:
    """Split a batch between records. The last piece has all remaining bytes: bytes after the records are damage."""
    position, left = 0, batch.count
    after = np.zeros(1, np.int64)
    while len(batch.payload) - position > max_bytes or left > max_rows:
        count = kernel("cut_records")(*at("B", batch.payload), position, left, max_bytes, max_rows, *at("q", after))
        if count < 0:
            raise _malformed(batch.header)
        if count == left:
            break
        end = int(after[0])
        yield replace(batch, payload=batch.payload[position:end], count=count)
        position, left = end, left - count
    yield replace(batch, payload=batch.payload[position:], count=left)


def _visible(
    chunks: Iterable[Buffer], aborted: Sequence[tuple[int, int]] | None
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield every batch, including control batches, because they advance the offset.

    The count of a batch of an aborted transaction is set to 0.
    """
    hidden = AbortedTransactions((first_offset, producer_id) for producer_id, first_offset in aborted or ())
    for chunk in chunks:
        for header, view in iter_batches(chunk, partial_ok=True):
            yield header._replace(count=0) if hidden.hides(header, view) else header, view


def _groups(batches: Iterable[_Batch], max_bytes: int, max_rows: int | None = None) -> Iterator[list[_Batch]]:
    """Group consecutive pieces up to these limits. A larger piece is a group of its own."""
    group: list[_Batch] = []
    size = rows = 0
    for batch in batches:
        full = size + len(batch.payload) > max_bytes or (max_rows is not None and rows + batch.count > max_rows)
        if group and full:
            yield group
            group, size, rows = [], 0, 0
        group.append(batch)
        size, rows = size + len(batch.payload), rows + batch.count
    if group:
        yield group


class _Binary:
    """A binary column that kernels fill: Arrow's offsets, validity and data."""

    def __init__(self, rows: int, size: int) -> None:
        self.ends = np.zeros(rows + 1, np.int64)
        self.valid = np.empty(rows, np.uint8)
        self.data = np.empty(size, np.uint8)

    def at(self) -> tuple[int, ...]:
        """Return the column as arguments of a kernel."""
        return at_binary(self.ends, self.valid, self.data)

    def array(self, rows: int, type_: pa.DataType) -> pa.Array:
        ends = self.ends[: rows + 1].astype(np.int32)
        data = self.data[: ends[-1]] if len(ends) else self.data[:0]
        return pa.Array.from_buffers(type_, rows, [mask(self.valid[:rows]), pa.py_buffer(ends), pa.py_buffer(data)])


def _columns(
    batches: list[_Batch], topic: str, partition: int, start_offset: int, include_headers: bool
) -> pa.RecordBatch:
    rows = sum(batch.count for batch in batches)
    size = sum(len(batch.payload) for batch in batches)
    offsets, timestamps = np.empty(rows, np.int64), np.empty(rows, np.int64)
    kinds = np.empty(rows, np.int32)
    keys, values = _Binary(rows, size), _Binary(rows, size)
    items = _header_count(batches) if include_headers else 0
    header_rows = np.zeros(rows + 1 if include_headers else 1, np.int64)
    names, contents = (_Binary(items, size if items else 0) for _ in range(2))
    described = np.array([batch.described() for batch in batches], np.int64).reshape(-1)
    row = kernel("decode_batches")(
        *at("q", described), start_offset, *at("q", offsets), *at("q", timestamps), *at("i", kinds),
        *keys.at(), *values.at(), include_headers, *at("q", header_rows), *names.at(), *contents.at(),
    )  # fmt: skip
    if row < 0:
        raise _malformed(batches[-1 - row].header)
    columns = [
        keys.array(row, pa.binary()),
        values.array(row, pa.binary()),
        pa.repeat(_text(topic), row),
        _fixed(np.full(row, partition, np.int32), pa.int32()),
        _fixed(offsets[:row], pa.int64()),
        _fixed(_microseconds(timestamps[:row]), TIMESTAMP),
        _fixed(kinds[:row], pa.int32()),
    ]
    if not include_headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    used = int(header_rows[row])
    pairs = pa.StructArray.from_arrays(
        [_header_keys(names, used), contents.array(used, pa.binary())], fields=list(HEADERS.value_type)
    )
    lists = pa.ListArray.from_arrays(_fixed(header_rows[: row + 1].astype(np.int32), pa.int32()), pairs)
    return pa.RecordBatch.from_arrays([*columns, lists.cast(HEADERS)], schema=SCHEMA_WITH_HEADERS)


def _header_keys(names: _Binary, count: int) -> pa.Array:
    """Return the keys as text. A malformed sequence becomes U+FFFD, as in Kafka's Java client."""
    keys = names.array(count, pa.string())
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        ends = names.ends
        texts = [bytes(names.data[ends[i] : ends[i + 1]]).decode(errors="replace").encode() for i in range(count)]
        replaced = _Binary(count, 0)
        replaced.ends[1:] = np.cumsum([len(text) for text in texts])
        replaced.valid, replaced.data = names.valid, np.frombuffer(b"".join(texts), np.uint8)
        return replaced.array(count, pa.string())
    return keys


def _fixed(numbers: Any, kind: pa.DataType) -> pa.Array:
    """Return a numpy array as a column.

    `pa.array` would import pandas, which costs half a second of CPU in each of Spark's workers.
    """
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _offsets(batch: pa.RecordBatch) -> Any:
    """Return the offsets in a result of `_columns`. `to_numpy` would import pandas, too."""
    return np.frombuffer(batch.column("offset").buffers()[1], np.int64, batch.num_rows)


def _text(text: str) -> pa.Scalar:
    """Return a string scalar. `pa.scalar` would import pandas, too."""
    data = text.encode()
    ends = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.StringArray.from_buffers(1, ends, pa.py_buffer(data))[0]


def _microseconds(timestamps: Any) -> Any:
    """Convert ms to microseconds. A time that does not fit into 64 bits becomes the first or last one that fits."""
    if len(timestamps) and not -LAST_MS <= timestamps.min() <= timestamps.max() <= LAST_MS:
        timestamps = np.clip(timestamps, -LAST_MS, LAST_MS)
    return timestamps * 1000


def _header_count(batches: list[_Batch]) -> int:
    total = 0
    for batch in batches:
        found = kernel("count_headers")(*at("B", batch.payload), batch.count)
        if found < 0:
            raise _malformed(batch.header)
        total += found
    return total


def _malformed(header: BatchHeader) -> ProtocolError:
    return ProtocolError(
        ErrorCode.INVALID_RECORD, f"the batch at offset {header.base_offset} contains malformed records"
    )
