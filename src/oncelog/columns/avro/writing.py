"""Write Arrow columns as Avro values, with the kernel `avro_write`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelog.columns.avro import operations as op
from oncelog.columns.avro.programs import Program
from oncelog.columns.avro.schemas import DURATION, Node, below, default_bytes, named_members
from oncelog.columns.fitting import cast, fitted
from oncelog.columns.native import kernel
from oncelog.columns.signatures import address, at
from oncelog.columns.values import bits, buffers, mask, valid_bits

NONE = -1
MOST_BYTES = 1 << 40
"""No more bytes are written for one column of values."""
_NUMBERS = ("int", "long", "enum")


class Writer:
    """Writes values of columns that fit `node`, whose type is `kind`, each after the bytes `prefix`."""

    def __init__(self, node: Node, kind: pa.DataType, prefix: bytes) -> None:
        self._node = node
        self._type = kind
        self._prefix = prefix
        self.writes_null = node.kind == "null" or (node.kind == "union" and len(node.members()) < len(node.items))
        self._plans: dict[pa.DataType, _Plan] = {}

    def write(self, values: pa.Array) -> pa.Array:
        """Return the values as large_binary. Raises ValueError, with the row or the column, if they do not fit.

        Fields of the schema that a struct lacks get their defaults.
        """
        kind = fitted(self._type, values.type, "Avro")
        values = cast(values, kind)
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._plans[kind] = _Plan(self._node, kind, self._prefix)
        rows = len(values)
        valid = np.ones(rows, np.uint8) if self.writes_null else bits(values.buffers()[0], values)
        out, ends = plan.run(values, valid)
        return pa.Array.from_buffers(pa.large_binary(), rows, [mask(valid), pa.py_buffer(ends), pa.py_buffer(out)])


class _Plan:
    """The program for one type of columns, and how to describe the columns to the kernel."""

    def __init__(self, node: Node, kind: pa.DataType, prefix: bytes) -> None:
        self._program = Program()
        self._levels = 1
        self._columns: list[tuple[int, Node]] = []
        """The level of each column, and what it is written as."""
        self._names: list[str] = []
        self._put(prefix)
        self._write(node, kind, "", 0)
        self._program.step(op.STOP)
        self._code, self._tables, self._pool = self._program.arrays()

    # -- the program ------------------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        if data:
            self._program.step(op.PUT, NONE, *self._program.constant(data))

    def _column(self, node: Node, name: str, level: int) -> int:
        self._columns.append((level, node))
        self._names.append(name)
        return len(self._columns) - 1

    def _write(self, node: Node, kind: pa.DataType, name: str, level: int) -> int:
        """Add the steps for a type. Return its column."""
        if node.kind != "union":
            column = self._column(node, name, level)
            if node.kind != "null":
                self._program.step(op.MAYBE, column, 0, self._program.table(NONE, NONE))
            self._value(node, kind, name, level, column)
            return column
        null = next((index for index, item in enumerate(node.items) if item.kind == "null"), NONE)
        members = node.members()
        if len(members) == 1:
            column = self._column(members[0], name, level)
            step = self._program.step(op.MAYBE, column, 0, self._program.table(null, node.items.index(members[0])))
            self._value(members[0], kind, name, level, column)
        else:
            column = self._column(node, name, level)
            step = self._program.step(op.MAYBE, column, 0, self._program.table(null, NONE))
            if members:
                self._members(node, kind, name, level)
        self._program.point(step)
        return column

    def _members(self, node: Node, kind: pa.DataType, name: str, level: int) -> None:
        """Add the steps for a struct of which one field has a value. Fields that the struct lacks have none."""
        there = [field.name for field in kind]
        used = [(of, index) for index, (of, _) in enumerate(named_members(node)) if of in there]
        place = self._program.table(*[NONE] * (3 * len(used)))
        self._program.step(op.MEMBER, len(self._columns) - 1, place, len(used))
        ends = []
        for number, (of, index) in enumerate(used):
            member = node.members()[index]
            start = self._program.here
            column = self._column(member, below(name, of), level)
            self._value(member, kind.field(of).type, below(name, of), level, column)
            ends.append(self._program.step(op.GO))
            self._program.tables[place + 3 * number : place + 3 * number + 3] = (
                column, node.items.index(member), start,
            )  # fmt: skip
        for end in ends:
            self._program.point(end)

    def _value(self, node: Node, kind: pa.DataType, name: str, level: int, column: int) -> None:
        """Add the steps for a value that is not null."""
        if node.kind == "record":
            there = {field.name: field.type for field in kind}
            for each in node.fields:
                if each.name in there:
                    self._write(each.node, there[each.name], below(name, each.name), level)
                elif each.has_default:
                    self._put(default_bytes(each, below(name, each.name)))
                else:
                    raise ValueError(f"the columns have no {below(name, each.name)}, and the schema has no default")
        elif node.kind in ("array", "map"):
            self._levels += 1
            inside = self._levels - 1
            step = self._program.step(op.PUT_LIST, column, 0, inside)
            body = self._program.here
            if node.kind == "map":
                self._program.step(op.PUT_BYTES, self._column(Node("string"), f"a key of {name}", inside))
            self._write(node.items[0], kind.item_type if node.kind == "map" else kind.value_type, name, inside)
            self._program.step(op.PUT_ITEM, column, body, inside)
            self._program.point(step)
        elif node.logical == "decimal":
            self._program.step(op.PUT_DECIMAL, column, node.size if node.kind == "fixed" else NONE)
        elif node.logical == DURATION:
            self._program.step(op.PUT_DURATION, column)
        elif node.kind in ("bytes", "string"):
            self._program.step(op.PUT_BYTES, column)
        elif node.kind != "null":
            steps = {"boolean": op.PUT_BOOLEAN, **dict.fromkeys(_NUMBERS, op.PUT_NUMBER)}
            self._program.step(steps.get(node.kind, op.PUT_RAW), column)

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, values: pa.Array, valid: Any) -> tuple[Any, Any]:
        """Return the bytes of all values, and the end of each. Raises ValueError."""
        kept: list[Any] = []
        described: list[int] = []
        self._describe(values, iter(self._columns), described, kept)
        columns = np.array(described, np.int64)
        rows, stack, result = np.zeros(self._levels, np.int64), np.zeros(self._levels, np.int64), np.zeros(2, np.int64)
        out = np.empty(max(values.nbytes * 2, 1024), np.uint8)
        ends = np.zeros(len(values) + 1, np.int64)
        first = 0
        while True:
            status = kernel("avro_write")(
                *at("q", self._code), *at("q", self._tables), *at("B", self._pool), *at("q", columns), *at("B", valid),
                first, *at("q", rows), *at("q", stack), *at("B", out), *at("q", ends), *at("q", result),
            )  # fmt: skip
            if status == op.OK:
                return out[: ends[-1]], ends
            first, column = (int(number) for number in result)
            if status != op.NO_ROOM:
                name = self._names[column] or "the value"
                raise ValueError(f"row {first} does not fit the Avro schema: {name} {op.COMPLAINTS[status]}")
            if len(out) > MOST_BYTES:
                raise ValueError(f"the Avro values have more than {MOST_BYTES} bytes")
            larger = np.empty(2 * len(out), np.uint8)
            larger[: ends[first]] = out[: ends[first]]
            out = larger

    def _describe(self, values: pa.Array, columns: Any, described: list[int], kept: list[Any]) -> None:
        """Add the numbers of a column and of those in it, in the order of `_columns`. `kept` keeps their memory."""
        level, node = next(columns)
        kind, t = values.type, pa.types
        data, ends, size = None, None, 0
        parts: list[pa.Array] = []
        if node.kind == "enum":
            data = _symbols(values, node)
            size = 4
        elif t.is_struct(kind):
            parts = values.flatten()
        elif t.is_list(kind) or t.is_map(kind):
            ends = np.frombuffer(values.offsets.buffers()[1], np.int32)[values.offsets.offset :].astype(np.int64)
            parts = [values.keys, values.items] if t.is_map(kind) else [values.values]
        elif t.is_boolean(kind):
            data = bits(values.buffers()[1], values)
        elif t.is_string(kind) or t.is_binary(kind):
            ends, data = buffers(values)
        elif not t.is_null(kind):
            size = kind.bit_width // 8
            data = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * size :]
        valid = valid_bits(values) if values.null_count else None
        kept += (data, ends, valid)
        described += (_address(data), level, size, _address(ends), _address(valid), len(values))
        for part in parts:
            self._describe(part, columns, described, kept)


def _symbols(values: pa.Array, node: Node) -> Any:
    """Return the number of each value's symbol. Raises ValueError for another text."""
    found = pc.index_in(values, pa.array(node.symbols, values.type))
    unknown = pc.and_(values.is_valid(), found.is_null())
    if pc.any(unknown).as_py():
        text = values.filter(unknown)[0].as_py()
        raise ValueError(f"{text!r} is not a symbol of {node.name}: {', '.join(node.symbols)}")
    return np.frombuffer(found.fill_null(0).buffers()[1], np.int32)


def _address(memory: Any) -> int:
    return 0 if memory is None or not len(memory) else address(memory)
