"""Read files of rows: Parquet, CSV and JSON lines, in batches of bounded size."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, Protocol, cast

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from oncelog.cli.exact_json import exact
from oncelog.cli.tables.schemas import DocumentTypes

SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""The format of a file by the end of its name, before .gz."""
BATCH_ROWS = 1 << 16
CSV_BLOCK = 1 << 24
"""Bytes of a CSV file in a batch. The first block determines the types of the columns."""
LINES_BYTES = 1 << 22
"""Bytes of JSON lines in a batch."""
LONGEST_LINE = 1 << 26
MOST_NAMES = 10_000
"""Names of fields in JSON lines that are remembered."""


class Stamp(NamedTuple):
    """What changes if a file is written to, or if another file gets its name."""

    device: int
    number: int
    size: int
    modified_ns: int


class InputFile:
    """A file that stays the same while it is read: each change, and another file of its name, is an error."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = os.path.basename(path)
        if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):  # to open a pipe would wait
            raise click.UsageError(f"--from {path}: it is not a file on a disk, and the command reads it twice")
        with open(path, "rb") as stream:
            self._stamp = _stamp(stream)
        self.size = self._stamp.size

    def stream(self) -> BinaryIO:
        """Open the content, unpacked if the name ends with .gz. The caller closes it."""
        stream: Any = gzip.open(self.path) if self.name.endswith(".gz") else open(self.path, "rb")  # noqa: SIM115
        if _stamp(stream) != self._stamp:
            stream.close()
            raise self._changed()
        return cast("BinaryIO", stream)

    def digest(self) -> str:
        """Return the SHA-256 of the file."""
        with open(self.path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def require_unchanged(self) -> None:
        """Raise ClickException if the file has changed since the first look at it."""
        with open(self.path, "rb") as stream:
            if _stamp(stream) != self._stamp:
                raise self._changed()

    def _changed(self) -> click.ClickException:
        return click.ClickException(f"{self.path} has changed while the command read it")


def _stamp(stream: BinaryIO) -> Stamp:
    found = os.fstat(stream.fileno())
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def file_format(path: str, forced: str | None, option: str) -> str:
    """Return parquet, csv or jsonl: `forced`, or the format that the name ends with. Raises UsageError."""
    suffixes = Path(path.removesuffix(".gz")).suffix.lower()
    found = forced or SUFFIXES.get(suffixes)
    if found is None:
        raise click.UsageError(
            f"{option} {path}: the name ends with none of {', '.join(SUFFIXES)}; name the format with --file-format"
        )
    return found


class Input(Protocol):
    """The rows of a file. `columns` are their names, `rows` is their number."""

    rows: int
    columns: list[str]

    def batches(self, skip: int) -> Iterator[pa.RecordBatch | list[dict[str, Any]]]:
        """Yield the rows after the first `skip` ones, in order. JSON lines are lists of objects."""

    def type_of(self, names: list[str]) -> pa.StructType:
        """Return the type of these columns together."""


def open_input(file: InputFile, form: str, types: Mapping[str, pa.DataType]) -> Input:
    """Read a file once, except for Parquet, and check each row. Raises ClickException for what cannot be read."""
    if types and form != "csv":
        raise click.UsageError("--type is for columns of CSV files; those of other files have types")
    with reading(file):
        if form == "parquet":
            return ParquetInput(file)
        return CsvInput(file, types) if form == "csv" else LinesInput(file)


@contextmanager
def reading(file: InputFile) -> Iterator[None]:
    """Convert errors of a file's content to a ClickException that names the file."""
    try:
        yield
    except (pa.ArrowException, EOFError, gzip.BadGzipFile) as error:
        text = " ".join(str(error).split())
        advice = "; name the column's type with --type COLUMN=TYPE" if "conversion error" in text else ""
        raise click.ClickException(f"{file.path}: {text}{advice}") from None


def _require_distinct(names: list[str], file: InputFile) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise click.ClickException(f"{file.path}: two columns have the name {', '.join(twice)}")


