"""The PySpark data source: streaming source and exactly-once sink.

`oncelog.spark.register(spark)`, then `format("oncelog")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelog.spark.datasource import OncelogDataSource, register

__all__ = ["OncelogDataSource", "register"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from oncelog.spark import datasource

        return getattr(datasource, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
