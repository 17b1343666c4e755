"""Source and sink through Spark Connect: a query whose server is killed, and restarted with its checkpoint."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark.chaos.processes import of_kind, signal_all
from spark.judges import create, open_producers, values
from support.hooks import SPARK
from support.processes import ManagedProcess
from support.servers import Server

PROGRAM = """
import json, os, sys
os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
import oncelog.spark
from pyspark.sql import SparkSession

options, name, checkpoint, rows = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
oncelog.spark.register(spark)
to = json.loads(options)

if not os.path.exists(checkpoint):
    fill = spark.range(0, int(rows), numPartitions=2).selectExpr("cast(id as string) as value")
    fill = fill.write.format("oncelog").mode("append").options(**to, topic=name, transactionalIdPrefix=f"{name}-fill")
    fill.save()
    wrong = spark.read.format("oncelog").options(**to, subscribe=f"{name}-typo")
    try:
        wrong.option("kafka.default.api.timeout.ms", 500).load().count()
    except Exception as error:
        print(oncelog.spark.cause(error), flush=True)

    def write(batch, number):
        sink = batch.select("value").write.format("oncelog").mode("append").options(**to, topic=f"{name}-each")
        sink.option("transactionalIdPrefix", f"{name}-each").save()

    each = spark.readStream.format("oncelog").options(**to, subscribe=name, startingOffsets="earliest").load()
    each = each.writeStream.foreachBatch(write).option("checkpointLocation", f"{checkpoint}-each").start()
    try:
        each.awaitTermination(120)
    except Exception as error:
        print(oncelog.spark.cause(error), flush=True)
copy = spark.readStream.format("oncelog").options(**to, subscribe=name, startingOffsets="earliest")
copy = copy.option("maxOffsetsPerTrigger", 20).load().select("value").writeStream.format("oncelog")
copy = copy.options(**to, topic=f"{name}-out", transactionalIdPrefix=f"{name}-sink", checkpointLocation=checkpoint)
query = copy.start()
query.processAllAvailable()
query.stop()
found = spark.read.format("oncelog").options(**to, subscribe=f"{name}-out").load().count()
print(f"{found} rows", flush=True)
spark.stop()
"""
ROWS = 160


def run(driver: ManagedProcess, checkpoint: Path, batch: str | None) -> list[str]:
    """Kill the server and its client after this batch. None: run to the end. Return what the program has printed."""
    try:
        if batch is None:
            driver.wait_for(lambda: f"{ROWS} rows" in driver.lines(), "the copy is complete", timeout=400)
        else:
            driver.wait_for((checkpoint / "commits" / batch).exists, f"batch {batch} is committed", timeout=400)
            signal_all([*of_kind("jvm", [driver.pid]), driver.pid])
    finally:
        driver.kill()
    return list(driver.lines())


def copy_while_server_is_killed(
    bootstrap: str, login: Mapping[str, str], name: str, folder: Path, *batches: str
) -> None:
    """Run PROGRAM with the options `login`, and kill it after these batches. Then read the topics at `bootstrap`."""
    for topic in (name, f"{name}-out", f"{name}-each"):
        create(bootstrap, topic, 2)
    checkpoint = folder / "checkpoint"
    env = {key: text for key, text in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    env |= SPARK | {"SPARK_TESTING": "1"}  # with the latter, the server takes a free port
    options = json.dumps({f"kafka.{key}": text for key, text in login.items()})
    command = ["/usr/bin/env", "-C", folder, sys.executable, "-c", PROGRAM, options, name, checkpoint]
    said: list[str] = []
    for batch in (*batches, None):
        said += run(ManagedProcess([*command, str(ROWS)], folder, f"until-{batch}", env), checkpoint, batch)
    assert any(f"topic '{name}-typo' does not exist" in line for line in said)
    assert any("this write runs inside foreachBatch" in line for line in said)
    assert not values(bootstrap, f"{name}-each")
    seen = values(bootstrap, f"{name}-out")
    assert sorted(map(int, seen)) == list(range(ROWS))
    assert set(seen.values()) == {1}
    assert not open_producers(bootstrap, f"{name}-out", f"{name}-sink-commits")


@pytest.mark.timeout(900)
def test_query_whose_server_is_killed_loses_and_duplicates_nothing(server: Server, name: str, tmp_path: Path) -> None:
    login = {"bootstrap.servers": server.bootstrap}
    copy_while_server_is_killed(server.bootstrap, login, name, tmp_path, "1", "3")
