"""`format("oncelog")`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from oncelog.spark.user_errors import translate_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key:string,value:binary>>"


class OncelogDataSource(DataSource):
    """Source and sink; options as in Spark's Kafka connector, and `oncelog.spark.options`.

    Each face is imported when Spark asks for it: the process that commits needs no pyarrow.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "oncelog"

    @translate_errors
    def schema(self) -> str:
        """The connector's columns; `headers` with option includeHeaders.

        Spark asks at `load()`, and never for a write: the earliest moment to say what is wrong with a read.
        """
        from oncelog.spark.reading.source import check_source

        return f"{SCHEMA}, {HEADERS}" if check_source(self.options).include_headers else SCHEMA

    @translate_errors
    def reader(self, schema: Any) -> DataSourceReader:
        """A batch read."""
        from oncelog.spark.reading.batch import BatchSource

        return BatchSource(dict(self.options))

    @translate_errors
    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """A streaming read."""
        from oncelog.spark.reading.stream import StreamSource

        return StreamSource(dict(self.options))

    @translate_errors
    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from oncelog.spark.writing.sink import BatchSink

        return BatchSink(dict(self.options), schema, overwrite)

    @translate_errors
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A streaming write: Spark calls this anew for every batch, and again in the process that commits."""
        from oncelog.spark.writing.sink import StreamSink

        return StreamSink(dict(self.options), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Make `format("oncelog")` known to a session.

    Where Spark runs on this machine alone and nobody chose a Python for its workers, they get this one: Spark would
    take the first `python3` of PATH, and oncelog need not be there.
    """
    _give_workers_this_python(spark)
    spark.dataSource.register(OncelogDataSource)


def _give_workers_this_python(spark: SparkSession) -> None:
    context = getattr(spark, "_sc", None)  # a Connect session has none
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
