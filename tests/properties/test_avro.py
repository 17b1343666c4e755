"""Random Avro schemas and values: our columns hold what fastavro reads, and fastavro reads what we write."""

from __future__ import annotations

import io
import math
import struct
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from hypothesis import given
from hypothesis import strategies as st

from oncelog.formats import Avro

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


class Types:
    """Draws schemas whose named types have names of their own."""

    def __init__(self, draw: Any, *, mixed: bool = True) -> None:
        self._draw = draw
        self._mixed = mixed
        """Whether a union may have a type and a wider one."""
        self._count = 0

    def type(self, depth: int, *, union: bool = True) -> Any:
        kinds = [*PRIMITIVES, "enum", "fixed"]
        if depth:
            kinds += ["record", "array", "map"] + ["union"] * union
        kind = self._draw(st.sampled_from(kinds))
        if kind == "union":
            return self._union(depth - 1)
        if kind == "array":
            return {"type": "array", "items": self.type(depth - 1)}
        if kind == "map":
            return {"type": "map", "values": self.type(depth - 1)}
        if kind in ("record", "enum", "fixed"):
            self._count += 1
            return self._named(kind, f"T{self._count}", depth)
        return kind

    def _named(self, kind: str, name: str, depth: int) -> Any:
        if kind == "enum":
            return {"type": "enum", "name": name, "symbols": ["A", "B", "C" * 70]}
        if kind == "fixed":
            return {"type": "fixed", "name": name, "size": self._draw(st.integers(1, 4))}
        fields = self._draw(st.lists(NAMES, unique=True, max_size=4))
        return {
            "type": "record",
            "name": name,
            "fields": [{"name": field, "type": self.type(depth - 1)} for field in fields],
        }

    def _union(self, depth: int) -> Any:
        found: list[Any] = []
        for item in [self.type(depth, union=False) for _ in range(self._draw(st.integers(1, 4)))]:
            if isinstance(item, dict) or item not in found:
                same = [each for each in found if kind_of(each) == kind_of(item)]
                near = [each for each in found if kind_of(item) in WIDER.get(kind_of(each), ())]
                near += [each for each in found if kind_of(each) in WIDER.get(kind_of(item), ())]
                if (not same or kind_of(item) in ("record", "enum", "fixed")) and (self._mixed or not near):
                    found.append(item)
        return found


def kind_of(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return schema if isinstance(schema, str) else str(schema["type"])


def value(draw: Any, schema: Any) -> Any:
    """Draw a value in the form that fastavro writes: a union's value is (name, value)."""
    match kind_of(schema):
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "int":
            return draw(st.integers(-(2**31), 2**31 - 1))
        case "long":
            return draw(st.integers(-(2**63), 2**63 - 1))
        case "float":
            return draw(st.floats(width=32))
        case "double":
            return draw(st.floats())
        case "bytes":
            return draw(st.binary(max_size=5))
        case "string":
            return draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
        case "enum":
            return draw(st.sampled_from(schema["symbols"]))
        case "fixed":
            return draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
        case "array":
            return [value(draw, schema["items"]) for _ in range(draw(st.integers(0, 3)))]
        case "map":
            return {str(key): value(draw, schema["values"]) for key in range(draw(st.integers(0, 3)))}
        case "union":
            branch = draw(st.sampled_from(schema))
            found = value(draw, branch)
            return None if branch == "null" else (branch if isinstance(branch, str) else name_of(branch), found)
    return {field["name"]: value(draw, field["type"]) for field in schema["fields"]}


def name_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema.get("name", schema["type"]))


def as_column(schema: Any, found: Any) -> Any:
    """Return a drawn value as our column has it."""
    match kind_of(schema):
        case "array":
            return [as_column(schema["items"], item) for item in found]
        case "map":
            return [(key, as_column(schema["values"], item)) for key, item in found.items()]
        case "record":
            return {field["name"]: as_column(field["type"], found[field["name"]]) for field in schema["fields"]}
        case "union":
            members = [branch for branch in schema if branch != "null"]
            if found is None:
                return None
            branch = next(each for each in members if name_of(each) == found[0])
            if len(members) == 1:
                return as_column(branch, found[1])
            return {
                f"member{index}": as_column(each, found[1]) if each is branch else None
                for index, each in enumerate(members)
            }
    return found


