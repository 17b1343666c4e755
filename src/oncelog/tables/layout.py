"""The columns of a topic's table, and the batches of these columns from what a consumer reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from oncelog.columns.decode import SCHEMA_WITH_HEADERS
from oncelog.columns.values import Format, joined
from oncelog.tables.bounds import OF_RECORD
from oncelog.tables.choosing import Field

VALUE = "value"
BATCH_ROWS = 1 << 15
"""The most rows of a batch. DuckDB holds some batches at a time."""


class Column(NamedTuple):
    """A column: its name and type, the consumer's column that it comes from, and the field of that one, if any."""

    name: str
    type: pa.DataType
    source: str
    field: str | None = None


class Layout:
    """The columns of one topic. Those of the value come first, then `_key`, `_partition`, `_offset` and so on."""

    def __init__(self, key: Field, value: Field) -> None:
        self.key, self.value = key, value
        types = {field.name: field.type for field in SCHEMA_WITH_HEADERS} | {"key": key.type}
        own = [Column(name, types[source], source) for name, source in OF_RECORD.items()]
        if pa.types.is_struct(value.type) and value.type.num_fields:
            fields = [Column(field.name, field.type, "value", field.name) for field in value.type]
        else:
            fields = [Column(VALUE, value.type, "value")]
        self.columns = _distinct(fields, taken=own) + own
        self.schema = pa.schema([(each.name, each.type) for each in self.columns])

    def numbers(self, names: Iterable[str]) -> frozenset[int]:
        """Return the numbers of these columns. Raises KeyError for a name that no column has."""
        known = {each.name: number for number, each in enumerate(self.columns)}
        return frozenset(known[name] for name in names)

    def decoding(self, wanted: frozenset[int], *, keep_bad: bool) -> dict[str, Any]:
        """Return the arguments of `Consumer.tables` that read these columns, and no others."""
        columns = [self.columns[number] for number in sorted(wanted)]
        needed = {each.source for each in columns}
        fields = frozenset(each.field for each in columns if each.field is not None)
        found: dict[str, Format | bool | None] = {"headers": "headers" in needed}
        if "key" in needed:
            found["key"] = self.key.make(None, keep_bad)
        if "value" in needed:
            found["value"] = self.value.make(fields or None, keep_bad)
        return found

    def batches(self, table: pa.Table, wanted: Sequence[int], *, whole: bool) -> Iterator[pa.RecordBatch]:
        """Yield the wanted columns of what a consumer has read. With `whole`, all others are there, too, as nulls."""
        numbers = range(len(self.columns)) if whole else wanted
        schema = pa.schema([self.schema.field(number) for number in numbers])
        needed = set(wanted)
        for piece in table.to_batches(max_chunksize=BATCH_ROWS):
            taken: dict[str, dict[str, pa.Array]] = {}
            columns = []
            for number in numbers:
                column = self.columns[number]
                if number not in needed:
                    columns.append(pa.nulls(len(piece), column.type))
                elif column.field is None:
                    columns.append(piece.column(column.source))
                else:
                    if column.source not in taken:
                        taken[column.source] = _fields(joined(piece.column(column.source)))
                    columns.append(taken[column.source][column.field])
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _fields(values: pa.Array) -> dict[str, pa.Array]:
    return dict(zip([field.name for field in values.type], values.flatten(), strict=True))


def _distinct(columns: list[Column], *, taken: list[Column]) -> list[Column]:
    """Return the columns with names that differ in more than their case. SQL does not distinguish others."""
    used = {each.name.casefold() for each in taken}
    found = []
    for column in columns:
        name, number = column.name or "_", 0
        while name.casefold() in used:
            number += 1
            name = f"{column.name}_{number}"
        used.add(name.casefold())
        found.append(column._replace(name=name))
    return found
