"""What the formats of values have in common: framing by the schema registry, values that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAGIC = 0
FRAME = 5
"""Bytes before a framed value: the magic byte and the schema's id, a big-endian int32 (Confluent's wire format)."""

Schemas = Mapping[int, Any] | Callable[[int], Any]
"""Where the schema of an id is found: called, or looked up, once an id."""


class Bad(NamedTuple):
    """A value that is not what the format says; `row` in the column that was given."""

    row: int
    reason: str


class Format(Protocol):
    """How values are encoded. `keep_bad`: what cannot be read is kept in a column of its own instead of raised."""

    keep_bad: bool

    def decode(self, values: pa.Array) -> tuple[pa.Array | pa.ChunkedArray, list[Bad]]:
        """The column of what binary `values` say (null for null, and for bad ones), and the bad ones in order: only
        the first, unless `keep_bad`.
        """

    def encode(self, values: pa.Array) -> pa.Array:
        """Binary values, null for null. ValueError or TypeError, which name row or column."""


def frame(schema_id: int | None) -> bytes:
    """What stands before each value with this id."""
    return b"" if schema_id is None else bytes([MAGIC]) + schema_id.to_bytes(FRAME - 1, "big")


def check_schema_id(schema_id: int | None) -> int | None:
    """ValueError unless it is one."""
    if schema_id is not None and not 0 <= schema_id < 1 << 32:
        raise ValueError(f"schema_id = {schema_id}: it has four bytes")
    return schema_id


def look_up(schemas: Schemas, schema_id: int) -> Any:
    """The schema of an id; LookupError."""
    found = schemas(schema_id) if callable(schemas) else schemas.get(schema_id)
    if found is None:
        raise LookupError(f"no schema has the id {schema_id}")
    return found


def raw_of(values: pa.Array, bad: list[Bad]) -> pa.Array:
    """The bytes of the bad values, null everywhere else."""
    mask = np.zeros(len(values), np.bool_)
    mask[[item.row for item in bad]] = True
    return pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))
