"""What the installed PySpark can do. Only `java`, which must not import PySpark, asks for its version instead."""

from __future__ import annotations

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter

__all__ = ["FILTERS", "LIMITS", "StreamArrowWriter"]

LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
"""Since 4.2: Python sources have read limits, get the query's position, and know Trigger.AvailableNow."""

FILTERS = hasattr(datasource, "Filter")
"""Since 4.1: batch reads may push filters."""

if hasattr(datasource, "DataSourceStreamArrowWriter"):  # since 4.1
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:

    class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef, misc]
        """The base class of stream writers that get Arrow batches. PySpark 4.0 recognizes DataSourceArrowWriter."""
