"""Divide Arrow data into pieces, choose each row's partition, and encode the rows as batches, one by one.

Only a few pieces are in memory at a time, besides the table itself. So memory is bounded for a stream of any length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
import numpy as np
import pyarrow as pa

from oncelog import errors
from oncelog.client.producer.batch import RECORD_OVERHEAD
from oncelog.client.producer.partitioner import Partitioner, RoundRobin, Sticky
from oncelog.client.producer.table_sources import TableSource
from oncelog.client.records import LAST_TIMESTAMP, TIMESTAMPS
from oncelog.columns.encode import EncodedBatch, Rows
from oncelog.columns.record_headers import with_header
from oncelog.columns.values import bits, of_headers
from oncelog.protocol.records import HEADER_SIZE
from oncelog.protocol.schema_ids import schema_header
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from oncelog.columns.values import Format

COLUMNS = ("key", "value", "headers", "partition", "timestamp")
HEADROOM = 1024
"""Bytes of max.request.size that are reserved for the request around a batch."""
BATCH_BYTES = 1 << 18
"""Bytes of records in a batch of a table, unless batch.size is larger or max.request.size is smaller."""
PIECE_ROWS = 1 << 18
PIECE_BYTES = 1 << 25
LOOK_AHEAD = 8
ANYWHERE = -1
"""In place of a partition that is chosen when the rows are encoded."""


class MissingPartitionError(Exception):
    """A table names a partition that the client's metadata does not contain."""

    def __init__(self, partition: int) -> None:
        self.partition = partition


class Target(NamedTuple):
    """The topic and the options with which rows are sent."""

    topic: str
    partitions: int
    partitioner: Partitioner
    options: Mapping[str, Any]
    key: Format | None
    value: Format | None
    now_ms: Callable[[], int]


class TableBatches:
    """Encode Arrow data as batches, in the order of the rows within each partition, and keep the remaining rows.

    Iteration yields (partition, encoded batch). It raises UsageError, MissingPartitionError or RecordTooLargeError for
    a row that cannot be sent. If the row is in the first LOOK_AHEAD pieces, it raises before the first batch.
    """

    def __init__(self, data: object, target: Target) -> None:
        self._target = target
        self._source = TableSource(data)
        self._tables = _in_pieces(self._source.batches)
        self._at_hand: _Piece | None = None
        self._ahead: deque[_Piece] = deque()
        self._schema = pa.schema([])
        self._refused: pa.Table | None = None
        """The table that could not be made a piece. Its rows are unsent."""
        self.rows = 0
        """The number of rows in the batches before the current one."""

    def __iter__(self) -> Iterator[tuple[TopicPartition, bytearray]]:
        while len(self._ahead) < LOOK_AHEAD and self._look_at_next():
            pass
        while self._ahead:
            self._at_hand = self._ahead.popleft()
            for part, batch in self._at_hand.batches():
                yield (self._target.topic, part.partition), batch.buffer
                part.sent += batch.count
                self.rows += batch.count
            self._at_hand = None
            if not self._ahead:
                self._look_at_next()

    def _look_at_next(self) -> bool:
        table = self._refused = next(self._tables, None)
        if table is None:
            return False
        self._schema = table.schema
        self._ahead.append(_Piece(table, self._target, self._source))
        self._refused = None
        return True

    def unsent(self) -> pa.RecordBatchReader:
        """Return the rows that are in no batch before the current one, in their order.

        If the source has failed, return the rows that it had yielded.
        """
        left = [] if self._at_hand is None else [self._at_hand.unsent()]
        left += [piece.table for piece in self._ahead]
        left += [] if self._refused is None else [self._refused]
        rest = (batch for table in chain(left, self._tables) for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self._schema, rest)


class _Part:
    """The numbers of a partition's rows in a piece. Partition -1 (ANYWHERE): it is chosen when they are encoded."""

    __slots__ = ("numbers", "partition", "sent")

    def __init__(self, partition: int, numbers: Any) -> None:
        self.partition, self.numbers = partition, numbers
        self.sent = 0


