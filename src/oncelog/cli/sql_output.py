"""Print the rows of a query: as a table, JSON lines or CSV."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import IO, Any, Protocol
from uuid import UUID

import click
import pyarrow as pa

from oncelog.cli.common import printable
from oncelog.cli.value_formats import text_or_base64

CELL = 60
"""The most characters of a cell in a table."""


class Output(Protocol):
    """Takes the batches of a result in order, then `end`."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch."""

    def end(self) -> None:
        """Complete the output."""


def plain(value: object) -> Any:
    """Return a value as JSON has it. Bytes that are not UTF-8 become `{"base64": ...}`, numbers keep all digits."""
    if isinstance(value, bytes):
        return text_or_base64(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta | UUID):
        return str(value)
    raise TypeError(f"cannot print {type(value).__name__}; cast it, for example to varchar")


def _rows(batch: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    return zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    """Return a column as Python objects. Intervals become ISO 8601 durations, and maps become objects."""
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # Python has no such time
        return list(column.cast(_timeless(column.type)).to_pylist())
    kind = column.type
    return [_value(each, kind) for each in found] if pa.types.is_nested(kind) or _is_interval(kind) else found


def _value(value: Any, kind: pa.DataType) -> Any:
    t = pa.types
    if value is None:
        return None
    if _is_interval(kind):
        seconds = f"{Decimal(value.nanoseconds).scaleb(-9):f}".rstrip("0").rstrip(".") if value.nanoseconds else "0"
        return f"P{value.months}M{value.days}DT{seconds}S"
    if t.is_map(kind):
        keys = ((_text(_value(key, kind.key_type), null="null"), item) for key, item in value)
        return {key: _value(item, kind.item_type) for key, item in keys}
    if t.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return [_value(item, kind.value_type) for item in value]
    return value


def _is_interval(kind: pa.DataType) -> bool:
    return bool(kind == pa.month_day_nano_interval())


def _timeless(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts in place of dates and times."""
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([field.with_type(_timeless(field.type)) for field in kind])
    if t.is_list(kind):
        return pa.list_(_timeless(kind.value_type))
    return pa.string() if t.is_temporal(kind) and not _is_interval(kind) else kind


class JsonLines:
    """Writes an object for each row."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def add(self, batch: pa.RecordBatch) -> None:
        """See `Output`."""
        names = batch.schema.names
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise click.ClickException(f"the result has two columns {twice[0]!r}; rename one with AS")
        for row in _rows(batch):
            pairs = dict(zip(names, row, strict=True))
            self._file.write(_json(pairs) + "\n")
        self._file.flush()

    def end(self) -> None:
        """See `Output`."""


class Csv:
    """Writes comma-separated values with a line of names. Structs and lists are JSON texts, and null is empty."""

    def __init__(self, file: IO[str], schema: pa.Schema) -> None:
        self._file = file
        self._writer = csv.writer(file, lineterminator="\n")
        self._writer.writerow(schema.names)

    def add(self, batch: pa.RecordBatch) -> None:
        """See `Output`."""
        self._writer.writerows([_text(value, null="") for value in row] for row in _rows(batch))
        self._file.flush()

    def end(self) -> None:
        """See `Output`."""
        self._file.flush()


class Table:
    """Prints the first rows as a table, then how many there are."""

    def __init__(self, schema: pa.Schema, most: int) -> None:
        self._schema, self._most = schema, most
        self._shown: list[list[str]] = []
        self._count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """See `Output`."""
        self._count += batch.num_rows
        missing = self._most - len(self._shown)
        if missing > 0:
            self._shown += [[_cut(_text(value, null="-")) for value in row] for row in _rows(batch.slice(0, missing))]

    def lines(self) -> list[str]:
        """Return the lines of the table."""
        names = [printable(name) for name in self._schema.names]
        widths = [max(map(len, column)) for column in zip(names, *self._shown, strict=True)]
        right = [_is_number(field.type) for field in self._schema]
        lines = []
        for row in (names, ["-" * width for width in widths], *self._shown):
            cells = zip(row, widths, right, strict=True)
            lines.append("  ".join(text.rjust(wide) if num else text.ljust(wide) for text, wide, num in cells).rstrip())
        more = "" if self._count == len(self._shown) else f", the first {len(self._shown)} are shown (see --rows)"
        return [*lines, f"({self._count} row{'' if self._count == 1 else 's'}{more})"]

    def end(self) -> None:
        """See `Output`."""
        for line in self.lines():
            click.echo(line)


def printed(form: str, schema: pa.Schema, most: int) -> Output:
    """Return what prints rows to stdout."""
    if form == "json":
        return JsonLines(sys.stdout)
    return Csv(sys.stdout, schema) if form == "csv" else Table(schema, most)


def _json(value: object) -> str:
    """Return JSON. NaN and infinities, which it does not have, become texts."""
    try:
        return json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=plain, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _text(value: object, null: str) -> str:
    if value is None:
        return null
    if isinstance(value, str):
        return value
    if isinstance(value, bool | dict | list):
        return _json(value)
    if isinstance(value, int | float):
        return str(value)
    found = plain(value)
    return found if isinstance(found, str) else json.dumps(found)


def _cut(text: str) -> str:
    text = printable(text)
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
