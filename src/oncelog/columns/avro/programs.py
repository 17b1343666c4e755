"""Write the program that reads values of one Avro schema into the columns of another: Avro's rules of resolution.

`read_kernel` runs it, `operations` describes its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from oncelog.columns.avro import operations as op
from oncelog.columns.avro.schemas import DURATION, Field, Node, below, default_bytes

SKIP = -1

SAME = {
    "boolean": op.BOOLEAN,
    "int": op.INT,
    "long": op.LONG,
    "bytes": op.BYTES,
    "string": op.TEXT,
}
PROMOTED = {
    ("int", "long"): op.LONG,
    ("int", "float"): op.LONG_TO_FLOAT,
    ("int", "double"): op.LONG_TO_DOUBLE,
    ("long", "float"): op.LONG_TO_FLOAT,
    ("long", "double"): op.LONG_TO_DOUBLE,
    ("float", "double"): op.FLOAT_TO_DOUBLE,
    ("string", "bytes"): op.BYTES,
    ("bytes", "string"): op.TEXT,
}
SIZES = {"float": 4, "double": 8}


class ResolutionError(ValueError):
    """Raised if a schema cannot be read with another."""


@dataclass(eq=False, slots=True)
class Column:
    """A column that the kernel appends to. Its first child is the next column."""

    index: int
    kind: pa.DataType
    counts_rows: bool
    """Whether it has a value for each row, because no list or map is around it."""
    children: list[Column] = field(default_factory=list)

    def with_parts(self) -> list[int]:
        """Return the columns that get a null if this one does. The items of lists do not."""
        parts = [part for child in self.children for part in child.with_parts()] if self.is_struct else []
        return [self.index, *parts]

    @property
    def is_struct(self) -> bool:
        """Return whether the children have as many values as the column."""
        return bool(pa.types.is_struct(self.kind))


class Columns:
    """The columns that a type needs, in the order of their numbers. The first one is the value's."""

    def __init__(self, kind: pa.DataType) -> None:
        self.all: list[Column] = []
        self.top = self._add(kind, True)

    def _add(self, kind: pa.DataType, counts_rows: bool) -> Column:
        column = Column(len(self.all), kind, counts_rows)
        self.all.append(column)
        t = pa.types
        if t.is_struct(kind):
            column.children = [self._add(each.type, counts_rows) for each in kind]
        elif t.is_list(kind):
            column.children = [self._add(kind.value_type, False)]
        elif t.is_map(kind):
            column.children = [self._add(kind.key_type, False), self._add(kind.item_type, False)]
        return column


@dataclass(slots=True)
class Program:
    """Steps for the kernel, with the tables and bytes that they refer to. `null_step` is the first for a null."""

    code: list[int] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    pool: bytearray = field(default_factory=bytearray)
    null_step: int = 0

    @property
    def here(self) -> int:
        """The place of the next step."""
        return len(self.code)

    def step(self, what: int, column: int = SKIP, x: int = 0, y: int = 0) -> int:
        """Add a step, and return its place."""
        self.code += (what, column, x, y)
        return self.here - op.STEP

    def point(self, place: int) -> None:
        """Let the operand `x` of a step be the next step."""
        self.code[place + 2] = self.here

    def table(self, *numbers: int) -> int:
        """Add numbers to the tables, and return the place of the first."""
        self.tables += numbers
        return len(self.tables) - len(numbers)

    def constant(self, data: bytes) -> tuple[int, int]:
        """Add bytes to the pool, and return their start and end."""
        self.pool += data
        return len(self.pool) - len(data), len(self.pool)

    def arrays(self) -> tuple[Any, Any, Any]:
        """Return the code, the tables and the pool, as kernels take them."""
        code, tables = (np.array(numbers or [0], np.int64) for numbers in (self.code, self.tables))
        return code, tables, np.frombuffer(bytes(self.pool) or b"\0", np.uint8)


def program(writer: Node, reader: Node, columns: Columns) -> Program:
    """Return the program that reads what `writer` wrote into the columns of `arrow_type(reader)`.

    Raises ResolutionError, with the path, if the schemas do not fit.
    """
    compiler = _Compiler()
    made = compiler.program
    compiler.read(writer, reader, columns.top, "")
    made.step(op.RETURN)
    compiler.add_skipped()
    made.null_step = made.here
    compiler.nulls(columns.top)
    made.step(op.RETURN)
    return made