def same(one: Any, other: Any) -> bool:
    """Compare values, NaN as equal to itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@st.composite
def cases(draw: Any, *, mixed: bool = True) -> tuple[Any, list[Any]]:
    schema = Types(draw, mixed=mixed).type(3)
    return schema, [value(draw, schema) for _ in range(draw(st.integers(0, 4)))]


def written(schema: Any, found: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, found)
    return out.getvalue()


@given(cases())
def test_columns_hold_what_fastavro_has_written(case: tuple[Any, list[Any]]) -> None:
    schema, rows = case
    parsed = fastavro.parse_schema(schema)
    form = Avro(schema)
    values = pa.array([written(parsed, row) for row in rows], pa.binary())
    found, bad = form.decode(values)
    found.validate(full=True)
    assert bad == []
    assert same(found.to_pylist(), [as_column(schema, row) for row in rows])


@given(cases())
def test_fastavro_reads_what_columns_have_written(case: tuple[Any, list[Any]]) -> None:
    schema, rows = case
    parsed = fastavro.parse_schema(schema)
    form = Avro(schema)
    assert form.schema is not None
    values = form.encode(pa.array([as_column(schema, row) for row in rows], form.schema.type))
    for row, data in zip(rows, values.to_pylist(), strict=True):
        if data is not None:
            read = fastavro.schemaless_reader(io.BytesIO(data), parsed, None, return_named_type=True)
            assert same(plain(schema, read), plain(schema, row))
        else:
            assert row is None


WIDER = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "bytes": ["string"],
         "string": ["bytes"]}  # fmt: skip
DEFAULTS: list[tuple[Any, Any]] = [
    ("int", -5), ("string", "ü"), (["null", "long"], None), (["long", "null"], 7), ("double", 0.5),
    ({"type": "array", "items": "int"}, [1, 2]), ({"type": "map", "values": "boolean"}, {"k": True}),
    ({"type": "enum", "name": "New", "symbols": ["X", "Y"]}, "Y"), ("boolean", False), ("null", None),
]  # fmt: skip


def evolved(draw: Any, schema: Any, *, inside: bool = False) -> Any:
    """Draw a schema that may read what `schema` has written: other fields, in another order, wider types, unions."""
    kind = kind_of(schema)
    if kind == "union":
        return [evolved(draw, branch, inside=True) if isinstance(branch, dict) else branch for branch in schema]
    choice = draw(st.integers(0, 5))
    if choice == 0 and kind != "null" and not inside:
        return ["null", schema]
    if choice == 1 and kind in WIDER:
        return draw(st.sampled_from(WIDER[kind]))
    if kind == "array":
        return {**schema, "items": evolved(draw, schema["items"])}
    if kind == "map":
        return {**schema, "values": evolved(draw, schema["values"])}
    if kind == "record":
        fields = [
            {**field, "type": evolved(draw, field["type"])} for field in schema["fields"] if draw(st.integers(0, 4))
        ]
        if draw(st.booleans()):
            of, default = draw(st.sampled_from(DEFAULTS))
            if "New" not in str(schema):
                fields.append({"name": "added", "type": of, "default": default})
        return {**schema, "fields": draw(st.permutations(fields))}
    return schema


@given(cases(mixed=False), st.data())
def test_columns_hold_what_fastavro_resolves(case: tuple[Any, list[Any]], data: Any) -> None:
    """Not with a type and a wider one in a union: fastavro takes the first that fits, Java and we the exact one."""
    schema, rows = case
    reader = evolved(data.draw, schema)
    writer, wanted = fastavro.parse_schema(schema), fastavro.parse_schema(reader)
    values = [written(writer, row) for row in rows]
    form = Avro(reader, schemas={1: schema}, keep_bad=True)
    found, bad = form.decode(pa.array([b"\0\0\0\0\1" + each for each in values], pa.binary()))
    found.validate(full=True)
    failed = {item.row: item.reason for item in bad}
    for row, encoded in enumerate(values):
        try:
            read = fastavro.schemaless_reader(io.BytesIO(encoded), writer, wanted, return_named_type=True)
        except (SchemaResolutionError, UnicodeDecodeError):
            assert row in failed
            continue
        assert row not in failed, failed
        assert same(plain_column(reader, found[row].as_py()), plain(reader, read)), (reader, found[row], read)


def plain_column(schema: Any, found: Any) -> Any:
    """Return a column's value without the structs of unions, as `plain` returns fastavro's."""
    match kind_of(schema):
        case "array":
            return [plain_column(schema["items"], item) for item in found]
        case "map":
            return {key: plain_column(schema["values"], item) for key, item in found}
        case "record":
            return {field["name"]: plain_column(field["type"], found[field["name"]]) for field in schema["fields"]}
        case "union":
            members = [branch for branch in schema if branch != "null"]
            if found is None:
                return None
            if len(members) == 1:
                return plain_column(members[0], found)
            ((index, inner),) = [(index, each) for index, each in enumerate(found.values()) if each is not None]
            return plain_column(members[index], inner)
    return found


CONTAINERS: dict[type, tuple[str, ...]] = {list: ("array",), dict: ("map", "record"), float: ("float",)}


def plain(schema: Any, found: Any) -> Any:
    """Return a value without the names of union branches, which fastavro returns for named types only."""
    match kind_of(schema):
        case "float":
            return struct.unpack("f", struct.pack("f", found))[0]  # fastavro returns what a double holds
        case "array":
            return [plain(schema["items"], item) for item in found]
        case "map":
            return {key: plain(schema["values"], item) for key, item in found.items()}
        case "record":
            return {field["name"]: plain(field["type"], found[field["name"]]) for field in schema["fields"]}
        case "union":
            if isinstance(found, tuple):
                return plain(next(each for each in schema if name_of(each) == found[0]), found[1])
            is_double = isinstance(found, float) and "double" in schema  # or a float, which is the same as a double
            kinds = () if is_double else CONTAINERS.get(type(found), ())
            # a record has a name, so a dict without one is a map if there is one
            branch = next((each for kind in kinds for each in schema if kind_of(each) == kind), None)
            return found if branch is None else plain(branch, found)
    return found


@given(cases(), st.data())
def test_damaged_values_are_bad_and_their_neighbours_are_not(case: tuple[Any, list[Any]], data: Any) -> None:
    schema, rows = case
    parsed = fastavro.parse_schema(schema)
    values = [written(parsed, row) for row in rows]
    damaged = []
    for whole in values:
        some = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(some)))
            some[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=4))
        damaged.append(bytes(some))
    form = Avro(schema, keep_bad=True)
    found, bad = form.decode(
        pa.array([each for pair in zip(values, damaged, strict=True) for each in pair], pa.binary())
    )
    found.validate(full=True)
    assert all(item.row % 2 for item in bad)
    assert same(found.to_pylist()[::2], [as_column(schema, row) for row in rows])
    form.keep_bad = False
    first = min((item.row for item in bad), default=len(found))
    fewer, one = form.decode(
        pa.array([each for pair in zip(values, damaged, strict=True) for each in pair], pa.binary())
    )
    assert same(fewer.to_pylist()[:first], found.to_pylist()[:first])
    assert one == bad[:1]
