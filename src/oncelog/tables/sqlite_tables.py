"""Read tables of SQLite files as Arrow batches, with Python's sqlite3. DuckDB's own reader must be downloaded."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from oncelog.errors import ConfigError

_BATCH_ROWS = 10_000
_TYPES = (
    ("INT", pa.int64()),
    ("CHAR", pa.string()),
    ("CLOB", pa.string()),
    ("TEXT", pa.string()),
    ("BLOB", pa.binary()),
    ("REAL", pa.float64()),
    ("FLOA", pa.float64()),
    ("DOUB", pa.float64()),
    ("DATE", pa.string()),
    ("TIME", pa.string()),
)
"""Parts of declared types, in the order of SQLite's rules of affinity (datatype3.html). Then times, which are texts."""


class SqliteTable:
    """A table of a file. Each stream reads it again. Columns without a declared type, and times, are texts."""

    def __init__(self, path: str, table: str) -> None:
        """Look up the columns. Raises ConfigError if there is no such table."""
        self._path, self._table = path, table
        self.failure: BaseException | None = None
        with _opened(path) as connection:
            declared = connection.execute(
                "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> 1", (table,)
            ).fetchall()
        if not declared:
            raise ConfigError(f"{path} has no table {table!r}")
        self.schema = pa.schema([(name, _type_of(kind)) for name, kind in declared])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches()).__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._read()
        except Exception as error:
            self.failure = error
            raise

    def _read(self) -> Iterator[pa.RecordBatch]:
        names = ", ".join(map(quoted, self.schema.names))
        with _opened(self._path) as connection:
            rows = connection.execute(f"SELECT {names} FROM {quoted(self._table)}")
            while found := rows.fetchmany(_BATCH_ROWS):
                columns = [
                    _column(field, values) for field, values in zip(self.schema, zip(*found, strict=True), strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


@contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
    """Open a file for reading, and never create it. Raises ConfigError, also for errors of the block."""
    try:
        uri = f"{Path(path).absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ConfigError(f"cannot read the SQLite file {path}: {error}") from None


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _type_of(declared: str) -> pa.DataType:
    for part, kind in _TYPES:
        if part in declared.upper():
            return kind
    return pa.float64() if declared else pa.string()


def _column(field: pa.Field, values: tuple[Any, ...]) -> pa.Array:
    """Return values as a column. SQLite stores values of any type in any column."""
    try:
        if pa.types.is_string(field.type):
            return pa.array(
                [each if each is None or isinstance(each, str) else str(each) for each in values], field.type
            )
        if pa.types.is_integer(field.type) and any(isinstance(each, float) for each in values):
            return pa.array(values, pa.float64()).cast(field.type)  # fails for fractions
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(f"column {field.name}: not all values are {field.type} ({error})") from None
