"""A scan as a lazy frame of polars, which passes its columns and conditions to the scan."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import pyarrow as pa

try:
    import polars as pl
except ImportError as missing:
    raise ImportError("lazy frames require polars; run `pip install 'oncelog[sql]'`") from missing
from polars.io.plugins import register_io_source

from oncelog.tables.bounds import ALL, EPOCH, MIRRORED, Bounds, all_of, any_of, bound

_OPERATORS = {"Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">=", "Eq": "="}
_CLOSED = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
"""The operators of `is_between` for its lower and its upper value."""
_JOINS = {"And": all_of, "LogicalAnd": all_of, "Or": any_of, "LogicalOr": any_of}


class Scanned(Protocol):
    """What this module needs of a `Scan`."""

    @property
    def schema(self) -> pa.Schema: ...  # noqa: D102

    def select(self, columns: Sequence[str]) -> Scanned: ...  # noqa: D102

    def within(self, bounds: Bounds) -> Scanned: ...  # noqa: D102

    def batches(self) -> Iterator[pa.RecordBatch]: ...  # noqa: D102


def lazy_frame(scan: Scanned) -> pl.LazyFrame:
    """Return a scan as a lazy frame."""
    schema = pl.DataFrame(scan.schema.empty_table()).schema

    def frames(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        part = scan
        if predicate is not None and rows is None:  # the first `rows` are taken before the condition
            part = part.within(bounds_of(predicate))
        if columns is not None:
            named = set(columns) | set(() if predicate is None else predicate.meta.root_names())
            part = part.select([name for name in schema if name in named])
        left = rows
        for batch in part.batches():
            frame = pl.DataFrame(pa.Table.from_batches([batch if left is None else batch.slice(0, left)]))
            left = None if left is None else left - len(frame)
            frame = frame if predicate is None else frame.filter(predicate)
            yield frame if columns is None else frame.select(columns)
            if left == 0:
                return

    return register_io_source(frames, schema=schema)


def bounds_of(predicate: pl.Expr) -> Bounds:
    """Return the bounds of a condition. What is not understood does not limit them."""
    return _understood(json.loads(predicate.meta.serialize(format="json")))


def _bounds(node: Any) -> Bounds:
    if "Function" in node:
        column, low, high = node["Function"]["input"]
        above, below = _CLOSED[node["Function"]["function"]["Boolean"]["IsBetween"]["closed"]]
        return _compared(column, above, low) & _compared(column, below, high)
    binary = node["BinaryExpr"]
    left, right, operator = binary["left"], binary["right"], binary["op"]
    if operator in _JOINS:
        return _JOINS[operator](_understood(each) for each in (left, right))
    mine = _OPERATORS[operator]
    return _compared(left, mine, right) & _compared(right, MIRRORED[mine], left)


def _understood(node: Any) -> Bounds:
    try:
        return _bounds(node)
    except Exception:  # noqa: BLE001 - polars does not document this form, and it checks the condition again
        return ALL


def _compared(column: Any, operator: str, value: Any) -> Bounds:
    """Return the bounds of a comparison of a column with a constant, which polars computes."""
    text = json.dumps(value)
    if list(column) != ["Column"] or '"Column"' in text:
        return ALL
    constant = pl.select(pl.Expr.deserialize(io.StringIO(text), format="json")).item()
    if isinstance(constant, datetime):
        constant = (constant - EPOCH) // timedelta(microseconds=1)
    return bound(column["Column"], operator, constant) if type(constant) is int else ALL
