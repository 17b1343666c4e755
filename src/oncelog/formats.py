"""Keys and values as typed columns, both ways.

    consumer.tables(value=Json(pa.schema([("id", pa.int64()), ("name", pa.string())])))
    producer.send_table("orders", table, value=Avro(schema, schema_id=7))

Read, the column `value` (or `key`) has the type that the schema says: a struct for objects and records, which
`table.flatten()`, polars' `unnest` and SQL's `value.*` take apart. Written, it is that column, or, where the table has
no column `value`, all columns but `key`, `headers`, `partition` and `timestamp`. `Avro` needs `oncelog[avro]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.columns.json_values import Json

__all__ = ["Avro", "Json"]

if TYPE_CHECKING:
    from oncelog.columns.avro_values import Avro


def __getattr__(name: str) -> object:
    if name != "Avro":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oncelog.columns.avro_values import Avro

    return Avro
