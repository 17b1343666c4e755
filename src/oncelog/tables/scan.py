"""Read one topic as a table: `oncelog.scan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from oncelog import errors
from oncelog.client.consumer.blocking import Consumer
from oncelog.client.serialization.registry import SchemaRegistry
from oncelog.tables.bounds import ALL, Bounds, Range, microseconds
from oncelog.tables.choosing import Wanted
from oncelog.tables.layout import Layout
from oncelog.tables.ranges import Found, found_ranges, read
from oncelog.tables.source import FAIL, Source

if TYPE_CHECKING:
    import duckdb
    import polars as pl

Progress = Callable[[int], None]
"""Called with the number of offsets that were read since the last call."""


def scan(
    topic: str,
    bootstrap_servers: str | Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    columns: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    offsets: tuple[int | None, int | None] = (None, None),
    partition: int | None = None,
    value_format: str = "auto",
    value_schema: pa.Schema | pa.DataType | str | None = None,
    key_format: str = "auto",
    key_schema: pa.Schema | pa.DataType | str | None = None,
    registry: SchemaRegistry | str | None = None,
    bad_records: str = FAIL,
    max_disorder: timedelta | None = None,
    **options: Any,
) -> Scan:
    """Return a topic as a table, from the records that are committed now. Nothing is read yet.

        oncelog.scan("orders", "localhost:9092", since=datetime.now(UTC) - timedelta(hours=1)).reader()

    The columns are the fields of the value, then `_key`, `_partition`, `_offset`, `_timestamp` and `_headers`. Values
    that are no records are the column `value`. `columns` names those to read; others are not decoded. `since` and
    `until`, `offsets` (first, and after the last) and `partition` limit the records, and what is read from the broker.

    `value_format` is "json", "avro", "string", "bytes" or "auto": Avro if there is a registry and the values have its
    frame, otherwise by a sample. `value_schema` is a pyarrow.Schema for JSON (default: that of the sample), or Avro's
    schema (default: the registry's latest for TOPIC-value). `bad_records="null"` reads values that cannot be decoded
    as nulls. `max_disorder` says how much older than a record before it a record may be: with it, `until` also ends
    the reading. `options` are those of a consumer.

    Raises ConfigError, RegistryError, and the errors of a consumer.
    """
    source = Source(
        bootstrap_servers,
        config,
        options,
        SchemaRegistry(registry) if isinstance(registry, str) else registry,
        {topic: Wanted(key_format, key_schema)},
        {topic: Wanted(value_format, value_schema)},
        bad_records,
        max_disorder,
    )
    bounds = Bounds(
        Range() if partition is None else Range(partition, partition + 1),
        Range(*offsets),
        Range(microseconds("since", since), microseconds("until", until)),
    )
    with source.consumer() as consumer:
        layout = source.layout(consumer, topic)
    found = Scan(source, topic, layout, bounds)
    return found if columns is None else found.select(columns)


class Scan:
    """A topic as a table. It can be read several times, up to the end that the topic has when the reading begins.

    If it is `fixed`, each reading has the same offsets, `found`.

    It has Arrow's PyCapsule interface, so `polars.DataFrame(scan)` or `pyarrow.table(scan)` read it, too.
    """

    def __init__(
        self,
        source: Source,
        topic: str,
        layout: Layout,
        bounds: Bounds = ALL,
        wanted: frozenset[int] | None = None,
        found: Found | None = None,
    ) -> None:
        self.topic, self.layout, self.found = topic, layout, found
        self._source, self._bounds = source, bounds
        self._wanted = sorted(range(len(layout.columns)) if wanted is None else wanted)

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read."""
        return pa.schema([self.layout.schema.field(number) for number in self._wanted])

    def select(self, columns: Sequence[str]) -> Scan:
        """Return a scan of these columns only, in the order of the topic's table. Raises ConfigError."""
        unknown = [name for name in columns if name not in self.layout.schema.names]
        if unknown:
            raise errors.ConfigError(
                f"{self.topic} has no column {unknown[0]!r}; its columns are {', '.join(self.layout.schema.names)}"
            )
        return Scan(self._source, self.topic, self.layout, self._bounds, self.layout.numbers(columns), self.found)

    def within(self, bounds: Bounds) -> Scan:
        """Return a scan of the records that are within these bounds, too. It is not fixed."""
        return Scan(self._source, self.topic, self.layout, self._bounds & bounds, frozenset(self._wanted))

    def fixed(self, consumer: Consumer) -> Scan:
        """Return a scan of the offsets that a reading would begin with now."""
        found = found_ranges(consumer, self.topic, self._bounds)
        return Scan(self._source, self.topic, self.layout, self._bounds, frozenset(self._wanted), found)

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of Arrow batches. The rows of a partition are in order of their offsets."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def polars(self) -> pl.LazyFrame:
        """Return a lazy frame of polars. Its columns and conditions limit what is read."""
        from oncelog.tables.lazy_frame import lazy_frame

        return lazy_frame(self)

    def duckdb(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """Return a relation of a DuckDB connection. Its conditions do not limit what is read: use `oncelog.sql`."""
        return connection.from_arrow(self)

    def batches(self, *, whole: bool = False, progress: Progress | None = None) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches. With `whole`, columns that are not wanted are there, too, as nulls."""
        source, times = self._source, self._bounds.times
        decoding = self.layout.decoding(frozenset(self._wanted), keep_bad=source.bad_records != FAIL)
        with source.consumer() as consumer:
            found = self.found or found_ranges(consumer, self.topic, self._bounds)
            try:
                for table in read(consumer, found, source.stop_us(times), progress, **decoding):
                    yield from self.layout.batches(_in_time(table, times), self._wanted, whole=whole)
            except errors.BadRecordError as error:
                key = "" if error.column == "value" else "key_"
                raise error.with_advice(
                    f"Give the schema ({key}formats of oncelog.sql, {error.column}_schema of oncelog.scan), or read "
                    f"such {error.column}s as null: bad_records='null'"
                ) from None


def _in_time(table: pa.Table, times: Range) -> pa.Table:
    """Return the rows whose time is in a range of microseconds."""
    import pyarrow.compute as pc

    column = table.column("timestamp")
    for limit, keeps in ((times.low, pc.greater_equal), (times.high, pc.less)):
        if limit is not None:
            within = keeps(column.cast(pa.int64()), limit)
            if not pc.all(within).as_py():
                table = table.filter(within)
                column = table.column("timestamp")
    return table
