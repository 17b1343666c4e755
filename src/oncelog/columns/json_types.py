"""Say how JSON is read into each type: what prepares it for pyarrow.json, and what converts the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.columns import json_nodes as shapes
from oncelog.columns.fitting import require_distinct
from oncelog.columns.native import kernel
from oncelog.columns.signatures import at
from oncelog.columns.values import buffers, mask, valid_bits

WHOLE = "the value"
"""What messages call the whole value, which has no name of its own."""
MOST_DIGITS = 76
"""Digits of Arrow's largest decimal."""
JSON_TEXT = getattr(pa, "json_", pa.string)()
"""Any value, which becomes a text with its JSON. pyarrow 18 has no such type: there, it is a text in JSON."""


def _is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the column that is read for a type: that of its texts in place of JSON."""
    t = pa.types
    if _is_json(kind):
        return kind.storage_type
    if t.is_struct(kind):
        return pa.struct([field.with_type(read_type(field.type)) for field in kind])
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(read_type(kind.value_type)))
    if t.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(read_type(kind.item_type)), kind.keys_sorted)
    return kind


def _is_binary(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind))


def parsed_type(kind: pa.DataType, name: str) -> pa.DataType:
    """Return the type that pyarrow.json reads before `converted`. Raises TypeError if JSON cannot be read into `kind`.

    Raises ValueError if two fields have the same name, because pyarrow.json would merge them.
    A map is read as an array of objects with `key` and `value`, because `Shape` rewrites it.
    """
    t = pa.types
    if t.is_struct(kind):
        require_distinct(kind, _below(name, ""))
        return pa.struct([field.with_type(parsed_type(field.type, _below(name, field.name))) for field in kind])
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(parsed_type(kind.value_type, name)))
    if t.is_map(kind):
        if not (t.is_string(kind.key_type) or t.is_large_string(kind.key_type)):
            raise TypeError(f"{name}: the keys of a map must be strings in JSON, not {kind.key_type}")
        return pa.list_(pa.struct([("key", kind.key_type), ("value", parsed_type(kind.item_type, name))]))
    if t.is_date32(kind) or t.is_time(kind) or _is_binary(kind):
        return pa.string()
    if _is_json(kind):
        return pa.struct([("text", pa.string())])
    if t.is_decimal(kind):
        if not 0 <= kind.scale <= MOST_DIGITS:
            raise TypeError(f"{name}: cannot read JSON into {kind}; its scale must be from 0 to {MOST_DIGITS}")
        small = t.is_decimal32(kind) or t.is_decimal64(kind)
        return pa.decimal128(kind.precision, kind.scale) if small else kind
    if t.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pa.timestamp("us", kind.tz)  # a text may have six digits, as Python writes them, if the last are zeros
    if t.is_null(kind):
        return pa.bool_()  # pyarrow.json miscounts nulls in lists
    plain = (
        t.is_boolean, t.is_integer, t.is_float32, t.is_float64, t.is_string, t.is_large_string,
        t.is_timestamp,
    )  # fmt: skip
    if not any(test(kind) for test in plain):
        raise TypeError(f"{name}: cannot read JSON into {kind}; read a similar type (text, list), then cast it")
    return kind


def _below(name: str, field: str) -> str:
    return field if name == WHOLE else f"{name}.{field}"


def converted(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Convert an array of `parsed_type(kind)` from the reader to `kind`. Raises ArrowInvalid for texts that do not fit.

    `name` is the path of the column.
    """
    t = pa.types
    mask = values.is_null() if values.null_count else None
    if values.type == kind:
        return values
    if t.is_struct(kind):
        columns = [
            converted(values.field(index), field.type, _below(name, field.name)) for index, field in enumerate(kind)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)
    if t.is_list(kind):
        items = converted(values.values, kind.value_type, name)
        return pa.ListArray.from_arrays(values.offsets, items, kind, mask=mask)
    if t.is_map(kind):
        keys, items = (values.values.field(index) for index in (0, 1))
        return pa.MapArray.from_arrays(values.offsets, keys, converted(items, kind.item_type, name), kind, mask=mask)
    if t.is_null(kind):
        if values.null_count < len(values):
            raise pa.ArrowInvalid(f"{name}: it must be null, not a boolean")
        return pa.nulls(len(values))
    if _is_binary(kind):
        return _bytes(values, kind, name)
    if t.is_struct(values.type):  # JSON_TEXT
        return values.flatten()[0].cast(kind)
    if t.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01", values, "T").cast(pa.timestamp(kind.unit)).cast(kind)
    return values.cast(kind)


