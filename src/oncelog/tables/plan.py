"""What DuckDB's plan of a query needs of each topic: the columns, and bounds of partitions, offsets and times.

DuckDB has then resolved names, moved conditions down to the scans, and computed constants such as `now() - interval 1
hour`. The plan is that of EXPLAIN (FORMAT JSON), and its expressions are parsed by DuckDB itself. A plan or a condition
that is not understood limits nothing.

Columns have the names of `column_name`, never a user's names, which EXPLAIN does not quote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from oncelog.tables.bounds import ALL, MIRRORED, Bounds, all_of, any_of, bound

Parsed = Mapping[str, Any]
"""An expression or a query as DuckDB's `json_serialize_sql` returns it."""

_OPERATORS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_SCAN = "PYTHON_ARROW_SCAN"
_NAME = re.compile(r"t(\d+)_c(\d+)")


def column_name(table: int, column: int) -> str:
    """Return the name of a column for DuckDB: the number of its table, and its own."""
    return f"t{table}_c{column}"


class Need(NamedTuple):
    """What a query needs of a table: the numbers of its columns, and bounds."""

    columns: frozenset[int]
    bounds: Bounds


class Reading(NamedTuple):
    """How conditions are read."""

    parse: Callable[[str], Parsed | None]
    """Returns the expression of a text, or None if it is none."""
    microseconds: Callable[[str], int | None]
    """Returns the microseconds since the epoch of a time's text, or None if it is none."""
    names: Mapping[str, str]
    """The names of those columns that have bounds, by their names for DuckDB."""


def needs(plan: object, reading: Reading) -> dict[int, Need]:
    """Return what a plan needs of each table, by its number. A table that the plan scans twice needs both."""
    found: dict[int, Need] = {}
    for scanned, condition in _scans(plan, None):
        numbers = [_NAME.fullmatch(name) for name in scanned]
        columns = {int(each[1]): set[int]() for each in numbers if each}
        for each in numbers:
            if each:
                columns[int(each[1])].add(int(each[2]))
        parsed = None if condition is None else reading.parse(condition)
        limits = ALL if parsed is None else _bounds(parsed, reading)
        for table, its in columns.items():
            need = Need(frozenset(its), limits)
            earlier = found.get(table)
            found[table] = need if earlier is None else Need(earlier.columns | need.columns, earlier.bounds | limits)
    return found


def _scans(node: object, condition: str | None) -> Iterator[tuple[list[str], str | None]]:
    """Yield the columns of each scan in a plan, and the condition of the filter right above it."""
    if isinstance(node, list):
        for child in node:
            yield from _scans(child, condition)
    if not isinstance(node, dict):
        return
    extra = node.get("extra_info") or {}
    if node.get("name", "").strip() == _SCAN:
        columns = extra.get("Projections", [])
        yield [columns] if isinstance(columns, str) else columns, condition
    is_filter = node.get("name", "").strip() == "FILTER"
    yield from _scans(node.get("children"), extra.get("Expression") if is_filter else None)


def _bounds(node: Parsed, reading: Reading) -> Bounds:
    kind = node.get("type")
    if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        parts = (_bounds(child, reading) for child in node["children"])
        return all_of(parts) if kind == "CONJUNCTION_AND" else any_of(parts)
    if kind == "COMPARE_BETWEEN":
        sides = ((">=", node["lower"]), ("<=", node["upper"]))
        return all_of(_compared(node["input"], operator, side, reading) for operator, side in sides)
    if kind == "COMPARE_IN":
        tested, *listed = node["children"]
        return any_of(_compared(tested, "=", each, reading) for each in listed)
    if kind in _OPERATORS:
        operator = _OPERATORS[kind]
        return _compared(node["left"], operator, node["right"], reading) & _compared(
            node["right"], MIRRORED[operator], node["left"], reading
        )
    return ALL


def _compared(column: Parsed, operator: str, value: Parsed, reading: Reading) -> Bounds:
    """Return the bounds of a comparison of a column with a constant."""
    if column.get("type") != "COLUMN_REF" or len(column["column_names"]) != 1:
        return ALL
    name = reading.names.get(column["column_names"][0])
    number = None if name is None else _number(value, reading)
    return ALL if name is None or number is None else bound(name, operator, number)


def _number(value: Parsed, reading: Reading) -> int | None:
    """Return the integer of a constant, for a time its microseconds since the epoch."""
    if value.get("type") == "OPERATOR_CAST":
        return _number(value["child"], reading)
    literal = value.get("literal")
    if value.get("type") != "VALUE_CONSTANT" or not isinstance(literal, dict):
        return None
    text = literal.get("text", "")
    if literal.get("kind") == "INTEGER":
        return int(text) if re.fullmatch(r"-?\d{1,19}", text) else None
    return reading.microseconds(text) if literal.get("kind") == "STRING" else None


def table_names(query: object) -> set[tuple[str, str]]:
    """Return the (schema or "", name) of all tables that a parsed query names. Some may be its own WITH clauses."""
    found: set[tuple[str, str]] = set()

    def visit(node: object) -> None:
        if isinstance(node, list):
            for each in node:
                visit(each)
        elif isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                found.add((node.get("schema_name") or "", node["table_name"]))
            for each in node.values():
                visit(each)

    visit(query)
    return found
