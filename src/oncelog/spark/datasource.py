"""The data source: `format("oncelog")`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.user_errors import translate_errors
from oncelog.spark.versions import LIMITS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from oncelog.spark.formats.options import TypedOptions

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key:string,value:binary>>"


class OncelogDataSource(DataSource):
    """The data source of `format("oncelog")`: streaming and batch reads, streaming and batch writes.

    Readers and writers are imported when Spark calls for them, because the process that commits needs no pyarrow.
    """

    _typed: TypedOptions | None = None
    """The schemas of typed keys and values that `schema` has found. Spark pickles this object after that call.

    If the user gives a schema, Spark does not call `schema`. The readers then check options and schema.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "oncelog"

    @translate_errors
    def schema(self) -> StructType | str:
        """Return the connector's columns, with `headers` if option includeHeaders is set, and typed ones with formats.

        Spark calls this at `load()`, and never for a write, so it checks the options of a read.
        """
        from oncelog.spark.reading.source import check_source

        _reject_table(self.options, creating="provider" in self.options)
        options = check_source(self.options)
        if options.typed.formats:
            from pyspark.sql.pandas.types import from_arrow_schema

            from oncelog.spark.formats.columns import TypedColumns

            self._typed = options.typed.resolved(options.subscription.names)
            columns = TypedColumns(self._typed, headers=options.include_headers)
            return from_arrow_schema(columns.schema, prefer_timestamp_ntz=True)
        self._typed = options.typed
        return f"{SCHEMA}, {HEADERS}" if options.include_headers else SCHEMA

    @translate_errors
    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of a batch read."""
        from oncelog.spark.reading.batch import BatchSource

        _reject_table(self.options)
        return BatchSource(dict(self.options), self._typed, schema)

    @translate_errors
    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming read."""
        if not LIMITS:
            from oncelog.spark.reading.older_stream import OlderStreamSource

            return OlderStreamSource(dict(self.options), self._typed, schema)
        from oncelog.spark.reading.stream import StreamSource

        return StreamSource(dict(self.options), self._typed, schema)

    @translate_errors
    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch write."""
        from oncelog.spark.writing.sink import BatchSink

        _reject_table(self.options)
        return BatchSink(dict(self.options), schema, overwrite)

    @translate_errors
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a streaming write. Spark calls this for every batch, and again to commit it."""
        from oncelog.spark.writing.sink import StreamSink

        return StreamSink(dict(self.options), schema, overwrite)


def _reject_table(options: Mapping[str, str], *, creating: bool = False) -> None:
    """Raise MisuseError for a table in Spark's catalog, because Spark does not pass its options to reads and writes.

    If CREATE TABLE names columns, Spark does not call the data source, so only the reads and writes can fail.
    """
    if options and not creating:
        return
    what = "CREATE TABLE ... USING oncelog" if creating else "this read or write has no options"
    raise MisuseError(
        f"{what}: Spark does not pass the options of a table in its catalog to Python data sources, so the table could "
        "not be used. To read with SQL, run CREATE TEMPORARY VIEW name USING oncelog OPTIONS (...). To write, use "
        "df.write.format('oncelog') with the options kafka.bootstrap.servers and transactionalIdPrefix"
    )


_registered: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the data source with a Spark session, so that `format("oncelog")` works for reads and writes.

    If Spark runs only on this machine (`local[...]`) and PYSPARK_PYTHON is not set, the workers get this Python.
    Otherwise, Spark would start the first `python3` of PATH, which may lack oncelog.
    """
    _give_workers_this_python(spark)
    if spark in _registered:
        return  # Spark warns of each replacement
    try:
        spark.dataSource.register(OncelogDataSource)
        _registered.add(spark)
    except AnalysisException as error:  # PySpark 4.0 does not replace a source that it has found: pyspark_oncelog
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _give_workers_this_python(spark: SparkSession) -> None:
    context = getattr(spark, "_sc", None)  # a Connect session has none
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