class _Piece:
    """Some rows of the table, validated and ready to be encoded."""

    def __init__(self, table: pa.Table, target: Target, source: TableSource) -> None:
        self.table = table
        self._target = target
        columns = _columns(table, target, source)
        times = _milliseconds(columns, target.now_ms)
        try:
            self._rows = Rows(columns["key"], columns["value"], columns["headers"], times)
        except (TypeError, ValueError) as error:
            raise errors.UsageError(str(error)) from error
        _check_sizes(self._rows, target)
        self._parts = [_Part(*part) for part in _divided(columns, self._rows, table.nbytes, target)]

    def batches(self) -> Iterator[tuple[_Part, EncodedBatch]]:
        """Yield encoded batches, of all partitions in turn, so that a request has one of each.

        Rows without a partition are encoded one batch after the other, and the partition is chosen for each batch. The
        caller counts a batch as `sent`.
        """
        if self._parts and self._parts[0].partition == ANYWHERE:
            for part, batch in chain.from_iterable(map(self._encode_part, self._parts)):
                part.partition = _choose_partition(len(batch.buffer), self._target)
                yield part, batch
            return
        turns = [self._encode_part(part) for part in self._parts]
        while turns:
            continued = []
            for of_partition in turns:
                taken = next(of_partition, None)
                if taken is not None:
                    yield taken
                    continued.append(of_partition)
            turns = continued

    def _encode_part(self, part: _Part) -> Iterator[tuple[_Part, EncodedBatch]]:
        target = self._target
        codec, level = target.options["compression_type"], target.options["compression_level"]
        limit = _batch_limit(target)
        for batch in self._rows.batches(part.numbers, max_batch_bytes=limit, codec=codec, level=level):
            yield part, batch

    def unsent(self) -> pa.Table:
        """Return the rows that are in no batch that was sent."""
        left = [part.numbers[part.sent :] for part in self._parts]
        return _taken(self.table, np.sort(np.concatenate(left)))


def _taken(table: pa.Table, numbers: Any) -> pa.Table:
    """Return these rows of a table. `numbers` are sorted."""
    try:
        return table.take(numbers)
    except pa.ArrowNotImplementedError:  # polars' texts are views, from which Arrow cannot take values
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        return pa.concat_tables([table.slice(0, 0), *(table.slice(int(run[0]), len(run)) for run in runs if len(run))])