class _Compiler:
    """Adds steps to a program."""

    def __init__(self) -> None:
        self.program = Program()
        self._calls: list[tuple[int, Node]] = []
        """Steps that call the part which skips a record, and that record."""

    def nulls(self, column: Column) -> None:
        """Append a null to a column and its parts."""
        parts = column.with_parts()
        start = self.program.table(*parts)
        self.program.step(op.NULLS, SKIP, start, start + len(parts))

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, writer: Node, reader: Node, column: Column, path: str) -> None:
        """Add the steps that read one type as another."""
        if writer.kind == "union":
            self._branches(writer, lambda branch: self.read(branch, reader, column, path))
        elif reader.kind == "union":
            self._member(writer, reader, column, path)
        elif not _is_same(writer, reader):
            raise _mismatch(writer, reader, path)
        elif reader.kind == "record":
            self._record(writer, reader, column, path)
        elif reader.kind in ("array", "map"):
            self._list(writer, column, lambda item: self.read(writer.items[0], reader.items[0], item, path))
        elif reader.kind == "enum":
            self._enum(writer, reader, column.index)
        elif reader.kind == "null":
            self.nulls(column)
        elif reader.logical == "decimal":
            self._decimal(writer, reader, column)
        elif reader.logical == DURATION:
            self.program.step(op.DURATION, column.index, reader.size)
        elif reader.kind == "fixed":
            self.program.step(op.FIXED, column.index, reader.size)
        else:
            self._primitive(writer.kind, reader.kind, column.index)

    def _primitive(self, writer: str, reader: str, column: int) -> None:
        if writer == reader and writer in SIZES:
            self.program.step(op.FIXED, column, SIZES[writer])
        else:
            what = SAME[writer] if writer == reader else PROMOTED[writer, reader]
            self.program.step(what, column, SIZES.get(writer, SKIP))

    def _decimal(self, writer: Node, reader: Node, column: Column) -> None:
        size = writer.size if writer.kind == "fixed" else SKIP
        limit, width = 10**reader.precision, column.kind.bit_width // 8
        limits = [number.to_bytes(width, "little", signed=True) for number in (-limit, limit)]
        start, _ = self.program.constant(b"".join(limits))
        self.program.step(op.DECIMAL, column.index, size, start)

    def _branches(self, writer: Node, add: Callable[[Node], None]) -> None:
        """Add a union: `add` adds the steps of a branch. A branch that does not fit is an error of its values only."""
        start = self.program.table(*[SKIP] * len(writer.items))
        self.program.step(op.UNION, SKIP, start, len(writer.items))
        jumps, failure = [], None
        for index, branch in enumerate(writer.items):
            place, calls = self.program.here, len(self._calls)
            try:
                add(branch)
            except ResolutionError as error:
                failure = failure or error
                del self.program.code[place:], self._calls[calls:]
                continue
            self.program.tables[start + index] = place
            jumps.append(self.program.step(op.JUMP))
        if not jumps and failure is not None:
            raise failure
        for jump in jumps:
            self.program.point(jump)

    def _member(self, writer: Node, reader: Node, column: Column, path: str) -> None:
        """Read a type as a branch of a union: the one with its name, otherwise the first one of its kind that fits."""
        fitting = [branch for branch in reader.items if _is_same(writer, branch)]
        branch = min(fitting, key=lambda each: _distance(writer, each), default=None)
        if branch is None or (not _is_called(writer, branch) and sum(each.kind == "record" for each in fitting) > 1):
            raise _mismatch(writer, reader, path)
        if branch.kind == "null":
            self.nulls(column)
            return
        if len(reader.members()) == 1:
            self.read(writer, branch, column, path)
            return
        self.program.step(op.VALID, column.index)
        chosen = reader.members().index(branch)  # a union may name a type again
        for index, child in enumerate(column.children):
            if index == chosen:
                self.read(writer, branch, child, path)
            else:
                self.nulls(child)

    def _record(self, writer: Node, reader: Node, column: Column, path: str) -> None:
        self.program.step(op.VALID, column.index)
        wanted = dict(
            zip([each.name for each in reader.fields], zip(reader.fields, column.children, strict=True), strict=True)
        )
        there = {each.name for each in writer.fields}
        by_alias = {alias: each.name for each in reader.fields for alias in each.aliases if each.name not in there}
        for each in writer.fields:
            name = each.name if each.name in wanted else by_alias.get(each.name, "")
            if name in wanted:
                of, child = wanted.pop(name)
                self.read(each.node, of.node, child, below(path, of.name))
            else:
                self.skip(each.node)
        for of, child in wanted.values():
            self._default(of, child, below(path, of.name))

    def _default(self, of: Field, column: Column, path: str) -> None:
        if not of.has_default:
            raise ResolutionError(f"{path}: the writer's schema lacks this field, and it has no default")
        try:
            start, end = self.program.constant(default_bytes(of, path))
        except ValueError as error:
            raise ResolutionError(str(error)) from None
        self.program.step(op.POOL, SKIP, start, end)
        self.read(of.node, of.node, column, path)
        self.program.step(op.DATA)

    def _list(self, writer: Node, column: Column | None, add: Callable[[Column], None]) -> None:
        """Add an array or a map: `add` adds the steps of an item. Without a column, the items are skipped."""
        may_be_empty = int(writer.kind == "array" and writer.items[0].may_be_empty())
        start = self.program.step(op.LIST, SKIP if column is None else column.index, 0, may_be_empty)
        body = self.program.here
        if writer.kind == "map":
            self.program.step(op.TEXT, SKIP if column is None else column.children[0].index, SKIP)
        if column is None:
            self.skip(writer.items[0])
        else:
            add(column.children[-1])
        self.program.step(op.ITEM, SKIP if column is None else column.index, body, may_be_empty)
        self.program.point(start)

    def _enum(self, writer: Node, reader: Node, column: int) -> None:
        known = [symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols]
        places = [(SKIP, SKIP) if symbol is None else self.program.constant(symbol.encode()) for symbol in known]
        start = self.program.table(*chain.from_iterable(places))
        self.program.step(op.ENUM, column, start, len(writer.symbols))

    # -- skipping -----------------------------------------------------------------------------------------------------

    def skip(self, writer: Node) -> None:
        """Add the steps that skip a type. A record is skipped by a part of its own, because it may contain itself."""
        match writer.kind:
            case "null":
                pass
            case "record":
                self._calls.append((self.program.step(op.CALL), writer))
            case "union":
                self._branches(writer, self.skip)
            case "array" | "map":
                self._list(writer, None, lambda _: None)
            case "fixed" | "float" | "double":
                self.program.step(op.FIXED, SKIP, writer.size or SIZES.get(writer.kind, 0))
            case "enum":
                self.program.step(op.LONG)
            case _:
                self.program.step(SAME[writer.kind], SKIP, SKIP)

    def add_skipped(self) -> None:
        """Add the parts that skip records."""
        places: dict[Node, int] = {}
        while self._calls:
            call, record = self._calls.pop()
            if record not in places:
                places[record] = self.program.here
                for each in record.fields:
                    self.skip(each.node)
                self.program.step(op.RETURN)
            self.program.code[call + 2] = places[record]


