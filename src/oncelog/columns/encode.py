"""Encode rows of an Arrow table to record batches for one partition, without a Python loop over records.

Producer id, epoch and sequence are not known yet when rows are encoded. `protocol.records.stamp` writes them and the
checksum when a batch is drained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.columns.fitting import plain
from oncelog.columns.native import kernel
from oncelog.columns.record_headers import header_parts
from oncelog.columns.signatures import TOO_SMALL, at, at_binary
from oncelog.columns.values import buffers, numbers, valid_bits
from oncelog.protocol.compression import Codec, compress
from oncelog.protocol.records import HEADER_SIZE, put_header

DEFAULT_BATCH_BYTES = 1 << 20
_NO_BYTES = np.zeros(0, np.uint8)
_NO_ENDS = np.zeros(1, np.int64)


@dataclass(slots=True)
class EncodedBatch:
    """One batch without producer fields and checksum, which `stamp` writes. Times are in ms."""

    buffer: bytearray
    count: int
    max_timestamp: int


def partition_of(keys: pa.Array | pa.ChunkedArray, partitions: int) -> Any:
    """Return the partition that Kafka's Java producer chooses for each key.

    The result is an int32 numpy array, with -1 for rows without a key. Raises ValueError if there are no partitions.
    """
    return _partitions(_Column(keys, "key"), partitions)


def _partitions(column: _Column, partitions: int) -> Any:
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, not {partitions}")
    out = np.empty(column.rows, np.int32)
    kernel("murmur2_partitions")(*column.at(), partitions, *at("i", out))
    return out


class Rows:
    """Rows that are ready to be encoded for any number of partitions, as Arrow buffers for the kernels.

    `key` and `value` are binary or string columns of any Arrow type, or None if all are null. `headers` is a column of
    maps, or of lists of structs (key, value). `timestamps` is one number in ms for all rows, or an Arrow or numpy array
    with one per row: numbers in ms, or Arrow timestamps. Raises TypeError for other column types. Raises ValueError for
    columns of different lengths, and for null timestamps and header keys.
    """

    def __init__(
        self,
        key: pa.Array | pa.ChunkedArray | None,
        value: pa.Array | pa.ChunkedArray | None,
        headers: pa.Array | pa.ChunkedArray | None = None,
        timestamps: Any = 0,
    ) -> None:
        columns = [column for column in (key, value, headers) if column is not None]
        self.count = len(columns[0]) if columns else 0
        if any(len(column) != self.count for column in columns):
            raise ValueError("key, value and headers must have the same number of rows")
        self._times = _timestamps(timestamps, self.count)
        self._key, self._value, self._headers = key is not None, value is not None, headers is not None
        self._keys, self._values = _Column(key, "key"), _Column(value, "value")
        self._lists = _Headers(headers)

    def partitions(self, count: int) -> Any:
        """Return the partition of each row among `count` partitions, like `partition_of`."""
        if not self._key:
            return np.full(self.count, -1, np.int32)
        return _partitions(self._keys, count)

    def longest(self) -> int:
        """Return the size of the largest row: the bytes of its key, value and headers."""
        lists = self._lists
        return kernel("longest_row")(
            self.count, self._key, *at("q", self._keys.ends), self._value, *at("q", self._values.ends),
            self._headers, *at("q", lists.rows), *at("q", lists.names.ends), *at("q", lists.values.ends),
        )  # fmt: skip

    def batches(
        self, rows: Any = None, *, max_batch_bytes: int, codec: Codec = Codec.NONE, level: int | None = None
    ) -> Iterator[EncodedBatch]:
        """Yield batches of at most `max_batch_bytes` before compression, but of at least one record each.

        `rows` is a numpy array of the row numbers to encode, in this order. The default is all rows. Raises ValueError
        for row numbers that do not exist.
        """
        chosen = np.arange(self.count, dtype=np.int64) if rows is None else np.ascontiguousarray(rows, np.int64)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < self.count:
            raise ValueError(f"row numbers {chosen.min()} to {chosen.max()} exceed a table of {self.count} rows")
        times, keys, values, lists = self._times, self._keys, self._values, self._lists
        columns = (
            *at("q", times), self._key, *keys.at(), self._value, *values.at(), self._headers, *at("q", lists.rows),
            *at("q", lists.names.ends), *at("B", lists.names.data), *lists.values.at(),
        )  # fmt: skip
        chosen_at = at("q", chosen)
        result = np.empty(2, np.int64)
        result_at = at("q", result)
        encode_records = kernel("encode_records")
        limit = max(max_batch_bytes - HEADER_SIZE, 1)
        space = limit
        first = 0
        while first < len(chosen):
            base_timestamp = int(times[chosen[first]])
            buffer = bytearray(HEADER_SIZE + space)
            out = np.frombuffer(buffer, np.uint8, space, HEADER_SIZE)
            count = encode_records(*chosen_at, first, limit, base_timestamp, *columns, *at("B", out), *result_at)
            del out  # an exported buffer could not be cut to size below
            size, latest = result.tolist()
            if count == TOO_SMALL:
                space = size
                continue
            space = limit
            del buffer[HEADER_SIZE + size :]
            yield _batch(buffer, count, base_timestamp, latest, codec, level)
            first += count


def encode_partition(
    key: pa.Array | pa.ChunkedArray | None,
    value: pa.Array | pa.ChunkedArray | None,
    headers: pa.Array | pa.ChunkedArray | None = None,
    timestamps: Any = 0,
    *,
    rows: Any = None,
    max_batch_bytes: int = DEFAULT_BATCH_BYTES,
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> list[EncodedBatch]:
    """Return the batches of these columns for one partition. See `Rows` and `Rows.batches`."""
    made = Rows(key, value, headers, timestamps)
    return list(made.batches(rows, max_batch_bytes=max_batch_bytes, codec=codec, level=level))


def _batch(
    buffer: bytearray, count: int, base_timestamp: int, max_timestamp: int, codec: Codec, level: int | None
) -> EncodedBatch:
    """Compress the records, and write the header in front of them."""
    if codec != Codec.NONE:
        packed = compress(codec, memoryview(buffer)[HEADER_SIZE:], level)
        buffer = bytearray(HEADER_SIZE)
        buffer += packed
    put_header(buffer, count, int(codec), base_timestamp, max_timestamp)
    return EncodedBatch(buffer, count, max_timestamp)


class _Column:
    """A binary or string column as arrays for the kernels.

    The data is copied only if it is in several chunks, or if the column is a dictionary, runs or a view.
    """

    def __init__(self, column: pa.Array | pa.ChunkedArray | None, name: str) -> None:
        if column is None:
            self.rows, self.ends, self.valid, self.data = 0, _NO_ENDS, _NO_BYTES, _NO_BYTES
            return
        array = plain(_single_array(column))
        kind = array.type
        if pa.types.is_null(kind):
            array = array.cast(pa.binary())
        elif pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
            array = array.cast(pa.large_binary())
        elif not (
            pa.types.is_fixed_size_binary(kind)
            or pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
            or pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
        ):
            raise TypeError(
                f"the column {name} must be binary or string, not {kind}; cast it, or pass a format that encodes it "
                "(oncelog.formats)"
            )
        self.rows = len(array)
        self.valid = valid_bits(array)
        if pa.types.is_fixed_size_binary(array.type):
            self.ends = np.arange(array.offset, array.offset + self.rows + 1, dtype=np.int64) * array.type.byte_width
            data = array.buffers()[1]
            self.data = _NO_BYTES if data is None else np.frombuffer(data, np.uint8)
        else:
            self.ends, self.data = buffers(array)

    def at(self) -> tuple[int, ...]:
        """Return the column as arguments of a kernel."""
        return at_binary(self.ends, self.valid, self.data)


class _Headers:
    """A column of headers: maps, or lists of structs (key, value)."""

    def __init__(self, column: pa.Array | pa.ChunkedArray | None) -> None:
        if column is None:
            self.rows, self.names, self.values = _NO_ENDS, _Column(None, ""), _Column(None, "")
            return
        counts, names, values = header_parts(column)
        self.rows = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self.rows[1:])
        self.names, self.values = _Column(names, "headers.key"), _Column(values, "headers.value")
        if not self.names.valid.all():
            row = int(np.searchsorted(self.rows, np.argmin(self.names.valid), "right")) - 1
            raise ValueError(f"column headers: a header of row {row} has no key")


def _single_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _timestamps(timestamps: Any, rows: int) -> Any:
    if isinstance(timestamps, int):
        return np.full(rows, timestamps, np.int64)
    if isinstance(timestamps, pa.Array | pa.ChunkedArray):
        array = _single_array(timestamps)
        if array.null_count:
            raise ValueError(f"{array.null_count} of {len(array)} timestamps are null")
        if pa.types.is_timestamp(array.type):
            milliseconds = pc.CastOptions(pa.timestamp("ms", array.type.tz), allow_time_truncate=True)
            array = array.cast(options=milliseconds).cast(pa.int64())
        is_long = pa.types.is_int64(array.type)
        timestamps = numbers(array, np.int64) if is_long else array.to_numpy(zero_copy_only=False)
    times = np.ascontiguousarray(timestamps, np.int64)
    if times.shape != (rows,):
        raise ValueError(f"timestamps have shape {times.shape}, but there are {rows} rows")
    return times
