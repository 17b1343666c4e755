"""Copy rows through source and sink on a Spark with separate executors. One task runs twice, speculatively.

Arguments: master, bootstrap servers, a name for its topics, a folder for the checkpoint, a folder for notes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 200


def dawdling(notes: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Yield the rows unchanged.

    The first attempt of the first task yields half of them, and waits for its speculative twin.
    """

    def dawdle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if context.partitionId() == 0:
                Path(notes, str(context.attemptNumber())).touch()
                until = time.monotonic() + 60
                while context.attemptNumber() == 0 and time.monotonic() < until:
                    time.sleep(0.1)  # until Spark kills it, because the twin has ended
            yield batch.slice(half)

    return dawdle


def main(master: str, bootstrap: str, name: str, checkpoint: str, notes: str) -> None:
    from oncelog.spark.java import ensure_java

    ensure_java()
    os.environ.update({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    import oncelog.spark

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "768m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.speculation.quantile": "0.5",
    }
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    oncelog.spark.register(spark)
    kafka = {"kafka.bootstrap.servers": bootstrap}
    text = f.col("id").cast("string")
    rows = spark.range(0, ROWS, numPartitions=4).select(text.alias("key"), text.alias("value"))
    # Spark starts no speculative task on the host of the first attempt, and other masters have only one host
    if master.startswith("spark:"):
        rows = rows.mapInArrow(dawdling(notes), rows.schema)
    filled = rows.write.format("oncelog").mode("append").options(**kafka)
    filled.options(topic=name, transactionalIdPrefix=f"{name}-fill").save()
    read = spark.readStream.format("oncelog").options(**kafka, subscribe=name, startingOffsets="earliest")
    sink = read.option("maxOffsetsPerTrigger", 150).load().select("key", "value").writeStream.format("oncelog")
    sink = sink.options(**kafka, topic=f"{name}-out", transactionalIdPrefix=f"{name}-sink")
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
