"""Find a header in a column of headers, and add one to each row. The schema registry's ids may be in headers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.columns.fitting import plain
from oncelog.columns.values import Bad, Format, bits, entries, joined, lengths, of_headers
from oncelog.protocol.schema_ids import schema_header


def decoded(form: Format, field: str, rows: pa.Table | pa.RecordBatch) -> tuple[pa.Array | pa.ChunkedArray, list[Bad]]:
    """Decode the column of a field, key or value, of records; the column `headers` may have the ids of schemas."""
    values, with_ids = joined(rows.column(field)), of_headers(form)
    if with_ids is None or not with_ids.ids_in_headers:
        return form.decode(values)
    return with_ids.decode_with_ids(values, header_values(rows.column("headers"), schema_header(field)))


def header_values(headers: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
    """Return the value of each row's first header with a name, as binary. Null: the row has none."""
    counts, names, values = _binary_parts(headers)
    found = np.flatnonzero(_true(pc.equal(names, pa.scalar(name.encode(), names.type))))
    rows, firsts = np.unique(np.repeat(np.arange(len(counts)), counts)[found], return_index=True)
    places, missing = np.zeros(len(counts), np.int64), np.ones(len(counts), np.bool_)
    places[rows], missing[rows] = found[firsts], False
    return values.take(pa.array(places, mask=missing)).cast(pa.binary())


def with_header(headers: pa.Array | pa.ChunkedArray | None, name: str, value: bytes, rows: Any) -> pa.Array:
    """Return the headers with one more at the end of each row where `rows`, bytes of 0 and 1, is 1."""
    if headers is None:
        counts, names, values = np.zeros(len(rows), np.int64), *[pa.array([], pa.large_binary())] * 2
    else:
        counts, names, values = _binary_parts(headers)
    added = rows.astype(np.int64)
    ends = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts + added, out=ends[1:])
    places = np.full(int(ends[-1]), len(names), np.int64)  # the new header comes after all others
    places[np.arange(len(names)) + np.repeat(np.cumsum(added) - added, counts)] = np.arange(len(names))
    chosen = pa.array(places)
    columns = [
        pa.concat_arrays([column, pa.array([new], pa.large_binary())]).take(chosen)
        for column, new in ((names, name.encode()), (values, value))
    ]
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.StructArray.from_arrays(columns, ["key", "value"]))


def header_parts(headers: pa.Array | pa.ChunkedArray) -> tuple[Any, pa.Array, pa.Array]:
    """Return the number of headers in each row, and the names and values of all.

    `headers` are maps, or lists of structs (key, value). Raises TypeError for another type.
    """
    array = plain(joined(headers))
    if pa.types.is_map(array.type):
        array = entries(array)
    t, kind = pa.types, array.type
    pairs = kind.value_type if t.is_list(kind) or t.is_large_list(kind) else pa.null()
    if not t.is_struct(pairs) or sorted(field.name for field in pairs) != ["key", "value"]:
        raise TypeError(f"the column headers must be a list of structs (key, value), not {kind}")
    fields = array.flatten().flatten()  # in the order of the type, which may be (value, key)
    names, values = (fields[pairs.get_field_index(name)] for name in ("key", "value"))
    return lengths(array), names, values


def _binary_parts(headers: pa.Array | pa.ChunkedArray) -> tuple[Any, pa.Array, pa.Array]:
    """Return `header_parts` with names and values as large_binary."""
    counts, *columns = header_parts(headers)
    names, values = (plain(column).cast(pa.large_binary()) for column in columns)
    return counts, names, values


def _true(flags: pa.Array) -> Any:
    """Return bytes of 0 and 1 for booleans; null is 0."""
    flags = flags.fill_null(False)
    return bits(flags.buffers()[1], flags)
