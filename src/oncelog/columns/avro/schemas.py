"""Avro schemas as trees of nodes, the Arrow type of their columns, and the bytes of a field's default."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

try:
    import fastavro
except ImportError as missing:
    raise ImportError("Avro requires fastavro; run `pip install 'oncelog[avro]'`") from missing

Schema = str | Mapping[str, Any] | list[Any]

PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
"""Logical types whose Arrow type has the same numbers. Others are read as the type below them, except decimals and
durations."""
DURATION = "duration"
"""The logical type of months, days and milliseconds in a fixed of 12 bytes."""
DURATION_SIZE = 12
MOST_DIGITS = 76
"""Digits of Arrow's largest decimal."""
MOST_SIZE = (1 << 31) - 1
"""Bytes of a fixed."""
MOST_COLUMNS = 100_000
"""Columns of a value. A small schema could demand any number, if each of its records has two fields of the next."""


@dataclass(eq=False, slots=True)
class Node:
    """A type of a schema. Types that contain themselves are cycles."""

    kind: str
    """A primitive type, or record, enum, fixed, array, map or union."""
    logical: str = ""
    name: str = ""
    """The full name of a record, enum or fixed."""
    aliases: tuple[str, ...] = ()
    size: int = 0
    """Bytes of a fixed."""
    precision: int = 0
    scale: int = 0
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """The symbol for symbols that an enum lacks."""
    fields: list[Field] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    """The branches of a union, or the type in an array or map."""

    def is_called(self, name: str) -> bool:
        """Return whether another schema's name means this type: names are compared without their namespaces."""
        return name.rpartition(".")[2] in {known.rpartition(".")[2] for known in (self.name, *self.aliases)}

    def members(self) -> list[Node]:
        """Return the branches of a union that are not null."""
        return [item for item in self.items if item.kind != "null"]

    def may_be_empty(self, within: tuple[Node, ...] = ()) -> bool:
        """Return whether a value may have no bytes. No record that contains itself is without bytes."""
        if self.kind == "record":
            inside = (*within, self)
            return self not in within and all(each.node.may_be_empty(inside) for each in self.fields)
        return self.kind == "null" or (self.kind == "fixed" and self.size == 0)


@dataclass(eq=False, slots=True)
class Field:
    """A field of a record. `default` is JSON's value if `has_default`."""

    name: str
    node: Node
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


