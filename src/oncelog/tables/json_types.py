"""Find the type that holds all JSON values of a sample, without loss."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from oncelog.columns.json_types import JSON_TEXT

DEEPEST = 32
"""Levels of objects and lists that get types. What is below them is a text."""
_MOST = 10**38
"""The first integer with more than 38 digits, which are the most for DuckDB."""


def type_of(values: list[Any], depth: int = 0) -> pa.DataType:
    """Return the type of values as `json.loads` returns them. Those without a common type are texts with their JSON.

    Fields that are null in all values are texts. Integers that a type with fractions would round are texts, too.
    """
    some = [each for each in values if each is not None]
    kinds = {type(each) for each in some}
    if depth < DEEPEST and kinds == {dict}:
        fields: dict[str, list[Any]] = {}
        for each in some:
            for name, item in each.items():
                fields.setdefault(name, []).append(item)
        found = [(name, type_of(items, depth + 1)) for name, items in fields.items()]
        return pa.struct(found) if found else JSON_TEXT  # DuckDB has no columns for objects without fields
    if depth < DEEPEST and kinds == {list}:
        return pa.list_(type_of([item for each in some for item in each], depth + 1))
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {str} or not kinds:
        return pa.string()
    if kinds == {int}:
        if min(some) >= -(1 << 63) and max(some) < 1 << 63:
            return pa.int64()
        return pa.decimal128(38, 0) if max(map(abs, some)) < _MOST else JSON_TEXT
    return pa.float64() if kinds <= {int, float} and all(map(_is_double, some)) else JSON_TEXT


def _is_double(number: int | float) -> bool:
    try:
        return isinstance(number, float) or int(float(number)) == number
    except OverflowError:
        return False