class ParquetInput:
    """A Parquet file, read row group by row group."""

    def __init__(self, file: InputFile) -> None:
        self._file = file
        with file.stream() as stream, pq.ParquetFile(stream) as opened:
            self.rows: int = opened.metadata.num_rows
            self._schema = opened.schema_arrow
        self.columns = list(self._schema.names)
        _require_distinct(self.columns, file)

    def type_of(self, names: list[str]) -> pa.StructType:
        """See `Input`."""
        return pa.struct([self._schema.field(name) for name in names])

    def batches(self, skip: int) -> Iterator[pa.RecordBatch]:
        """See `Input`."""
        with self._file.stream() as stream, pq.ParquetFile(stream) as opened:
            for group in range(opened.num_row_groups):
                rows = opened.metadata.row_group(group).num_rows
                if skip >= rows:
                    skip -= rows
                    continue
                for batch in opened.iter_batches(BATCH_ROWS, row_groups=[group]):
                    yield from _after(batch, skip)
                    skip = max(skip - batch.num_rows, 0)


def _after(batch: pa.RecordBatch, skip: int) -> Iterator[pa.RecordBatch]:
    if skip < batch.num_rows:
        yield batch.slice(skip)


class CsvInput:
    """A CSV file whose first line has the names of the columns."""

    def __init__(self, file: InputFile, types: Mapping[str, pa.DataType]) -> None:
        self._file = file
        self._types = dict(types)
        self.rows = 0
        self._schema = pa.schema([])
        with file.stream() as stream:
            is_empty = not stream.read(1)
        if not is_empty:
            with self._open() as reader:
                self._schema = reader.schema
                self.rows = sum(batch.num_rows for batch in reader)
        self.columns = list(self._schema.names)
        _require_distinct(self.columns, file)
        missing = [name for name in self._types if name not in self.columns]
        if missing:
            raise click.UsageError(f"--type: {file.path} has no column {missing[0]!r}; it has {self.columns}")

    @contextmanager
    def _open(self) -> Iterator[Any]:
        with (
            self._file.stream() as stream,
            pa.csv.open_csv(
                stream,
                pa.csv.ReadOptions(block_size=CSV_BLOCK),
                pa.csv.ParseOptions(newlines_in_values=True),
                pa.csv.ConvertOptions(column_types=self._types),
            ) as reader,
        ):
            yield reader

    def type_of(self, names: list[str]) -> pa.StructType:
        """See `Input`."""
        return pa.struct([self._schema.field(name) for name in names])

    def batches(self, skip: int) -> Iterator[pa.RecordBatch]:
        """See `Input`."""
        if skip >= self.rows:
            return
        with self._open() as reader:
            for batch in reader:
                yield from _after(batch, skip)
                skip = max(skip - batch.num_rows, 0)


class LinesInput:
    """JSON lines: each line is an object. Empty lines are skipped."""

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self.rows = 0
        names: dict[str, None] = {}
        for rows in self.batches(0):
            self.rows += len(rows)
            for row in rows:
                if len(names) < MOST_NAMES:
                    names |= dict.fromkeys(row)
        self.columns = list(names)

    def type_of(self, names: list[str]) -> pa.StructType:
        """See `Input`. Reads the file again."""
        found = DocumentTypes(pa.struct([]))
        for rows in self._batches(0, float):
            found.add([{name: row[name] for name in names if name in row} for row in rows])
        return found.kind

    def batches(self, skip: int) -> Iterator[list[dict[str, Any]]]:
        """See `Input`. A number that a float would round is a Decimal."""
        return self._batches(skip, exact)

    def _batches(self, skip: int, parse_float: Callable[[str], Any]) -> Iterator[list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        size = 0
        with self._file.stream() as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE + 1), b""), 1):
                if not line.strip():
                    continue
                skip -= 1
                if skip >= 0:
                    continue
                rows.append(self._parsed(number, line, parse_float))
                size += len(line)
                if size >= LINES_BYTES:
                    yield rows
                    rows, size = [], 0
        if rows:
            yield rows

    def _parsed(self, number: int, line: bytes, parse_float: Callable[[str], Any]) -> dict[str, Any]:
        if len(line) > LONGEST_LINE:
            raise click.ClickException(f"{self._file.path}: line {number} is longer than {LONGEST_LINE} bytes")
        try:
            found = json.loads(line, parse_constant=_refuse, parse_float=parse_float)
        except (ValueError, RecursionError) as error:
            raise click.ClickException(f"{self._file.path}: line {number} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise click.ClickException(f"{self._file.path}: line {number} is not a JSON object")
        return found


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")
