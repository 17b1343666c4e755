"""Types of columns: of JSON documents, as an Avro schema, and as the options of a command name them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
import click
import pyarrow as pa
import pyarrow.compute as pc

MOST_EXACT = 1 << 53
"""A double holds each integer up to this one."""
ANY_TYPES = "permissive"
"""How Arrow merges the types of two batches: null with any type, and numbers with wider numbers."""


class DocumentTypes:
    """Finds the type that holds all JSON values which are added, and those of type `kind`."""

    def __init__(self, kind: pa.DataType | None) -> None:
        self.kind = kind
        self._long: set[str] = set()
        """Fields with integers that a double would round."""

    def add(self, documents: list[Any]) -> None:
        """Add values. Raises ArrowException or OverflowError if no type holds them and the earlier ones."""
        values = pa.array(documents)
        self.kind = _merged(self.kind, values.type)
        self._long.update(_long_integers(values, ""))
        rounded = self._long and self._long.intersection(_doubles(self.kind, ""))
        if rounded:
            raise pa.ArrowInvalid(
                f"{min(rounded) or 'the value'} has fractions, and integers that a double would round"
            )


def _long_integers(values: pa.Array, path: str) -> Iterator[str]:
    """Yield the path of each field that has integers past 2^53."""
    if pa.types.is_int64(values.type):
        most = pc.min_max(values)
        if max(-(most["min"].as_py() or 0), most["max"].as_py() or 0) > MOST_EXACT:
            yield path
    for index, (name, _) in enumerate(_parts(values.type)):
        part = values.field(index) if pa.types.is_struct(values.type) else values.values
        yield from _long_integers(part, path + name)


def _doubles(kind: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_float64(kind):
        yield path
    for name, of in _parts(kind):
        yield from _doubles(of, path + name)


def _parts(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return what a field or the items of a type add to the path, and their types."""
    if pa.types.is_struct(kind):
        return [(f".{field.name}", field.type) for field in kind]
    return [("[]", kind.value_type)] if pa.types.is_list(kind) else []


def _merged(known: pa.DataType | None, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both. Raises ArrowException if there is none."""
    if known is None:
        return other
    schemas = [pa.schema([("v", each)]) for each in (known, other)]
    return pa.unify_schemas(schemas, promote_options=ANY_TYPES).field("v").type


def column_types(texts: Iterable[str]) -> dict[str, pa.DataType]:
    """Parse the `COLUMN=TYPE` texts of `--type`. Raises UsageError."""
    found = {}
    for text in texts:
        name, equals, kind = text.rpartition("=")
        if not equals or not name:
            raise click.UsageError(f"--type takes COLUMN=TYPE, not {text!r}")
        try:
            found[name] = pa.type_for_alias(kind)
        except ValueError:
            raise click.UsageError(
                f"--type {text}: {kind!r} is not a type of Arrow, such as string, int64, double, bool or timestamp[ms]"
            ) from None
    return found


# -- Avro -------------------------------------------------------------------------------------------------------------

_PLAIN: list[tuple[Any, Any]] = [
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_uint64, "long"),
    (pa.types.is_uint32, "long"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_string_view, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
    (pa.types.is_binary_view, "bytes"),
    (pa.types.is_fixed_size_binary, "bytes"),
    (pa.types.is_date, {"type": "int", "logicalType": "date"}),
    (pa.types.is_time32, {"type": "int", "logicalType": "time-millis"}),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
]
"""The first test that a type passes has its Avro type."""
_UNITS = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def avro_schema(kind: pa.StructType, name: str) -> dict[str, Any]:
    """Return the Avro schema of a struct, a record called `name`. Each field may be null, and is so by default.

    Raises ClickException for a field that Avro cannot hold, or that has a name which Avro does not permit.
    """
    return _record(kind, re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]", "_", name) or "Value", "")


def _record(kind: pa.StructType, name: str, path: str) -> dict[str, Any]:
    fields = []
    for field in kind:
        below = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name):
            raise _unfit(below, "Avro permits only letters, digits and _ in names")
        of = _avro(field.type, f"{name}_{field.name}", below)
        if of == "null":
            fields.append({"name": field.name, "type": "null", "default": None})
        elif field.nullable:
            fields.append({"name": field.name, "type": ["null", of], "default": None})
        else:
            fields.append({"name": field.name, "type": of})
    return {"type": "record", "name": name, "fields": fields}


def _avro(kind: pa.DataType, name: str, path: str) -> Any:
    t = pa.types
    if t.is_dictionary(kind):
        return _avro(kind.value_type, name, path)
    if t.is_struct(kind):
        return _record(kind, name, path)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return {"type": "array", "items": _nullable(_avro(kind.value_type, f"{name}_item", path))}
    if t.is_map(kind) and (t.is_string(kind.key_type) or t.is_large_string(kind.key_type)):
        return {"type": "map", "values": _nullable(_avro(kind.item_type, f"{name}_item", path))}
    if t.is_timestamp(kind):
        local = "local-" if kind.tz is None else ""
        return {"type": "long", "logicalType": f"{local}timestamp-{_UNITS[kind.unit]}"}
    if t.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    found = next((avro for test, avro in _PLAIN if test(kind)), None)
    if found is None:
        raise _unfit(path, f"no Avro type is derived from {kind}")
    return found


def _nullable(of: Any) -> Any:
    return of if of == "null" else ["null", of]


def _unfit(path: str, reason: str) -> click.ClickException:
    return click.ClickException(f"column {path}: {reason}; name a schema with --schema FILE")
