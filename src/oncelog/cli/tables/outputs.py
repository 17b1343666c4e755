"""Write files of rows: Parquet, CSV and JSON lines. A file gets its name when it is complete and on the disk."""

from __future__ import annotations

import base64
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, BinaryIO, Protocol

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from oncelog.cli.tables.values import chunks
from oncelog.columns.json_values import Json
from oncelog.columns.values import joined

UNFINISHED = ".part"
"""What follows the name of a file until it is complete."""
ROW_GROUP_ROWS = 1 << 18
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Output(Protocol):
    """A file to which tables are written."""

    def write(self, table: pa.Table) -> None:
        """Write rows. Raises ValueError and ArrowException for values that the format cannot hold."""

    def close(self) -> None:
        """Write the rest."""

    def abandon(self) -> None:
        """End without the rest."""


class _Parquet:
    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(stream, schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        self._writer.is_open = False  # otherwise `__del__` writes the rest, and prints that the file is closed


class _Csv:
    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._schema = pa.schema([_csv_field(field) for field in _texts_of(schema)])
        self._writer = pa.csv.CSVWriter(stream, self._schema)

    def write(self, table: pa.Table) -> None:
        for part in chunks([table]):
            columns = [_csv_column(_as_texts(column)) for column in part.columns]
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        """Do nothing: pyarrow writes no rest."""


class _Lines:
    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._stream = stream
        self._schema = _texts_of(schema)

    def write(self, table: pa.Table) -> None:
        for part in chunks([table]):
            texts = pa.Table.from_arrays([_as_texts(column) for column in part.columns], schema=self._schema)
            lines = Json().encode(joined(texts.to_struct_array()))
            self._stream.write(b"\n".join(lines.to_pylist()) + b"\n")

    def close(self) -> None:
        """Do nothing: each line is written."""

    abandon = close


_WRITERS: dict[str, Any] = {"parquet": _Parquet, "csv": _Csv, "jsonl": _Lines}


class OpenOutput:
    """A file that is being written. `path` is the name that it gets when it is complete."""

    def __init__(self, path: str, output: Output) -> None:
        self.path = path
        self.write = output.write


@contextmanager
def open_output(path: str, form: str, schema: pa.Schema) -> Iterator[OpenOutput]:
    """Yield the file to write. At the end of the block, it is flushed to the disk and gets its name.

    Until then, its name ends with UNFINISHED. After an error, or if the process dies, `path` is unchanged. Raises
    ClickException if another process writes the same file, or for values that the format cannot hold.
    """
    unfinished = path + UNFINISHED
    with _named(path), open(os.open(unfinished, os.O_RDWR | os.O_CREAT, 0o666), "wb") as stream:
        lock(stream, path)
        if not os.path.exists(unfinished) or not os.path.samestat(os.stat(unfinished), os.fstat(stream.fileno())):
            raise click.ClickException(f"another process has just written {path}; run the command again")
        stream.truncate(0)
        try:
            output = _WRITERS[form](stream, schema)
            made = OpenOutput(path, output)
            with _closed_at_end(output):
                yield made
        except (ValueError, TypeError, pa.ArrowException) as error:
            os.unlink(unfinished)
            advice = "" if form == "parquet" else "; a Parquet file can hold it"
            raise click.ClickException(f"{path}: {error}{advice}") from None
        except BaseException:
            os.unlink(unfinished)
            raise
        stream.flush()
        os.fsync(stream.fileno())
        os.replace(unfinished, made.path)
    sync_folder(path)


@contextmanager
def _closed_at_end(output: Output) -> Iterator[None]:
    """Close the output at the end of the block, or abandon it after an error."""
    try:
        yield
        output.close()
    except BaseException:
        output.abandon()
        raise


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Name the file in an error of its disk, such as a full one."""
    try:
        yield
    except OSError as error:
        if error.errno in _OF_DISK and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno), path) from None
        raise


def lock(stream: IO[Any], path: str) -> None:
    """Lock an open file until it is closed. Raises ClickException if another process has locked it."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise click.ClickException(f"another process writes {path}; wait until it has finished") from None


def sync_folder(path: str) -> None:
    """Flush the folder of a file to the disk, so that the file keeps its name if the power fails."""
    number = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# -- text -------------------------------------------------------------------------------------------------------------


def text_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with strings in place of bytes."""
    t = pa.types
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return pa.string()
    if t.is_struct(kind):
        return pa.struct([field.with_type(text_type(field.type)) for field in kind])
    if t.is_map(kind):
        return pa.map_(kind.key_type, text_type(kind.item_type))
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(text_type(kind.value_type)))
    return kind


def _texts_of(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(text_type(field.type)) for field in schema])


def _as_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with base64 texts in place of bytes."""
    kind = text_type(column.type)
    if kind == column.type:
        return column
    return pa.chunked_array([pa.array(map(_in_base64, chunk.to_pylist()), kind) for chunk in column.chunks], kind)


def _in_base64(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: _in_base64(item) for name, item in value.items()}
        case list():
            return [_in_base64(item) for item in value]
        case tuple():  # an entry of a map
            return tuple(_in_base64(item) for item in value)
    return value


def _csv_field(field: pa.Field) -> pa.Field:
    return field.with_type(pa.string()) if pa.types.is_nested(field.type) else field


def _csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return lists and structs as JSON texts, because a cell has no other form for them."""
    if not pa.types.is_nested(column.type):
        return column
    return pa.chunked_array([Json().encode(chunk).cast(pa.string()) for chunk in column.chunks], pa.string())
