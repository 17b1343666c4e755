"""Read tables of any library as Arrow record batches, and return how that library selects columns.

An unnamed index of pandas is not data. After a filter or a sort, pandas would pass it as a column `__index_level_0__`.
A named index is a column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
import numpy as np
import pyarrow as pa

from oncelog import errors

CHANGED = {
    "Object": "polars passes the column {name} of type Object as addresses in memory; cast or remove it first",
    "BIT": "DuckDB passes the column {name} of type BIT as bytes of its own; cast it first, for example to VARCHAR",
    "TIME WITH TIME ZONE": (
        "DuckDB passes the column {name} of type TIME WITH TIME ZONE without its zone; cast it first, for example to "
        "VARCHAR"
    ),
}
"""Types of polars and DuckDB that do not become the same values in Arrow."""


class TableSource:
    """The record batches of a table, read once and without a copy, and what an error says about its library."""

    def __init__(self, data: object) -> None:
        self._library = type(data).__module__.partition(".")[0]
        self._kind = type(data).__name__
        self._has_index = False
        self._refuse_changed_types(data)
        self.batches = self._without_unnamed_index(_batches_of(data))

    def _without_unnamed_index(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        index, rows = None, 0
        for batch in source:
            if index is None:
                index = _Index(batch.schema, of_frame=self._library == "pandas")
                self._has_index = index.named
            yield index.applied(batch, rows)
            rows += batch.num_rows

    def _refuse_changed_types(self, data: Any) -> None:
        """Raise UsageError for a type whose values the library passes as something else."""
        kinds = {"DataFrame": "dtypes", "DuckDBPyRelation": "types"}.get(self._kind)
        if kinds is None or self._library == "pandas":
            return
        for name, kind in zip(data.columns, getattr(data, kinds), strict=True):
            if str(kind) in CHANGED:
                raise errors.UsageError(CHANGED[str(kind)].format(name=name))

    def selecting(self, names: list[str]) -> str:
        """Return the expression that selects these columns of the table."""
        if self._library == "pandas":
            return f"frame{'.reset_index()' if self._has_index else ''}[{names}]"
        if self._library == "polars":
            return f"frame.select({names})"
        if "duckdb" in self._library:
            return f"relation.select({', '.join(map(repr, names))})"
        if self._kind == "RecordBatchReader":
            return f"reader.read_all().select({names})"
        return f"table.select({names})"


class _Index:
    """What to change in the batches of a schema with the metadata of pandas."""

    def __init__(self, schema: pa.Schema, *, of_frame: bool) -> None:
        described = _pandas_metadata(schema)
        index: list[Any] = described.get("index_columns", [])
        names = {column.get("field_name"): column.get("name") for column in described.get("columns", [])}
        levels = [level for level in index if isinstance(level, str) and level in schema.names]
        self._unnamed = {level for level in levels if names.get(level, level) is None}
        self._renamed = {level: names.get(level, level) for level in levels if level not in self._unnamed}
        # In an Arrow table, the rows may have been sorted or sliced since pandas described the range.
        ranges = [level for level in index if isinstance(level, dict) and level.get("kind") == "range"]
        self._range = next((level for level in ranges if of_frame and level.get("name") is not None), None)
        self.named = bool(self._renamed) or self._range is not None

    def applied(self, batch: pa.RecordBatch, rows: int) -> pa.RecordBatch:
        """Return a batch without unnamed levels of the index, and with the named ones. `rows` precede the batch."""
        if not self._unnamed and not self.named:
            return batch
        kept = [index for index, name in enumerate(batch.schema.names) if name not in self._unnamed]
        found = batch.select(kept).replace_schema_metadata(None)
        found = found.rename_columns([str(self._renamed.get(name, name)) for name in found.schema.names])
        if self._range is not None:
            step = self._range["step"]
            numbers = self._range["start"] + step * np.arange(rows, rows + batch.num_rows, dtype=np.int64)
            found = found.append_column(str(self._range["name"]), pa.array(numbers))
        return found


def _pandas_metadata(schema: pa.Schema) -> dict[str, Any]:
    try:
        found = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _batches_of(data: object) -> Iterable[pa.RecordBatch]:
    """Return any Arrow data as record batches, without a copy (the PyCapsule interface)."""
    if isinstance(data, pa.Table):
        return cast("list[pa.RecordBatch]", data.to_batches() or [pa.RecordBatch.from_pylist([], schema=data.schema)])
    if isinstance(data, pa.RecordBatch):
        return [data]
    kind = type(data).__name__
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return cast("Iterable[pa.RecordBatch]", pa.RecordBatchReader.from_stream(data))
        if hasattr(data, "__arrow_c_array__"):
            return [pa.record_batch(data)]
    except (pa.ArrowException, TypeError) as error:
        if len(error.args) > 1:  # pandas adds the name of the column
            why = "; ".join(map(str, error.args))
            raise errors.UsageError(f"this {kind} cannot be converted to an Arrow table: {why}") from error
        raise errors.UsageError(f"this {kind} is Arrow data, but not a table: {error}") from error
    except Exception as error:  # for example, pandas permits two columns of one name, and a query of DuckDB may fail
        raise errors.UsageError(f"this {kind} cannot be converted to an Arrow table: {error}") from error
    if kind == "LazyFrame":
        raise errors.UsageError("a LazyFrame has no rows yet; pass frame.collect()")
    raise errors.UsageError(
        f"{kind} is not Arrow data (no PyCapsule interface); pass a table of pyarrow, polars, DuckDB or pandas"
    )
