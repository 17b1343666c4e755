"""Convert the source's binary columns to typed ones, and say which types Spark gets."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.columns.decode import SCHEMA, SCHEMA_WITH_HEADERS
from oncelog.columns.record_headers import decoded
from oncelog.columns.values import Bad, Format, joined, raw_of
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.formats.field import FieldFormat
from oncelog.spark.formats.options import COLUMN, FAIL, TypedOptions
from oncelog.spark.formats.selection import selected

log = logging.getLogger("oncelog.spark")

CORRUPT = {"value": "_corrupt_record", "key": "_corrupt_key"}
"""The columns with the bytes of values and keys that cannot be read."""


class TypedColumns:
    """Converts the columns `key` and `value` of Arrow batches. `schema` is that of the result.

    If a user's schema names the wanted columns and fields, no others are decoded.
    """

    def __init__(self, options: TypedOptions, *, headers: bool) -> None:
        self._options = options
        self._warned = False
        self._formats = {each.field: self._converter(each) for each in options.formats}
        self._kinds = {field: spark_type(form.type, field) for field, form in self._formats.items()}
        self.schema = self._full_schema(SCHEMA_WITH_HEADERS if headers else SCHEMA)
        if options.wanted is not None:
            self.schema = selected(options.wanted, self.schema)
            for each in options.formats:
                self._narrow(each)

    def _converter(self, each: FieldFormat, only: pa.DataType | None = None) -> Format:
        return each.converter(reading=True, keep_bad=self._options.bad != FAIL, only=only)

    def _full_schema(self, plain: pa.Schema) -> pa.Schema:
        fields: list[pa.Field] = []
        for field in plain:
            kind = self._kinds.get(field.name)
            if kind is None:
                fields.append(field)
            elif self._flattens(field.name):
                fields += list(kind)
            else:
                fields.append(field.with_type(kind))
        if self._options.bad == COLUMN:
            fields += [pa.field(CORRUPT[field], pa.binary()) for field in self._formats]
        names = [field.name for field in fields]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise MisuseError(f"option flatten=true: two columns would be called {twice[0]}; omit the option")
        return pa.schema(fields)

    def _narrow(self, each: FieldFormat) -> None:
        """Decode only what the user's schema names: all of the column, some of its fields, or nothing."""
        name, whole = each.field, self._kinds[each.field]
        names = self.schema.names
        if self._flattens(name):
            part = pa.struct([self.schema.field(field.name) for field in whole if field.name in names])
            wanted = part.num_fields > 0
        else:
            wanted = name in names
            part = self.schema.field(name).type if wanted else whole
        if wanted:
            self._formats[name], self._kinds[name] = self._converter(each, part), part
        elif CORRUPT[name] not in names:
            del self._formats[name], self._kinds[name]

    def _flattens(self, field: str) -> bool:
        return self._options.flatten and field == "value" and bool(pa.types.is_struct(self._kinds[field]))

    def typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with typed columns. With badRecords=fail, raises SinkError for the first bad record."""
        columns: dict[str, pa.Array] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            form = self._formats.get(name)
            if form is None:
                columns[name] = column
                continue
            kind = self._kinds[name]
            whole, bad = as_spark(*decoded(form, name, batch), kind)
            if bad:
                self._report(name, batch, bad)
            columns[CORRUPT[name]] = raw_of(column, bad) if bad else pa.nulls(len(column), pa.binary())
            if self._flattens(name):
                columns.update(zip((field.name for field in kind), whole.flatten(), strict=True))
            else:
                columns[name] = whole
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _report(self, name: str, batch: pa.RecordBatch, bad: list[Bad]) -> None:
        row, reason = bad[0]
        where = {of: batch.column(of)[row].as_py() for of in ("topic", "partition", "offset")}
        if self._options.bad == FAIL:
            raise SinkError(
                f"cannot read the {name} of the record at offset {where['offset']} of {where['topic']}-"
                f"{where['partition']}: {reason.rstrip('. ')}. To read such values as null, set badRecords=null; to "
                f"keep their bytes in the column {CORRUPT[name]}, set badRecords=column"
            )
        if not self._warned:
            self._warned = True
            log.warning(
                "the %s of %s-%d at offset %d cannot be read: %s. This task logs no others",
                name, where["topic"], where["partition"], where["offset"], reason.rstrip(". "),
            )  # fmt: skip


def as_spark(found: pa.Array | pa.ChunkedArray, bad: list[Bad], kind: pa.DataType) -> tuple[pa.Array, list[Bad]]:
    """Return decoded values as a `spark_type`, and the bad ones: also those with times that Spark cannot hold."""
    whole = joined(found)
    if whole.type == kind:
        return whole, bad
    options = pc.CastOptions(kind, allow_time_truncate=True)
    try:
        return whole.cast(options=options), bad
    except pa.ArrowInvalid:
        wrong = list(_too_far(whole, options, 0))
    rows = np.arange(len(whole))
    held = whole.take(pa.array(rows, mask=np.isin(rows, [row for row, _ in wrong])))
    return held.cast(options=options), sorted([*bad, *wrong])


def _too_far(values: pa.Array, options: pc.CastOptions, first: int) -> Iterator[Bad]:
    """Yield the rows that cannot be cast, which are found by bisection. `first` is the number of `values[0]`."""
    try:
        values.cast(options=options)
    except pa.ArrowInvalid as error:
        if len(values) == 1:
            yield Bad(first, str(error))
            return
        half = len(values) // 2
        yield from _too_far(values.slice(0, half), options, first)
        yield from _too_far(values.slice(half), options, first + half)


def spark_type(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the type that Spark gets: the nearest one that it has. Raises MisuseError, with the path, if it has none.

    Times of day are numbers in the unit of the type, as in Spark's from_avro. Nanoseconds become microseconds.
    """
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([field.with_type(spark_type(field.type, f"{path}.{field.name}")) for field in kind])
    if t.is_list(kind):
        return pa.list_(spark_type(kind.value_type, path))
    if t.is_map(kind):
        return pa.map_(spark_type(kind.key_type, path), spark_type(kind.item_type, path))
    if t.is_fixed_size_binary(kind):
        return pa.binary()
    if t.is_time(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if t.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if t.is_decimal256(kind):
        raise MisuseError(f"{path}: Spark has no decimal of more than 38 digits")
    return kind
