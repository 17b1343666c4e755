"""Run SQL on topics, with DuckDB: `oncelog.sql`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

try:
    import duckdb
except ImportError as missing:
    raise ImportError("SQL on topics requires DuckDB; run `pip install 'oncelog[sql]'`") from missing

from oncelog import errors
from oncelog.client.consumer.blocking import Consumer
from oncelog.client.serialization.registry import SchemaRegistry
from oncelog.columns.json_types import JSON_TEXT
from oncelog.tables.bounds import OFFSET, PARTITION, TIMESTAMP
from oncelog.tables.choosing import Wanted
from oncelog.tables.parser import Parser
from oncelog.tables.plan import Need, Reading, column_name, needs, table_names
from oncelog.tables.result_types import readable
from oncelog.tables.scan import Progress, Scan
from oncelog.tables.source import FAIL, Source
from oncelog.tables.sqlite_tables import SqliteTable, quoted

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

RESULT_ROWS = 10_000
"""The rows of a batch of a result."""
Given = Mapping[str, str | Wanted]
"""Formats by topic: "json", or `Wanted` with a schema."""


def sql(
    query: str,
    bootstrap_servers: str | Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    formats: Given | None = None,
    key_formats: Given | None = None,
    registry: SchemaRegistry | str | None = None,
    sqlite: Mapping[str, str] | None = None,
    bad_records: str = FAIL,
    max_disorder: timedelta | None = None,
    memory_limit: str | None = None,
    **options: Any,
) -> Query:
    """Return the result of a SELECT of DuckDB's SQL, in which each topic is a table. The records are read later.

        oncelog.sql("select country, count(*) from orders where _offset > 100 group by 1", "localhost:9092").polars()

    A topic's columns are those of `oncelog.scan`. DuckDB's conditions on `_partition`, `_offset` and `_timestamp` limit
    what is read from the brokers, and columns that the query does not use are not decoded. The records are those that
    are committed when this function is called. Other tables are files (`'customers.parquet'`), or `NAME.TABLE` of a
    SQLite file: `sqlite={"NAME": "PATH"}`.

    `formats` and `key_formats` have formats by topic, as `value_format` of `scan`; see there for the other arguments.
    `memory_limit` is DuckDB's, such as "2GB". Use the result as a context manager, or call `close`.

    Raises ConfigError for a query that is no SELECT, or names unknown tables or columns. Raises RegistryError, and the
    errors of a consumer.
    """
    source = Source(
        bootstrap_servers,
        config,
        options,
        SchemaRegistry(registry) if isinstance(registry, str) else registry,
        _wanted(key_formats),
        _wanted(formats),
        bad_records,
        max_disorder,
    )
    return Query(source, query, sqlite or {}, memory_limit)


def schema_of(columns: str) -> pa.Schema:
    """Return the schema of columns as in CREATE TABLE: "id bigint, name varchar, more json". Raises ConfigError."""
    with duckdb.connect() as connection:
        try:
            connection.execute(f"CREATE TABLE columns ({columns})")
        except duckdb.Error as error:
            raise errors.ConfigError(f"{columns!r}: {_first_line(error)}") from None
        found = connection.sql("FROM columns")
        fields = zip(found.to_arrow_table().schema, found.types, strict=True)
        return pa.schema([field.with_type(JSON_TEXT) if kind == "JSON" else field for field, kind in fields])


def _wanted(given: Given | None) -> dict[str, Wanted]:
    return {topic: Wanted(each) if isinstance(each, str) else each for topic, each in (given or {}).items()}


class Query:
    """The result of a query. Each method reads the same records again, if the topics still have them.

    Only the last result can be read: the next one closes it. After an error, the next result has the records that are
    committed then.
    """

    def __init__(self, source: Source, query: str, sqlite: Mapping[str, str], memory_limit: str | None) -> None:
        self._source = source
        self._query = query
        self._streams: list[_Stream] = []
        self._tables: list[SqliteTable] = []
        self._open: pa.RecordBatchReader | None = None
        """The last result."""
        self._has_failed = False
        self._connection = duckdb.connect()
        self._parser = Parser(self._connection)
        try:
            self._set("TimeZone", "UTC")
            self._set("python_enable_replacements", False)
            if memory_limit is not None:
                self._set("memory_limit", memory_limit)
            with self._translated():
                self._prepare(query, sqlite)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory of DuckDB."""
        self._connection.close()

    def interrupt(self) -> None:
        """End a method of this query that runs in another thread."""
        self._connection.interrupt()
        for stream in self._streams:
            stream.stopped = True

    # -- results ------------------------------------------------------------------------------------------------------

    def reader(self, progress: Progress | None = None) -> pa.RecordBatchReader:
        """Return a reader of the result's Arrow batches. Types that Arrow lacks, such as TIMETZ and BIT, are texts."""
        self._begin(progress)
        with self._translated():
            self._open = found = readable(self._connection.sql(self._query)).to_arrow_reader(RESULT_ROWS)
        return pa.RecordBatchReader.from_batches(found.schema, self._checked(found))

    def _begin(self, progress: Progress | None) -> None:
        """Prepare for the next result."""
        if self._open is not None:
            self._open.close()
            self._open = None
        if self._has_failed:
            self.refresh()
        for stream in self._streams:
            stream.progress, stream.failure, stream.stopped = progress, None, False

    def arrow(self) -> pa.Table:
        """Return the result as an Arrow table."""
        return self.reader().read_all()

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the result as Python objects."""
        self._begin(None)
        with self._translated():
            found: list[tuple[Any, ...]] = self._connection.sql(self._query).fetchall()
        return found

    def polars(self) -> pl.DataFrame:
        """Return the result as a frame of polars."""
        import polars as pl

        return pl.DataFrame(self.arrow())

    def pandas(self) -> pd.DataFrame:
        """Return the result as a frame of pandas."""
        found: pd.DataFrame = self.arrow().to_pandas()
        return found

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def into(
        self,
        topic: str,
        config: Mapping[str, Any] | None = None,
        *,
        once: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> int | None:
        """Write the result to a topic, in one transaction. Return the number of records.

        The columns `_key`, `_partition`, `_timestamp` and `_headers` become these parts of a record, the others a JSON
        object. A single other column `value` of texts or bytes is the value itself. With `once`, a name, the result is
        written only if none was written to this topic under this name before: then, return None. Brokers forget a name
        after `offsets.retention.minutes` (by default, seven days). `config` and `options` are those of a producer. It
        also has the query's own that all clients have, such as `client_id` and the login.

        Raises ConfigError, and the errors of a producer, after which nothing is written.
        """
        from oncelog.tables.writing import write

        return write(self.reader(progress), topic, self._source, config or {}, options, once)

    def reads(self) -> list[Scan]:
        """Return what the query reads of each topic."""
        return [each.scan for each in self._streams]

    def refresh(self) -> None:
        """Let the next result have the records that are committed now, and a new `now()`."""
        self._connection.rollback()
        self._has_failed = False
        with self._translated(), self._source.consumer() as consumer:
            self._limit(consumer)

    def plan(self) -> str:
        """Return DuckDB's plan as text."""
        with self._translated():
            return str(self._connection.execute(f"EXPLAIN {self._query}").fetchall()[0][1])

    # -- preparation --------------------------------------------------------------------------------------------------

    def _set(self, name: str, value: object) -> None:
        try:
            self._connection.execute(f"SET {name} = ?", [value])
        except duckdb.Error as error:
            raise errors.ConfigError(f"{name} = {value!r}: {error}") from None

    def _prepare(self, query: str, sqlite: Mapping[str, str]) -> None:
        """Make the tables that the query names, and find out what it needs of each topic."""
        names = table_names(self._parser.query(query))
        with self._source.consumer() as consumer:
            topics = consumer.list_topics()
            for schema, name in sorted(names):
                if schema in sqlite and schema:
                    self._add_table(SqliteTable(sqlite[schema], name), schema, name)
                elif not schema and name in topics:
                    self._add_topic(Scan(self._source, name, self._source.layout(consumer, name)))
            try:
                self._limit(consumer)
            except duckdb.CatalogException as error:
                near = {each for _, name in names for each in difflib.get_close_matches(name, topics)}
                advice = f". Topics with a similar name: {', '.join(sorted(near))}" if near else ""
                raise errors.ConfigError(f"{_first_line(error)}{advice}") from None

    def _add_topic(self, scan: Scan) -> None:
        topic = scan.topic
        same = [each.scan.topic for each in self._streams if each.scan.topic.casefold() == topic.casefold()]
        if same:
            raise errors.ConfigError(f"SQL does not distinguish the topics {same[0]} and {topic}; query one of them")
        number = len(self._streams)
        stream = _Stream(number, scan)
        self._streams.append(stream)
        self._add(stream, f"topic {number}", "", topic, stream.names)

    def _add_table(self, table: SqliteTable, schema: str, name: str) -> None:
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
        self._tables.append(table)
        self._add(table, f"table {len(self._tables)}", schema, name, {each: each for each in table.schema.names})

    def _add(self, stream: object, hidden: str, schema: str, name: str, columns: Mapping[str, str]) -> None:
        self._connection.register(hidden, stream)
        selected = ", ".join(f"{quoted(inner)} AS {quoted(outer)}" for inner, outer in columns.items())
        full = quoted(name) if not schema else f"{quoted(schema)}.{quoted(name)}"
        kind = "VIEW" if schema else "TEMP VIEW"
        self._connection.execute(f"CREATE {kind} {full} AS SELECT {selected} FROM {quoted(hidden)}")

    def _limit(self, consumer: Consumer) -> None:
        """Learn from DuckDB's plan what the query needs, and find it. The transaction keeps `now()` the same."""
        self._connection.begin()
        plan = json.loads(self._connection.execute(f"EXPLAIN (FORMAT JSON) {self._query}").fetchall()[0][1])
        limiting = (PARTITION, OFFSET, TIMESTAMP)
        names = {inner: outer for stream in self._streams for inner, outer in stream.names.items() if outer in limiting}
        needed = needs(plan, Reading(self._parser.expression, self._parser.microseconds, names))
        for number, stream in enumerate(self._streams):
            stream.limit(needed.get(number), consumer)

    # -- errors -------------------------------------------------------------------------------------------------------

    def _checked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._translated():
            yield from batches

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the error of a stream instead of DuckDB's error about it, and DuckDB's others as ConfigError."""
        try:
            yield
        except duckdb.CatalogException:
            raise
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            self._has_failed = True
            failures = [each.failure for each in self._streams] + [each.failure for each in self._tables]
            for failure in failures:
                if failure is not None:
                    raise failure from None
            if isinstance(error, duckdb.OutOfMemoryException):
                raise errors.ConfigError(f"{_first_line(error)}; set a higher limit of the memory") from None
            raise errors.ConfigError(str(error)) from None


class _Stream:
    """A topic for DuckDB. Each scan of it gets a stream of its own."""

    def __init__(self, number: int, scan: Scan) -> None:
        self.scan = scan
        """Once `limit` was called, what the query reads of the topic."""
        self.progress: Progress | None = None
        self.failure: BaseException | None = None
        self.stopped = False
        self._whole = scan
        columns = scan.layout.columns
        self._order = sorted(range(len(columns)), key=lambda index: columns[index].name != PARTITION)
        """The partition comes first, because DuckDB reads the first column to count rows."""
        self.schema = pa.schema([(column_name(number, index), columns[index].type) for index in self._order])
        self.names = {column_name(number, index): column.name for index, column in enumerate(columns)}
        """The columns' names in SQL by their names for DuckDB, in the order of the topic's table."""

    def limit(self, need: Need | None, consumer: Consumer) -> None:
        """Find the offsets to read for a need. Without one, all may be needed."""
        part = self._whole
        if need is not None:
            names = self._whole.schema.names
            part = part.select([names[number] for number in need.columns]).within(need.bounds)
        self.scan = part.fixed(consumer)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches()).__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self.scan.batches(whole=True, progress=self.progress):
                if self.stopped:
                    raise errors.WakeupError("the query was interrupted")
                yield pa.RecordBatch.from_arrays([batch.column(index) for index in self._order], schema=self.schema)
        except Exception as error:
            self.failure = error
            raise


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
