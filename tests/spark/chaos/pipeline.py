"""The program that is killed: copy a topic to another one in micro-batches, and end when everything is copied.

python pipeline.py FORMAT MASTER BOOTSTRAP TOPIC OUT CHECKPOINT ROWS_PER_BATCH [JARS [OPTIONS]]

OPTIONS is a JSON file with further options of source and sink.
FORMAT is `oncelog`, or `kafka` for Spark's own connector. The latter needs its own Spark and JARS, and imports nothing
of oncelog.
"""

from __future__ import annotations

import json
import os
import sys


def main(
    form: str,
    master: str,
    bootstrap: str,
    topic: str,
    out: str,
    checkpoint: str,
    rows: str,
    jars: str = "",
    more: str = "",
) -> None:
    os.environ.update({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    if form == "oncelog":
        from oncelog.spark.java import ensure_java

        ensure_java()
    import pyspark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("chaos").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "768m").config("spark.executor.memory", "768m")
    builder = builder.config("spark.cores.max", "2").config("spark.sql.streaming.stopTimeout", "30s")
    builder = builder.config("spark.speculation", "true").config("spark.speculation.minTaskRuntime", "2s")
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    kafka = {"kafka.bootstrap.servers": bootstrap}
    if more:
        with open(more, encoding="utf-8") as file:
            kafka.update(json.load(file))
    sink = {"topic": out, "checkpointLocation": checkpoint, **kafka}
    if form == "oncelog":
        import oncelog.spark

        oncelog.spark.register(spark)
        sink["transactionalIdPrefix"] = f"{out}-sink"
    read = spark.readStream.format(form).options(**kafka).option("subscribe", topic)
    read = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows)
    read = read.option("kafka.isolation.level", "read_committed")
    write = read.load().select("key", "value").writeStream.format(form).options(**sink)
    if form == "oncelog" and pyspark.__version__ < "4.2":  # there, Trigger.AvailableNow runs one batch
        query = write.start()
        query.processAllAvailable()
        query.stop()
    else:
        write.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
