"""A program: rows through source and sink on a Spark with a master, two workers and an executor on each.

Arguments: bootstrap servers, a name for its topics, a folder for the checkpoint.
"""

from __future__ import annotations

import os
import sys


def main(bootstrap: str, name: str, checkpoint: str) -> None:
    from oncelog.spark.java import ensure_java

    ensure_java()
    os.environ.update({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    import oncelog.spark

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "768m")
        .getOrCreate()
    )
    oncelog.spark.register(spark)
    kafka = {"kafka.bootstrap.servers": bootstrap}
    text = f.col("id").cast("string")
    rows = spark.range(0, 200, numPartitions=4).select(text.alias("key"), text.alias("value"))
    filled = rows.write.format("oncelog").mode("append").options(**kafka)
    filled.options(topic=name, transactionalIdPrefix=f"{name}-fill").save()
    read = spark.readStream.format("oncelog").options(**kafka, subscribe=name, startingOffsets="earliest")
    sink = read.option("maxOffsetsPerTrigger", 150).load().select("key", "value").writeStream.format("oncelog")
    sink = sink.options(**kafka, topic=f"{name}-out", transactionalIdPrefix=f"{name}-sink")
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
