"""Write values as JSON texts, with Arrow's string functions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.columns.fitting import plain, require_distinct
from oncelog.columns.native import kernel
from oncelog.columns.signatures import at
from oncelog.columns.values import buffers, entries, lengths, mask, valid_bits

_FIRST_SECOND_NS = -(2**63 // 10**9) * 10**9


class _UnwritableError(ValueError):
    """Raised for values that have no JSON text."""


def all_texts(values: pa.Array, first: int = 0) -> pa.Array:
    """Return the JSON text of each value. Raises ValueError that names the first row with an invalid value.

    `first` is the row number of `values[0]`. An invalid row is found by bisection.
    """
    try:
        return _text(values, "the value")
    except _UnwritableError as error:
        if len(values) == 1:
            raise ValueError(f"row {first}: {error}") from None
    half = len(values) // 2
    all_texts(values.slice(0, half), first)
    return all_texts(values.slice(half), first + half)


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
    elif t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        texts = _join('"', _base64(values), '"')
    else:
        raise TypeError(f"{name}: cannot write {kind} as JSON; cast it first, for example to text")
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
    keys, items = entries(values).flatten().flatten()
    if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        raise TypeError(f"{name}: the keys of a map must be strings in JSON, not {keys.type}")
    return _join(_quoted(keys.cast(pa.large_string())), ":", _text(items, name))


def _joined(values: pa.Array, items: pa.Array, before: str, after: str) -> pa.Array:
    """Return one text for each list: its items, with commas between them."""
    if pa.types.is_map(values.type):
        values = entries(values)
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths(values), out=ends[1:])
    lists = pa.LargeListArray.from_arrays(pa.array(ends), items)
    return _join(before, pc.binary_join(lists, pa.scalar(",", pa.large_string())), after)


def _quoted(texts: pa.Array) -> pa.Array:
    texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, "[\\x00-\\x1f]")).as_py():
        for code in range(0x20):
            texts = pc.replace_substring(texts, chr(code), json.dumps(chr(code))[1:-1])
    return _join('"', texts, '"')


def _base64(values: pa.Array) -> pa.Array:
    """Return bytes in base64, with padding."""
    values = values.cast(pa.large_binary())
    ends, data = buffers(values)
    out = np.empty(max(int((ends[-1] - ends[0] + 2 * len(values)) // 3 * 4), 1), np.uint8)
    out_ends = np.zeros(len(ends), np.int64)
    kernel("base64_encode")(*at("B", data), *at("q", ends), *at("B", out), *at("q", out_ends))
    return pa.Array.from_buffers(
        pa.large_string(),
        len(values),
        [mask(valid_bits(values)), pa.py_buffer(out_ends), pa.py_buffer(out[: out_ends[-1]])],
    )
