"""Read and write keys and values as typed columns: JSON and Avro.

    consumer.tables(value=Json(pa.schema([("id", pa.int64()), ("name", pa.string())])))
    producer.send_table("orders", table, value=Avro(schema, schema_id=7))

When a consumer reads, the schema determines the type of the column `value` (or `key`). An object or record becomes a
struct, which `table.flatten()`, polars' `unnest` and SQL's `value.*` split into columns.

When a producer writes, the format converts the column `value`. If the table has no column `value`, the format converts
all columns except `key`, `headers`, `partition` and `timestamp` to one value. `Avro` needs `oncelog[avro]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.columns.json_values import Json

__all__ = ["Avro", "Json"]

if TYPE_CHECKING:
    from oncelog.columns.avro.format import Avro


def __getattr__(name: str) -> object:
    if name != "Avro":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oncelog.columns.avro.format import Avro

    return Avro
