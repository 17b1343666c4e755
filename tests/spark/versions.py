"""What the tests need to know about PySpark's version. `scripts/test --spark 4.0` runs them with another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import datasource

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter

HAS_LIMITS = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")
"""Since 4.2: Trigger.AvailableNow runs as many batches as limits make of the records."""
HAS_FILTERS = hasattr(datasource, "Filter")
"""Since 4.1."""


def run_to_end(writer: DataStreamWriter) -> None:
    """Run a query until it has read all available records, in batches of maxOffsetsPerTrigger."""
    if HAS_LIMITS:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