def _batch_limit(target: Target) -> int:
    """Bytes of a batch's records, before they are compressed."""
    options = target.options
    wanted = max(options["batch_size"], BATCH_BYTES)
    return int(max(min(options["max_request_size"] - HEADROOM, options["buffer_memory"] // 4, wanted), 1))


def _in_pieces(source: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of about PIECE_ROWS rows or PIECE_BYTES bytes. Combine small batches, and slice large ones.

    If the source fails, yield what it returned before the error, then raise the error.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _until_failure(source):
        if isinstance(batch, Exception):
            if held:
                yield pa.Table.from_batches(held)
            raise batch
        parts = max(-(-batch.num_rows // PIECE_ROWS), -(-batch.nbytes // PIECE_BYTES), 1)
        step = max(-(-batch.num_rows // parts), 1)
        for first in range(0, max(batch.num_rows, 1), step):
            part = batch if parts == 1 else batch.slice(first, step)
            part_size = batch.nbytes // parts
            if held and (rows + part.num_rows > PIECE_ROWS or size + part_size > PIECE_BYTES):
                yield pa.Table.from_batches(held)
                held, rows, size = [], 0, 0
            held.append(part)
            rows, size = rows + part.num_rows, size + part_size
    if held:
        yield pa.Table.from_batches(held)


def _until_failure(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch | Exception]:
    try:
        yield from source
    except Exception as error:  # noqa: BLE001 - `_in_pieces` raises the error of a user's reader later
        yield error


def _columns(table: pa.Table, target: Target, source: TableSource) -> dict[str, Any]:
    """Return the columns of the records, with key and value converted by their formats. Raises UsageError."""
    if len(set(table.column_names)) < len(table.column_names):
        raise errors.UsageError(f"two columns of the table have the same name: {', '.join(table.column_names)}")
    found = {name: table.column(name) if name in table.column_names else None for name in COLUMNS}
    others = [name for name in table.column_names if name not in COLUMNS]
    if target.value is not None:
        if found["value"] is None and others:
            found["value"] = table.select(others).to_struct_array()
            others = []
        if found["value"] is not None:
            found["value"] = _encoded(target.value, found["value"], table, "value")
    if target.key is not None:
        if found["key"] is None:
            raise errors.UsageError("a format for the key needs a column named key")
        found["key"] = _encoded(target.key, found["key"], table, "key")
    _add_schema_headers(found, target)
    if others:
        raise errors.UsageError(_no_part_of_a_record(others, table.column_names, source))
    if found["key"] is None and found["value"] is None:
        names = ", ".join(table.column_names) or "none at all"
        raise errors.UsageError(f"a table needs a column named key or value; this one has {names}")
    return found


def _add_schema_headers(found: dict[str, Any], target: Target) -> None:
    """Add the headers of formats that write the ids of schemas there. Raises UsageError."""
    for name, form in (("key", target.key), ("value", target.value)):
        with_ids, column = of_headers(form), found[name]
        if with_ids is None or with_ids.header is None or column is None:
            continue
        rows = bits(column.buffers()[0], column)
        try:
            found["headers"] = with_header(found["headers"], schema_header(name), with_ids.header, rows)
        except TypeError as error:
            raise errors.UsageError(str(error)) from error


def _no_part_of_a_record(others: list[str], names: list[str], source: TableSource) -> str:
    are, them, they_are = ("s {} are", "them", "they are") if len(others) > 1 else (" {} is", "it", "it is")
    kept = [name for name in names if name in COLUMNS]
    cure = f"remove {them} with {source.selecting(kept)}"
    if "value" not in names:
        cure = f"with value=Json() or value=Avro(schema), {they_are} part of the value"
    return f"the column{are.format(', '.join(others))} not part of a record ({', '.join(COLUMNS)}); {cure}"


def _encoded(form: Format, column: pa.ChunkedArray, table: pa.Table, name: str) -> pa.Array:
    """Return a column converted by a format. `name`: key or value, for messages. Raises UsageError."""
    whole = column if isinstance(column, pa.Array) else column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    try:
        return form.encode(whole)
    except (ValueError, TypeError, NotImplementedError) as error:
        where = f"{name}: " if name in table.column_names else ""
        raise errors.UsageError(f"{type(form).__name__}: {where}{error}") from error


def _milliseconds(columns: Mapping[str, Any], now_ms: Callable[[], int]) -> Any:
    """Return the timestamps in ms; the current time if a row has none. Raises UsageError if `send` would."""
    column = columns["timestamp"]
    if column is None:
        return now_ms()
    kind = column.type
    if pa.types.is_timestamp(kind):
        coarse = kind.unit == "s"  # a finer unit is truncated, a coarser one may exceed 64 bits
        column = _cast(column, pa.timestamp("ms", kind.tz), "timestamp", safe=coarse)
    elif not pa.types.is_integer(kind):
        raise errors.UsageError(
            f"the column timestamp must have a timestamp type or an integer type (ms since the epoch), not {kind}"
        )
    times = _cast(column, pa.int64(), "timestamp").fill_null(now_ms()).to_numpy()
    if len(times):
        wrong = times.min() if times.min() < 0 else times.max()
        if not 0 <= wrong <= LAST_TIMESTAMP:
            raise errors.UsageError(f"the column timestamp has the value {wrong}; {TIMESTAMPS}")
    return times


def _cast(column: Any, kind: pa.DataType, name: str, *, safe: bool = True) -> Any:
    try:
        return column.cast(kind, safe=safe)
    except pa.ArrowException as error:
        raise errors.UsageError(f"the column {name} has a value that is out of range: {error}") from error


def _check_sizes(rows: Rows, target: Target) -> None:
    longest = rows.longest() + RECORD_OVERHEAD + HEADER_SIZE
    names = ("max_request_size", "buffer_memory")
    limit, name = min((target.options[name], name) for name in names)
    if longest > limit:
        raise errors.RecordTooLargeError(f"a record has about {longest} bytes, more than {name} = {limit}")


def _divided(columns: Mapping[str, Any], rows: Rows, size: int, target: Target) -> list[tuple[int, Any]]:
    """Return (partition, numbers of its rows in order) of the partitions with rows, or (ANYWHERE, numbers)."""
    choose = target.partitioner
    keyless = isinstance(choose, Sticky) and (choose.ignore_keys or columns["key"] is None)
    if keyless and columns["partition"] is None:
        many = size >= target.partitions * _batch_limit(target)  # enough for full batches without shares
        shares = [np.arange(rows.count)] if many else _in_shares(rows.count, size, target)
        return [(ANYWHERE, numbers) for numbers in shares]
    placed = _partitions(columns, rows, size, target)
    small = placed.astype(np.uint16) if target.partitions <= 1 << 16 else placed  # sorted digit by digit
    order = np.argsort(small, kind="stable")
    counts = np.bincount(placed, minlength=target.partitions)
    ends = np.cumsum(counts)
    return [(index, order[ends[index] - counts[index] : ends[index]]) for index in np.flatnonzero(counts).tolist()]


def _in_shares(count: int, size: int, target: Target) -> list[Any]:
    """Divide rows without a key into contiguous shares, so that neighbours keep their order. Return their numbers.

    A share has the size of a batch or more. There is one for each partition, or more if that is more than a batch.
    """
    few = min(target.partitions, size // max(target.options["batch_size"], 1))
    shares = min(max(few, size // _batch_limit(target), 1), max(count, 1))
    ends = [count * share // shares for share in range(shares + 1)]
    return [np.arange(first, end) for first, end in pairwise(ends) if first < end]


def _choose_partition(size: int, target: Target) -> int:
    """Return the partition of a share of `size` bytes without a key (KIP-794)."""
    choose = target.partitioner
    assert isinstance(choose, Sticky)
    return choose.take(target.topic, size, target.partitions, in_turn=True)


def _partitions(columns: Mapping[str, Any], rows: Rows, size: int, target: Target) -> Any:
    """Return the partition of each row (int32): that of its column, otherwise that of the partitioner."""
    count = target.partitions
    given = columns["partition"]
    if given is None:
        return _placed(columns, rows, size, target)
    if not pa.types.is_integer(given.type):
        raise errors.UsageError(f"the column partition must have an integer type, not {given.type}")
    named = given.is_valid().to_numpy()
    numbers = _cast(given, pa.int64(), "partition").fill_null(0).to_numpy()
    if len(numbers) and numbers.min() < 0:
        raise errors.UsageError(f"the column partition has the value {numbers.min()}; a partition must not be negative")
    if len(numbers) and numbers.max() >= count:
        raise MissingPartitionError(int(numbers.max()))
    if named.all():
        return numbers.astype(np.int32)
    return np.where(named, numbers, _placed(columns, rows, size, target)).astype(np.int32)


def _placed(columns: Mapping[str, Any], rows: Rows, size: int, target: Target) -> Any:
    topic, count, choose = target.topic, target.partitions, target.partitioner
    if isinstance(choose, RoundRobin):
        return ((choose.take(topic, rows.count) + np.arange(rows.count)) % count).astype(np.int32)
    if not isinstance(choose, Sticky):  # the user's callable gets each row
        keys, values = (_as_bytes(columns[name], rows.count) for name in ("key", "value"))
        pairs = zip(keys, values, strict=True)
        found = np.fromiter((choose(topic, key, value, count) for key, value in pairs), np.int64, rows.count)
        if len(found) and not 0 <= found.min() <= found.max() < count:
            wrong = found.min() if found.min() < 0 else found.max()
            raise errors.UsageError(f"the partitioner returned {wrong}, but topic {topic!r} has {count} partitions")
        return found.astype(np.int32)
    placed = np.full(rows.count, -1, np.int32) if choose.ignore_keys else rows.partitions(count)
    keyless = np.flatnonzero(placed < 0)
    if len(keyless):
        shares = _in_shares(len(keyless), size * len(keyless) // rows.count, target)
        for numbers in shares:
            placed[keyless[numbers]] = _choose_partition(size * len(numbers) // rows.count, target)
    return placed


def _as_bytes(column: Any, count: int) -> list[bytes | None]:
    if column is None:
        return [None] * count
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]
