"""Steps of tests that differ between versions of PySpark. `scripts/test --spark 4.0` runs them with another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.spark.versions import LIMITS

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter


def run_to_end(writer: DataStreamWriter) -> None:
    """Run a query until it has read all available records, in batches of maxOffsetsPerTrigger."""
    if LIMITS:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
