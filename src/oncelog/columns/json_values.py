"""Read and write values as JSON, without a Python object for each value.

pyarrow.json reads them into a column of a given type. Arrow's string functions write them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from oncelog.columns.fitting import cast, fitted, plain, require_distinct
from oncelog.columns.native import kernel
from oncelog.columns.signatures import at
from oncelog.columns.values import Bad, bits, check_schema_id, frame

PREFIX = np.frombuffer(b'{"v":', np.uint8)
"""The start of each line that pyarrow.json reads."""
MOST_ADDED = len(PREFIX) + 2
"""Largest number of bytes in a line besides the bytes of its value."""
_FIRST_SECOND_NS = -(2**63 // 10**9) * 10**9
BLOCK = 1 << 22
"""Bytes that one of Arrow's threads parses at a time. Longer lines make the block larger."""


class Json:
    """Read and write values that are JSON texts.

    `schema` is the type to read values into: a pyarrow.Schema for objects, or a pyarrow.DataType for any values. Fields
    that a value lacks are null, and fields that the schema lacks are ignored. Writing does not need a schema. If there
    is one, values are written with its types, and the columns must be exactly its fields.

    Times and dates are ISO 8601 texts, and decimals are numbers. NaN, infinities, and times that cannot be read again
    raise ValueError when they are written. The schema registry's framing is skipped when reading. It is written if
    `schema_id` is given.

    With `keep_bad`, a value that cannot be read is null, and its bytes are in the column `value_bad` (or `key_bad`).
    """

    def __init__(
        self, schema: pa.Schema | pa.DataType | None = None, *, schema_id: int | None = None, keep_bad: bool = False
    ) -> None:
        if not isinstance(schema, pa.Schema | pa.DataType | None):
            raise TypeError(
                "the schema must be a pyarrow.Schema or pyarrow.DataType, as in Json(pa.schema([('id', pa.int64())])), "
                f"not {type(schema).__name__}"
            )
        self.type = pa.struct(list(schema)) if isinstance(schema, pa.Schema) else schema
        self._parsed = None if self.type is None else _parsed_type(self.type, "the value")
        self._frame = frame(check_schema_id(schema_id))
        self.keep_bad = keep_bad

    def decode(self, values: pa.Array) -> tuple[pa.Array | pa.ChunkedArray, list[Bad]]:
        """See `Format`."""
        if self.type is None:
            raise TypeError("reading JSON requires a schema: Json(pa.schema([...]))")
        valid = bits(values.buffers()[0], values)
        ends, data = _buffers(values)
        bad: list[Bad] = []
        lines, line_ends = _lines(data, ends, valid)
        broken = np.flatnonzero(valid != bits(values.buffers()[0], values))
        bad += [Bad(int(row), "it is not valid JSON") for row in (broken if self.keep_bad else broken[:1])]
        try:
            return self._parse(lines, line_ends), bad
        except pa.ArrowInvalid as error:
            self._find(lines, line_ends, 0, len(values), str(error), bad)
        bad.sort()
        valid[[item.row for item in bad]] = 0
        if not self.keep_bad:
            valid[bad[0].row :] = 0  # the rows after the first bad value are not returned
            del bad[1:]
        return self._parse(*_lines(data, ends, valid)), bad

    def _parse(self, lines: Any, ends: Any) -> pa.ChunkedArray:
        """Return the values of these lines. Raises ArrowInvalid if one of them is bad.

        Only the differences of `ends` are used: the lengths of the lines.
        """
        if len(ends) == 1:
            return pa.chunked_array([], self.type)
        table = pa.json.read_json(
            pa.BufferReader(pa.py_buffer(lines)),
            pa.json.ReadOptions(block_size=max(BLOCK, int(np.diff(ends).max()) + 1)),
            pa.json.ParseOptions(explicit_schema=pa.schema([("v", self._parsed)]), unexpected_field_behavior="ignore"),
        )
        column = table.column("v")
        column.validate(full=True)
        if self._parsed == self.type:
            return column
        return pa.chunked_array([_converted(chunk, self.type) for chunk in column.chunks], self.type)

    def _find(self, lines: Any, ends: Any, first: int, last: int, reason: str, bad: list[Bad]) -> bool:
        """Find invalid rows by bisection, and add them to `bad`. Return whether to continue the search."""
        if last - first == 1:
            bad.append(Bad(first, reason.removesuffix(" in row 0")))
            return self.keep_bad
        middle = (first + last) // 2
        for start, end in ((first, middle), (middle, last)):
            try:
                self._parse(lines[ends[start] : ends[end]], ends[start : end + 1])
            except pa.ArrowInvalid as error:
                if not self._find(lines, ends, start, end, str(error), bad):
                    return False
        return True

    def encode(self, values: pa.Array) -> pa.Array:
        """See `Format`."""
        if self.type is not None:
            values = cast(values, fitted(self.type, values.type, "JSON", complete=True))
        texts = _all_texts(values).cast(pa.large_binary())
        if values.null_count:
            texts = pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.large_binary()))
        if not self._frame:
            return texts
        empty = pa.scalar(b"", pa.large_binary())
        return pc.binary_join_element_wise(pa.scalar(self._frame, pa.large_binary()), texts, empty)


