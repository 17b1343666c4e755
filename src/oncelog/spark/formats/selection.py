"""Read less than there is: the columns, and the fields of typed values, that a user's schema names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from oncelog.spark.commit.errors import MisuseError

if TYPE_CHECKING:
    from oncelog.columns.avro.schemas import Node


def selected(wanted: StructType, full: pa.Schema) -> pa.Schema:
    """Return the wanted columns in their order, with the types of `full` without the fields that are not wanted.

    Raises MisuseError, which names the column or the field that `full` lacks, or that has another type.
    """
    return pa.schema(list(_part(pa.struct(list(full)), wanted, "")))


def _part(kind: pa.DataType, wanted: DataType, path: str) -> pa.DataType:
    t = pa.types
    if isinstance(wanted, StructType) and t.is_struct(kind):
        return pa.struct([_field(kind, each.name, each.dataType, path) for each in wanted])
    if isinstance(wanted, ArrayType) and t.is_list(kind):
        return pa.list_(_part(kind.value_type, wanted.elementType, f"{path}[]"))
    if isinstance(wanted, MapType) and t.is_map(kind):
        key = _part(kind.key_type, wanted.keyType, f"{path}.key")
        return pa.map_(key, _part(kind.item_type, wanted.valueType, f"{path}.value"))
    found = from_arrow_type(kind, prefer_timestamp_ntz=True)
    if found != wanted:
        raise MisuseError(
            f"schema(): {path} is {found.simpleString()}, not {wanted.simpleString()}; name it with its own type, and "
            "cast it in the query"
        )
    return kind


def _field(kind: pa.DataType, name: str, wanted: DataType, path: str) -> pa.Field:
    below = f"{path}.{name}" if path else name
    place = kind.get_field_index(name)
    if place < 0:
        what = f"the fields of {path} are" if path else "the columns of this source are"
        raise MisuseError(
            f"schema(): there is no {below}; {what} {', '.join(field.name for field in kind)}. The schema may leave "
            "out columns and fields, but it cannot add any"
        )
    return pa.field(name, _part(kind.field(place).type, wanted, below))


def pruned(node: Node, kind: pa.DataType, path: str) -> Node:
    """Return the Avro type that reads the fields of `kind` only, in its order. Raises MisuseError.

    A union of several types stays whole, because its column says which of them a value has.
    """
    if node.kind == "record":
        known = {field.name: field for field in node.fields}
        fields = [(known[each.name], each.type, f"{path}.{each.name}") for each in kind]
        return replace(node, fields=[replace(field, node=pruned(field.node, of, at)) for field, of, at in fields])
    if node.kind == "union" and len(node.members()) == 1:
        return replace(node, items=[each if each.kind == "null" else pruned(each, kind, path) for each in node.items])
    if node.kind == "union" and kind.num_fields not in (0, len(node.members())):
        raise MisuseError(f"schema(): {path} is a union of several types; name all of its fields, or none of them")
    if node.kind in ("array", "map"):
        inner = kind.value_type if node.kind == "array" else kind.item_type
        return replace(node, items=[pruned(node.items[0], inner, path)])
    return node