def parsed(schema: object) -> Any:
    """Return the schema in fastavro's form, with full names.

    Raises TypeError or ValueError if it is not a schema, and RecursionError if it is too deep.
    """
    if not isinstance(schema, str | Mapping | list):
        raise TypeError(f"an Avro schema is a dict or its JSON text, not {type(schema).__name__}")
    plain: Any = schema
    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        try:
            plain = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"the Avro schema is not valid JSON: {error}") from None
    if (isinstance(plain, str) and plain not in PLAIN) or plain in ("enum", "fixed"):
        raise ValueError(
            f"{plain!r} is not an Avro schema; pass a dict, its JSON text (of a file: Path(...).read_text()), or one "
            f"of {', '.join(name for name in PLAIN if name not in ('enum', 'fixed'))}"
        )
    try:
        return fastavro.parse_schema(plain)
    except (fastavro.schema.SchemaParseException, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is not an Avro schema: {_explained(error)}") from None


def _explained(error: Exception) -> str:
    """Return an error of fastavro as a sentence."""
    if isinstance(error, KeyError):
        return f"a type lacks {error}"
    return f"unknown type {error}" if isinstance(error, fastavro.schema.UnknownType) else str(error)


def tree(schema: Any, *, intervals: bool = True) -> Node:
    """Return the tree of a schema in fastavro's form. Without `intervals`, durations are fixed.

    Raises ValueError for what fastavro accepts, but Avro does not.
    """
    named: dict[str, Node] = {}
    found = _tree(schema, named)
    for node in named.values():  # each fixed has a name
        if node.logical == DURATION and not (intervals and node.kind == "fixed" and node.size == DURATION_SIZE):
            node.logical = ""
    return found


def _tree(schema: Any, named: dict[str, Node]) -> Node:
    if isinstance(schema, list):
        return Node("union", items=[_tree(item, named) for item in schema])
    if isinstance(schema, str):
        return named[schema] if schema in named else Node(schema)
    kind = schema["type"]
    if isinstance(kind, dict | list) or kind in named:
        return _tree(kind, named)
    node = Node("record" if kind == "error" else kind, logical=str(schema.get("logicalType", "")))
    if "name" in schema:
        node.name = schema["name"]
        node.aliases = tuple(schema.get("aliases", ()))
        named[node.name] = node
    if node.kind == "fixed":
        node.size = schema["size"]
        if not isinstance(node.size, int) or not 0 <= node.size <= MOST_SIZE:
            raise ValueError(f"the size of {node.name} is {node.size!r}; it must be from 0 to {MOST_SIZE}")
    if node.kind == "enum":
        node.symbols, node.default = tuple(schema["symbols"]), schema.get("default")
    if node.logical == "decimal":
        _set_decimal(node, schema)
    if node.kind in ("array", "map"):
        node.items = [_tree(schema["items" if node.kind == "array" else "values"], named)]
    for each in schema["fields"] if node.kind == "record" else ():
        aliases = tuple(each.get("aliases", ()))
        of = _tree(each["type"], named)
        node.fields.append(Field(each["name"], of, aliases, "default" in each, each.get("default")))
    names = [each.name for each in node.fields]
    if len(set(names)) < len(names):
        raise ValueError(f"two fields of {node.name} have the name {max(names, key=names.count)}")
    return node


def _set_decimal(node: Node, schema: Mapping[str, Any]) -> None:
    """Set digits and scale, if they are valid: else, as the specification demands, the type below is meant."""
    match node.kind, schema.get("precision"), schema.get("scale", 0):
        case "bytes" | "fixed", int(precision), int(scale) if 0 <= scale <= precision <= MOST_DIGITS and precision:
            node.precision, node.scale = precision, scale
        case _:
            node.logical = ""


# -- columns ----------------------------------------------------------------------------------------------------------


def column_type(node: Node) -> pa.DataType:
    """Return the type of a node's column. Raises TypeError, with the path, for a type that no column can have."""
    if _columns(node, {}) > MOST_COLUMNS:
        raise TypeError(f"its schema has more than {MOST_COLUMNS} columns")
    return arrow_type(node)


def _columns(node: Node, known: dict[Node, int]) -> int:
    """Return the number of columns. For a type that contains itself, it is smaller, but finite."""
    if node not in known:
        known[node] = 0
        parts = [each.node for each in node.fields] + node.items
        known[node] = 1 + sum(_columns(part, known) for part in parts)
    return known[node]


def arrow_type(node: Node, path: str = "", within: tuple[Node, ...] = ()) -> pa.DataType:
    """Return the type of a node's column. Raises TypeError, with the path, for a type that contains itself.

    A union of null and one type is that type. One of more types is a struct with a field for each, `member0` and so on,
    of which one has a value, as in Spark.
    """
    if node in within:
        raise TypeError(f"{path or 'the value'}: no column type can hold a type that contains itself ({node.name})")
    inside = (*within, node)
    if node.kind == "union":
        members = node.members()
        if len(members) < 2:
            return arrow_type(members[0], path, inside) if members else pa.null()
        return pa.struct([(name, arrow_type(of, below(path, name), inside)) for name, of in named_members(node)])
    if node.kind == "record":
        return pa.struct([(each.name, arrow_type(each.node, below(path, each.name), inside)) for each in node.fields])
    if node.kind == "array":
        return pa.list_(arrow_type(node.items[0], path, inside))
    if node.kind == "map":
        return pa.map_(pa.string(), arrow_type(node.items[0], path, inside))
    if node.logical == "decimal":
        return (pa.decimal128 if node.precision <= 38 else pa.decimal256)(node.precision, node.scale)
    if node.kind == "fixed" and node.logical == DURATION:
        return pa.month_day_nano_interval()
    if node.kind == "fixed" and node.size:
        return pa.binary(node.size)
    return LOGICAL.get((node.kind, node.logical), PLAIN[node.kind])


def named_members(node: Node) -> list[tuple[str, Node]]:
    """Return the branches of a union that are not null, with the names of their fields."""
    return [(f"member{index}", each) for index, each in enumerate(node.members())]


def below(path: str, name: str) -> str:
    """Return the path of a field."""
    return f"{path}.{name}" if path else name


# -- defaults ---------------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """Return the zigzag varint of a number."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def default_bytes(of: Field, path: str) -> bytes:
    """Return the datum of a field's default. Raises ValueError, with the path of the field, if it does not fit."""
    try:
        return _datum(of.node, of.default)
    except _UNFIT as error:
        raise ValueError(f"{path}: its default {of.default!r} does not fit its type: {error}") from None


_UNFIT = (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error)


def _datum(node: Node, value: Any) -> bytes:
    """Return the datum of a value that JSON represents as the specification demands of defaults. Raises _UNFIT."""
    match node.kind:
        case "null":
            return b""
        case "boolean":
            return bytes([bool(value)])
        case "int" | "long":
            limit = 1 << (31 if node.kind == "int" else 63)
            if not -limit <= int(value) < limit:
                raise ValueError("it is too large")
            return varint(int(value))
        case "float" | "double":
            return struct.pack("<f" if node.kind == "float" else "<d", value)
        case "bytes" | "string":
            data = value.encode("latin-1" if node.kind == "bytes" else "utf-8")
            return varint(len(data)) + bytes(data)
        case "fixed":
            if len(value) != node.size:
                raise ValueError(f"it has {len(value)} bytes, not {node.size}")
            return bytes(value.encode("latin-1"))
        case "enum":
            if value not in node.symbols:
                raise ValueError(f"{node.name} has no such symbol")
            return varint(node.symbols.index(value))
        case "array":
            items = b"".join(_datum(node.items[0], item) for item in value)
            return (varint(len(value)) + items if value else b"") + b"\0"
        case "map":
            pairs = [_datum(Node("string"), key) + _datum(node.items[0], item) for key, item in value.items()]
            return (varint(len(pairs)) + b"".join(pairs) if pairs else b"") + b"\0"
        case "union":
            return _branch_datum(node, value)
    return b"".join(_datum(each.node, value.get(each.name, each.default)) for each in node.fields)


_JSON: dict[str, tuple[type, ...]] = {
    "null": (type(None),), "boolean": (bool,), "int": (int,), "long": (int,), "float": (int, float),
    "double": (int, float), "array": (list,), "map": (dict,), "record": (dict,),
}  # fmt: skip
"""The types of JSON's values for each kind. Those of other kinds are texts."""


def _branch_datum(node: Node, value: Any) -> bytes:
    """Return the datum of a union's default: that of the first branch which it fits."""
    for index, item in enumerate(node.items):
        kinds = _JSON.get(item.kind, (str,))
        if isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds):
            try:
                return varint(index) + _datum(item, value)
            except _UNFIT:
                continue
    raise ValueError(f"{value!r} fits no branch of the union")