# -- reading ----------------------------------------------------------------------------------------------------------


def _parsed_type(kind: pa.DataType, name: str) -> pa.DataType:
    """Return the type that pyarrow.json reads before the cast to `kind`. Raises TypeError if it cannot read `kind`."""
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([field.with_type(_parsed_type(field.type, field.name)) for field in kind])
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(_parsed_type(kind.value_type, name)))
    if t.is_date32(kind) or t.is_time(kind):
        return pa.string()
    if t.is_map(kind):
        raise TypeError(f"{name}: cannot read JSON into {kind}; name the fields that you need with pa.struct([...])")
    plain = (
        t.is_null, t.is_boolean, t.is_integer, t.is_float32, t.is_float64, t.is_string, t.is_large_string,
        t.is_timestamp, t.is_decimal128, t.is_decimal256,
    )  # fmt: skip
    if not any(test(kind) for test in plain):
        raise TypeError(f"{name}: cannot read JSON into {kind}; read a similar type (text, list), then cast it")
    return kind


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array of `_parsed_type(kind)` from the reader to `kind`. Raises ArrowInvalid for invalid times."""
    t = pa.types
    mask = values.is_null() if values.null_count else None
    if values.type == kind:
        return values
    if t.is_struct(kind):
        columns = [_converted(values.field(index), field.type) for index, field in enumerate(kind)]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)
    if t.is_list(kind):
        return pa.ListArray.from_arrays(values.offsets, _converted(values.values, kind.value_type), kind, mask=mask)
    if t.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01", values, "T").cast(pa.timestamp(kind.unit)).cast(kind)
    return values.cast(kind)


def _buffers(values: pa.Array) -> tuple[Any, Any]:
    """Return (ends, data) of a binary column as numpy arrays. Value i is data[ends[i] : ends[i + 1]]."""
    _, ends, data = values.buffers()
    found = np.frombuffer(ends, np.int64 if pa.types.is_large_binary(values.type) else np.int32)
    some = found[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return some, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _lines(data: Any, ends: Any, valid: Any) -> tuple[Any, Any]:
    """Return one line for each value, and the end of each line. Set `valid` to 0 for values that are not JSON texts."""
    size = int(ends[-1] - ends[0]) + MOST_ADDED * len(valid)
    out, line_ends = np.empty(size, np.uint8), np.empty(len(valid) + 1, np.int64)
    kernel("json_lines")(
        *at("B", data), *at("q", ends), *at("B", valid), *at("B", PREFIX), *at("B", out), *at("q", line_ends)
    )
    return out[: line_ends[-1]], line_ends


# -- writing ----------------------------------------------------------------------------------------------------------


class _UnwritableError(ValueError):
    """Raised for values that have no JSON text."""


def _all_texts(values: pa.Array, first: int = 0) -> pa.Array:
    """Return the JSON text of each value. Raises ValueError that names the first row with an invalid value.

    `first` is the row number of `values[0]`. An invalid row is found by bisection.
    """
    try:
        return _text(values, "the value")
    except _UnwritableError as error:
        if len(values) == 1:
            raise ValueError(f"row {first}: {error}") from None
    half = len(values) // 2
    _all_texts(values.slice(0, half), first)
    return _all_texts(values.slice(half), first + half)


def _check_years(values: pa.Array, texts: pa.Array, name: str) -> None:
    """Raise _UnwritableError for times whose texts Arrow cannot read.

    These are times outside the years 0 to 9999, and nanoseconds in the second of the smallest 64-bit value. For the
    latter, Arrow's parser computes the start of that second, which overflows.
    """
    good = pc.match_substring_regex(texts, "^[0-9]{4}-")
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        good = pc.and_(good, pc.greater_equal(values.cast(pa.int64()), _FIRST_SECOND_NS))
    if not pc.all(good, min_count=0).as_py():
        number = values.filter(pc.invert(good))[0].cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
        raise _UnwritableError(
            f"{name}: {number} of type {values.type} cannot be written as a time in JSON; replace it first, for "
            "example by null"
        )


def _text(values: pa.Array, name: str) -> pa.Array:
    """Return the JSON text of each value as large_string without nulls.

    Raises TypeError for unsupported types, and _UnwritableError for values without a text.
    """
    t = pa.types
    values = plain(values)
    kind = values.type
    if t.is_struct(kind):
        require_distinct(kind, f"{name}.")
        return _or_null(values, _object(values))
    if t.is_map(kind):
        return _or_null(values, _joined(values, _entries(values, name), "{", "}"))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return _or_null(values, _joined(values, _text(values.flatten(), name), "[", "]"))
    if t.is_null(kind):
        return pa.array(["null"] * len(values), pa.large_string())
    if t.is_floating(kind):
        wide = values.cast(pa.float64()) if t.is_float16(kind) else values
        if not pc.all(pc.is_finite(wide), min_count=0).as_py():
            number = wide.filter(pc.invert(pc.is_finite(wide)))[0].as_py()
            raise _UnwritableError(f"{name}: JSON cannot represent {number}; replace it first, for example by null")
        texts = wide.cast(pa.large_string())
    elif t.is_boolean(kind) or t.is_integer(kind) or t.is_decimal(kind):
        texts = values.cast(pa.large_string())
    elif t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        texts = _quoted(values.cast(pa.large_string()))
    elif t.is_timestamp(kind):
        utc = values if kind.tz is None else values.cast(pa.timestamp(kind.unit, "UTC"))
        texts = pc.replace_substring(utc.cast(pa.large_string()), " ", "T")
        _check_years(values, texts, name)
        texts = _quoted(texts)
    elif t.is_date(kind):
        texts = values.cast(pa.large_string())
        _check_years(values, texts, name)
        texts = _quoted(texts)
    elif t.is_time(kind):
        texts = _quoted(values.cast(pa.large_string()))
    else:
        raise TypeError(f"{name}: cannot write {kind} as JSON; cast it first, for example bytes to base64 text")
    return texts.fill_null("null")


def _or_null(values: pa.Array, texts: pa.Array) -> pa.Array:
    return texts if values.null_count == 0 else pc.if_else(values.is_valid(), texts, "null")


def _join(*parts: Any) -> pa.Array:
    scalars = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar("", pa.large_string()))


def _object(values: pa.Array) -> pa.Array:
    if not values.type.num_fields:
        return pa.array(["{}"] * len(values), pa.large_string())
    parts: list[Any] = []
    for field, column in zip(values.type, values.flatten(), strict=True):
        parts += [("," if parts else "{") + json.dumps(field.name, ensure_ascii=False) + ":", _text(column, field.name)]
    return _join(*parts, "}")


def _entries(values: pa.Array, name: str) -> pa.Array:
    lists = values.cast(
        pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)]))
    ).flatten()
    keys, items = lists.flatten()
    if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        raise TypeError(f"{name}: the keys of a map must be strings in JSON, not {keys.type}")
    return _join(_quoted(keys.cast(pa.large_string())), ":", _text(items, name))


def _joined(values: pa.Array, items: pa.Array, before: str, after: str) -> pa.Array:
    """Return one text for each list: its items, with commas between them."""
    if pa.types.is_map(values.type):
        values = values.cast(pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])))
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), out=ends[1:])
    lists = pa.LargeListArray.from_arrays(pa.array(ends), items)
    return _join(before, pc.binary_join(lists, pa.scalar(",", pa.large_string())), after)


def _quoted(texts: pa.Array) -> pa.Array:
    texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, "[\\x00-\\x1f]")).as_py():
        for code in range(0x20):
            texts = pc.replace_substring(texts, chr(code), json.dumps(chr(code))[1:-1])
    return _join('"', texts, '"')