# -- resolution -------------------------------------------------------------------------------------------------------


def _is_same(writer: Node, reader: Node) -> bool:
    """Return whether values of one type can be read as another. The parts of records, arrays and maps are not compared.

    Logical types must be the same if both have one, because the numbers would get another meaning.
    """
    if writer.logical and reader.logical and (writer.logical, writer.scale) != (reader.logical, reader.scale):
        return False
    if reader.logical == "decimal" and {writer.kind, reader.kind} == {"bytes", "string"}:
        return False
    if writer.kind != reader.kind:
        return (writer.kind, reader.kind) in PROMOTED
    if reader.kind == "fixed" and writer.size != reader.size:
        return False
    return reader.kind == "record" or _is_called(writer, reader)


def _distance(writer: Node, reader: Node) -> tuple[bool, bool, bool]:
    """Return how far a branch of a union is from a type: the kind counts most, then the full name, then the name."""
    return reader.kind != writer.kind, reader.name != writer.name, not _is_called(writer, reader)


def _is_called(writer: Node, reader: Node) -> bool:
    return not reader.name or reader.is_called(writer.name)


def _mismatch(writer: Node, reader: Node, path: str) -> ResolutionError:
    return ResolutionError(f"{path or 'the value'}: {_shown(writer)} cannot be read as {_shown(reader)}")


def _shown(node: Node) -> str:
    if node.kind == "union":
        return f"a union of {', '.join(_shown(item) for item in node.items)}"
    return " ".join(filter(None, (node.kind, node.name, node.logical and f"({node.logical})")))
