"""The PySpark data source: streaming source and exactly-once sink.

`oncelog.spark.register(spark)`, then `format("oncelog")`. The import finds a Java for Spark (see `java`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncelog.spark.java import find_java
from oncelog.spark.user_errors import cause

if TYPE_CHECKING:
    from oncelog.spark.datasource import OncelogDataSource, register

__all__ = ["OncelogDataSource", "cause", "register"]

find_java()


def __getattr__(name: str) -> Any:
    if name in __all__:
        try:
            from oncelog.spark import datasource
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "pyspark":
                raise
            text = "Spark needs pyspark, 4.2 at least, which `pip install 'oncelog[spark]'` brings"
            raise ImportError(text) from error
        return getattr(datasource, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
