"""The Arrow buffers that the kernel `avro_read` fills, and which grow on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from oncelog.columns.avro import operations as op
from oncelog.columns.avro.programs import Column, Columns
from oncelog.columns.signatures import address
from oncelog.columns.values import mask

FIRST_ITEMS = 64
"""Room for items of lists at first."""
MOST_BYTES = (1 << 31) - 1
"""Bytes or items of a column, because Arrow's ends have 32 bits."""


class Buffers:
    """The memory of columns. `rows` and `size` are how many values, and bytes of values, are expected."""

    def __init__(self, columns: Columns, rows: int, size: int) -> None:
        self._columns = columns
        self.lengths = np.zeros(2 * len(columns.all), np.int64)
        self.described = np.zeros(op.WIDTH * len(columns.all), np.int64)
        self._parts = {column.index: _Part(column, rows, size) for column in columns.all}
        for part in self._parts.values():
            self._describe(part)

    def _describe(self, part: _Part) -> None:
        at = part.column.index * op.WIDTH
        self.described[at : at + op.WIDTH] = part.described()

    def grow(self, index: int, *, data: bool) -> None:
        """Make room for more bytes or more values in a column, at least twice as much. Raises OverflowError."""
        part = self._parts[index]
        part.grow(data=data)
        self._describe(part)

    def array(self) -> pa.Array:
        """Return the values so far."""
        return self._array(self._columns.top)

    def _array(self, column: Column) -> pa.Array:
        part, kind = self._parts[column.index], column.kind
        rows, used = (int(number) for number in self.lengths[2 * column.index : 2 * column.index + 2])
        t = pa.types
        if t.is_null(kind):
            return pa.nulls(rows)
        valid = mask(part.valid[:rows])
        if t.is_struct(kind):
            return pa.Array.from_buffers(
                kind, rows, [valid], children=[self._array(child) for child in column.children]
            )
        ends = None if part.ends is None else pa.py_buffer(part.ends[: rows + 1])
        if t.is_list(kind):
            return pa.Array.from_buffers(kind, rows, [valid, ends], children=[self._array(column.children[0])])
        if t.is_map(kind):
            keys, items = (self._array(child) for child in column.children)
            pairs = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
            return pa.Array.from_buffers(kind, rows, [valid, ends], children=[pairs])
        data = part.data[:used]
        if t.is_boolean(kind):
            data = np.packbits(data, bitorder="little")
        middle = [] if ends is None else [ends]
        return pa.Array.from_buffers(kind, rows, [valid, *middle, pa.py_buffer(data)])


class _Part:
    """The memory of one column."""

    def __init__(self, column: Column, rows: int, size: int) -> None:
        self.column = column
        t, kind = pa.types, column.kind
        self.size = -1
        """Bytes of each value; 0 if they differ, -1 if there are none."""
        room = max(rows, 1) if column.counts_rows else FIRST_ITEMS
        data = 0
        if t.is_string(kind) or t.is_binary(kind):
            self.size, data = 0, min(max(size, FIRST_ITEMS), MOST_BYTES)
        elif t.is_boolean(kind):
            self.size = 1
        elif not (t.is_null(kind) or t.is_nested(kind)):
            self.size = kind.bit_width // 8
        has_ends = self.size == 0 or t.is_list(kind) or t.is_map(kind)
        self.data = _memory(data or max(self.size, 0) * room, np.uint8)
        self.ends: Any = None
        if has_ends:
            self.ends = _memory(room + 1, np.int32)
            self.ends[0] = 0
        self.valid = _memory(room, np.uint8)

    def described(self) -> tuple[int, ...]:
        """Return the numbers of `operations`."""
        ends = 0 if self.ends is None else address(self.ends)
        return address(self.data), len(self.data), self.size, ends, address(self.valid), len(self.valid)

    def grow(self, *, data: bool) -> None:
        """Make room for twice as many bytes, or values. Raises OverflowError."""
        if data:
            self.data = _doubled(self.data)
            return
        self.valid = _doubled(self.valid)
        if self.ends is not None:
            self.ends = _larger(self.ends, len(self.valid) + 1)
        if self.size > 0:
            self.data = _doubled(self.data)


def _doubled(array: Any) -> Any:
    if 2 * len(array) > MOST_BYTES:
        raise OverflowError(f"the values of a column have more than {MOST_BYTES} bytes")
    return _larger(array, max(2 * len(array), 1))


def _larger(array: Any, size: int) -> Any:
    found = _memory(size, array.dtype)
    found[: len(array)] = array
    return found


def _memory(size: int, kind: Any) -> Any:
    """Return an array in memory of Arrow's pool, which keeps what it has got from the system."""
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(kind).itemsize), kind)