def _bytes(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return the bytes of base64 texts. Raises ArrowInvalid."""
    ends, data = buffers(values)
    out, out_ends = np.empty(max(int(ends[-1] - ends[0]), 1), np.uint8), np.zeros(len(ends), np.int64)
    row = kernel("base64_decode")(*at("B", data), *at("q", ends), *at("B", out), *at("q", out_ends))
    if row >= 0:
        raise pa.ArrowInvalid(f"{name}: {values[row].as_py()[:40]!r} is not base64")
    found = pa.Array.from_buffers(
        pa.large_binary(),
        len(values),
        [mask(valid_bits(values)), pa.py_buffer(out_ends), pa.py_buffer(out[: out_ends[-1]])],
    )
    if pa.types.is_fixed_size_binary(kind):
        wrong = found.filter(pc.not_equal(pc.binary_length(found), kind.byte_width))
        if len(wrong):
            raise pa.ArrowInvalid(f"{name}: {len(wrong[0].as_py())} bytes, but its type has {kind.byte_width}")
        if not kind.byte_width:
            return pa.array([None if one is None else b"" for one in found.to_pylist()], kind)
    return found.cast(kind)


# -- what the kernel prepares -----------------------------------------------------------------------------------------

_REASONS = {
    shapes.NO_OBJECT: "it must be an object, because its type is {0}",
    shapes.NO_NUMBER: "it is not a number, but its type is {0}",
    shapes.MANY_DIGITS: "its number does not fit {0} without loss",
}


class Shape:
    """What the kernel `json_shaped` rewrites in lines `{"v":VALUE}`: maps, numbers of decimals, and JSON as texts."""

    def __init__(self, kind: pa.DataType) -> None:
        self._numbers = [shapes.ANY]
        self._names = bytearray()
        self._places: dict[int, tuple[str, pa.DataType]] = {}
        self._depth = 1
        self._has_texts = False
        self._root = self._add(pa.struct([("v", kind)]), "", 1)
        self.needed = self._root != 0
        """Whether there is something to rewrite."""

    def _add(self, kind: pa.DataType, name: str, depth: int) -> int:
        """Add the node of a type, and return its place: 0 if there is nothing to rewrite."""
        t = pa.types
        self._depth = max(self._depth, depth)
        if t.is_struct(kind):
            fields = []
            for field in kind:
                of = self._add(field.type, (WHOLE if not name else _below(name, field.name)), depth + 1)
                if of:
                    start = len(self._names)
                    self._names += field.name.encode()
                    fields.append((start, len(self._names), of))
            return self._node(kind, name, shapes.STRUCT, len(fields), *sum(fields, ())) if fields else 0
        if t.is_list(kind):
            of = self._add(kind.value_type, name, depth + 1)
            return self._node(kind, name, shapes.LIST, of) if of else 0
        if t.is_map(kind):
            return self._node(kind, name, shapes.MAP, self._add(kind.item_type, name, depth + 1))
        if t.is_decimal(kind):
            return self._node(kind, name, shapes.DECIMAL, kind.precision, kind.scale)
        if _is_json(kind):
            self._has_texts = True
            return self._node(kind, name, shapes.TEXT)
        return 0

    def _node(self, kind: pa.DataType, name: str, *numbers: int) -> int:
        place = len(self._numbers)
        self._numbers += numbers
        self._places[place] = (name, kind)
        return place

    def reason(self, fault: int) -> str:
        """Return why a line is bad."""
        place, code = divmod(fault, shapes.CODES)
        if code == shapes.NOT_JSON:
            return "it is not valid JSON"
        name, kind = self._places[place]
        return f"{name}: {_REASONS[code].format(kind)}"

    def rewritten(self, lines: Any, ends: Any) -> tuple[Any, Any, Any]:
        """Return the lines in the shape, the end of each, and the faults of lines that do not have it."""
        rows = len(ends) - 1
        colons, commas, opened = (int(np.count_nonzero(lines == byte)) for byte in b":,[")
        grown = shapes.MAP_GROWTH * colons + shapes.DECIMAL_GROWTH * (colons + commas + opened)
        if self._has_texts:
            escaped = int(np.count_nonzero((lines == 0x22) | (lines == 0x5C)))
            grown += len(lines) + escaped + shapes.TEXT_GROWTH * (colons + commas + opened)
        out = np.empty(len(lines) + grown + 3 * rows + 1, np.uint8)
        out_ends, faults = np.empty(rows + 1, np.int64), np.zeros(rows, np.int64)
        numbers, stack = np.array(self._numbers, np.int64), np.zeros(self._depth, np.int64)
        names = np.frombuffer(bytes(self._names) or b"\0", np.uint8)
        kernel("json_shaped")(
            *at("B", lines), *at("q", ends), *at("q", numbers), *at("B", names), *at("q", stack), self._root,
            *at("B", out), *at("q", out_ends), *at("q", faults),
        )  # fmt: skip
        return out[: out_ends[-1]], out_ends, faults
