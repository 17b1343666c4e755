"""Define what all formats of values share: values that cannot be read, and access to the memory of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Schemas = Mapping[int | UUID, Any] | Mapping[int, Any] | Callable[[Any], Any]
"""A mapping or a function from an id to its schema. Each id is looked up once. An id in a header may be a GUID."""


class Bad(NamedTuple):
    """A value that is invalid in its format. `row` is its row in the column to decode."""

    row: int
    reason: str


class Format(Protocol):
    """How values are encoded. With `keep_bad`, bad values are kept in a column of their own, and raise no error."""

    keep_bad: bool

    @property
    def type(self) -> pa.DataType | None:
        """The type of the column of values that are read, or None if it is not known yet."""

    def decode(self, values: pa.Array) -> tuple[pa.Array | pa.ChunkedArray, list[Bad]]:
        """Decode binary `values`. Return their column, and the bad values in order.

        Null values and bad values are null in the column. Without `keep_bad`, return only the first bad value. The
        column is then valid only up to that value.
        """

    def encode(self, values: pa.Array) -> pa.Array:
        """Return binary values, null for null. Raises ValueError or TypeError, which names the row or column."""


class HeaderFormat(Format, Protocol):
    """A format whose schema ids may be in headers of the records: in those that `record_headers` names."""

    ids_in_headers: bool
    header: bytes | None
    """The header that belongs to written values."""

    def decode_with_ids(self, values: pa.Array, ids: pa.Array) -> tuple[pa.Array | pa.ChunkedArray, list[Bad]]:
        """Decode values like `decode`. `ids` are the values of the headers as binary, null for rows without one."""


def of_headers(form: Format | None) -> HeaderFormat | None:
    """Return a format that uses headers, or None for another format."""
    return cast("HeaderFormat", form) if hasattr(form, "decode_with_ids") else None


def look_up(schemas: Schemas, schema_id: int | UUID) -> Any:
    """Return the schema of an id. Raises LookupError."""
    found = schemas(schema_id) if callable(schemas) else schemas.get(schema_id)  # type: ignore[arg-type]
    if found is None:
        raise LookupError(f"schemas has no schema with id {schema_id}")
    return found


def raw_of(values: pa.Array, bad: list[Bad]) -> pa.Array:
    """Return a column with the bytes of the bad values, and null in all other rows."""
    mask = np.zeros(len(values), np.bool_)
    mask[[item.row for item in bad]] = True
    return pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))


def bits(buffer: pa.Buffer | None, values: pa.Array) -> Any:
    """Return the bits of a buffer that belong to these values as bytes of 0 and 1. Without a buffer, they are 1."""
    if buffer is None:
        return np.ones(len(values), np.uint8)
    first, last = values.offset, values.offset + len(values)
    found = np.unpackbits(np.frombuffer(buffer, np.uint8), count=last, bitorder="little")
    return np.ascontiguousarray(found[first:])


def valid_bits(values: pa.Array) -> Any:
    """Return a byte for each value: 0 for null. `to_numpy` would import pandas in each of Spark's workers."""
    return np.zeros(len(values), np.uint8) if pa.types.is_null(values.type) else bits(values.buffers()[0], values)


def numbers(values: pa.Array, kind: Any) -> Any:
    """Return the numbers of a column as numpy's type `kind`, which must be the column's. Those of nulls are undefined.

    `to_numpy` would import pandas.
    """
    size = np.dtype(kind).itemsize
    if not len(values):
        return np.zeros(0, kind)
    return np.frombuffer(values.buffers()[1], kind, len(values), values.offset * size)


def lengths(values: pa.Array) -> Any:
    """Return the length of each list or map as int64, and 0 for null."""
    found = numbers(pc.list_value_length(values).cast(pa.int64()), np.int64)
    return np.where(valid_bits(values), found, 0)


def entries(maps: pa.Array) -> pa.Array:
    """Return maps as lists of structs (key, value)."""
    kind = maps.type
    return maps.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))


def buffers(values: pa.Array) -> tuple[Any, Any]:
    """Return (ends, data) of a binary or string column as numpy arrays. Value i is data[ends[i] : ends[i + 1]]."""
    t, kind = pa.types, values.type
    _, ends, data = values.buffers()
    if ends is None or not len(values):
        return np.zeros(len(values) + 1, np.int64), np.zeros(0, np.uint8)
    wide = t.is_large_binary(kind) or t.is_large_string(kind)
    found = np.frombuffer(ends, np.int64 if wide else np.int32)
    some = found[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return some, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def mask(valid: Any) -> pa.Buffer | None:
    """Return Arrow's validity buffer for bytes of 0 and 1, or None if all are 1."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def joined(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values as one array. Arrow returns some columns in chunks even if they are combined."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
