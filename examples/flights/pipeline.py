"""The pipeline: every flight with its weather, and delays by airport and hour, exactly once despite any crash.

python examples/flights/pipeline.py localhost:9092 CHECKPOINT_FOLDER

This is ordinary Structured Streaming. The differences from Spark's own Kafka connector are `format("oncelog")` and
`transactionalIdPrefix`. It runs until SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import data
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

import oncelog.spark

ROWS_PER_BATCH = 30_000

FLIGHT = """
    year bigint, month bigint, day bigint, dep_time double, sched_dep_time bigint, dep_delay double,
    arr_time double, sched_arr_time bigint, arr_delay double, carrier string, flight bigint, tailnum string,
    origin string, dest string, air_time double, distance bigint, hour bigint, minute bigint,
    time_hour string, id bigint
"""


def read_flights(spark: SparkSession, brokers: str) -> DataFrame:
    """Return the stream of flights, one row for each."""
    records = (
        spark.readStream.format("oncelog")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", data.FLIGHTS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
    )
    return records.select(F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")).select("flight.*")


def write(rows: DataFrame, key: str, brokers: str, topic: str, checkpoints: Path) -> StreamingQuery:
    """Write each row as a record: key, and all columns as JSON."""
    return (
        rows.select(
            F.col(key).cast("string").cast("binary").alias("key"),
            F.to_json(F.struct("*")).cast("binary").alias("value"),
        )
        .writeStream.format("oncelog")
        .queryName(topic)
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", topic)
        .option("transactionalIdPrefix", topic)
        .option("checkpointLocation", str(checkpoints / topic))
        .start()
    )


def with_weather(flights: DataFrame, spark: SparkSession) -> DataFrame:
    """Join each flight with the weather at its airport in its hour. Flights without weather are kept."""
    weather = spark.createDataFrame(data.weather())
    measured = [F.when(~F.isnan(name), F.col(name)).alias(name) for name in data.WEATHER_COLUMNS]
    weather = weather.select("origin", "time_hour", *measured)
    return flights.join(F.broadcast(weather), ["origin", "time_hour"], "left")


def delays_by_hour(flights: DataFrame) -> DataFrame:
    """Return one row for each airport and hour, after the watermark has passed the hour."""
    hours = (
        flights.withColumn("time", F.to_timestamp("time_hour"))
        .withWatermark("time", f"{data.WATERMARK.days} days")
        .groupBy("origin", F.window("time", "1 hour"))
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.coalesce(F.sum("dep_delay"), F.lit(0.0)).alias("delay"),
        )
    )
    hour = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("hour")
    return hours.select("origin", hour, "flights", "departed", "delay")


def run(brokers: str, checkpoints: Path) -> None:
    """Run both queries until SIGTERM, or until one of them fails."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers run where oncelog is installed
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(checkpoints / "warehouse"))
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    oncelog.spark.register(spark)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    flights = read_flights(spark, brokers)
    queries = [
        write(with_weather(flights, spark), "id", brokers, data.JOINED, checkpoints),
        write(delays_by_hour(flights), "origin", brokers, data.DELAYS, checkpoints),
    ]
    print("running", flush=True)
    while not stopping:
        for query in queries:
            if (error := query.exception()) is not None:
                raise SystemExit(f"query {query.name} ended: {oncelog.spark.cause(error)}")
        time.sleep(0.2)
    for query in queries:
        query.stop()
    spark.stop()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Join flights with weather and sum up delays, exactly once.")
    parser.add_argument("brokers")
    parser.add_argument("checkpoints", type=Path)
    arguments = parser.parse_args()
    run(arguments.brokers, arguments.checkpoints)


if __name__ == "__main__":
    main()
