"""Which types of DuckDB Arrow has no values for. In results, they are texts."""

from __future__ import annotations

from typing import Any

import duckdb
from duckdb.sqltypes import VARCHAR, DuckDBPyType

from oncelog.tables.sqlite_tables import quoted

_LACKING = ("time with time zone", "bit", "bignum", "uhugeint")
"""As Arrow columns, they lose their zone, are bytes of DuckDB's own, or have a wrong sign."""


def readable(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Return a relation with texts in place of values that Arrow lacks."""
    kinds = [_readable(each) for each in relation.types]
    if kinds == relation.types:
        return relation
    columns = zip(relation.columns, kinds, strict=True)
    cast = (f"CAST(#{number} AS {kind}) AS {quoted(name)}" for number, (name, kind) in enumerate(columns, 1))
    return relation.project(", ".join(cast))


def _readable(kind: DuckDBPyType) -> DuckDBPyType:
    if kind.id in _LACKING:
        return VARCHAR
    if kind.id not in ("list", "array", "struct", "map", "union"):
        return kind
    parts: list[tuple[str, Any]] = [
        (name, _readable(of) if isinstance(of, DuckDBPyType) else of) for name, of in kind.children
    ]
    if parts == kind.children:
        return kind
    match kind.id:
        case "struct":
            return duckdb.struct_type(dict(parts))
        case "map":
            return duckdb.map_type(parts[0][1], parts[1][1])
        case "array":
            return duckdb.array_type(parts[0][1], parts[1][1])
        case "list":
            return duckdb.list_type(parts[0][1])
    return VARCHAR
