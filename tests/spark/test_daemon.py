"""PySpark's daemon with our imports: the permitted imports, and a Spark that uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark.sql.worker
import pytest

from oncelog.spark import daemon
from oncelog.spark.versions import FILTERS, LIMITS
from spark.judges import create, open_producers, values
from support.servers import Server

WORKERS = [
    *("pyspark.worker", "pyspark.sql.streaming.python_streaming_source_runner"),
    *(
        f"pyspark.sql.worker.{path.stem}"
        for path in sorted(Path(pyspark.sql.worker.__path__[0]).glob("*.py"))
        if path.stem not in ("__init__", "utils")
    ),
]
"""The modules for which Spark has a daemon."""

LOADED = """
import json, os, sys
from oncelog.spark import daemon
from oncelog.spark.versions import FILTERS, LIMITS
for name in sys.argv[1:]:
    daemon.preload(name)
print(json.dumps([len(os.listdir("/proc/self/task")), sorted(daemon.HEAVY & set(sys.modules)), sorted(sys.modules)]))
"""

COPY = """
import os, sys
from oncelog.spark.java import ensure_java
ensure_java()
os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
from pyspark.sql import SparkSession
import oncelog.spark
settings = {"spark.ui.enabled": "false", "spark.python.daemon.module": "oncelog.spark.daemon"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
oncelog.spark.register(spark)
bootstrap, name, checkpoint = sys.argv[1:]
to = {"kafka.bootstrap.servers": bootstrap}

def parents(batches):
    import pathlib, os
    import pyarrow as pa
    words = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_text()
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"value": [f"{number} {words}" for number in batch["id"].to_pylist()]})

rows = spark.range(0, 20, numPartitions=2).mapInArrow(parents, "value string")
rows.write.format("oncelog").mode("append").options(**to, topic=name, transactionalIdPrefix=f"{name}-fill").save()
read = spark.readStream.format("oncelog").options(**to, subscribe=name, startingOffsets="earliest")
sink = read.option("maxOffsetsPerTrigger", 12).load().select("value").writeStream.format("oncelog")
sink = sink.options(**to, topic=f"{name}-out", transactionalIdPrefix=f"{name}-sink")
query = sink.option("checkpointLocation", checkpoint).start()
query.processAllAvailable()
query.stop()
assert query.lastProgress["batchId"] > 0
spark.stop()
"""


def loaded(*workers: str) -> list[Any]:
    """Return the number of threads, the heavy modules and all modules after the imports for these workers."""
    command = [sys.executable, "-c", LOADED, *workers]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: list[Any] = json.loads(ran.stdout)
    return found


def test_no_thread_is_added_before_a_fork() -> None:
    """PySpark 4.0 and 4.1 import numpy in their own daemon."""
    threads, heavy, modules = loaded(*WORKERS)
    assert [threads, heavy] == loaded()[:2]
    assert [threads, heavy] == [1, []] or not LIMITS
    assert len(daemon.WITH_ARROW - set(WORKERS)) == (0 if FILTERS else 1)
    assert {"oncelog.spark.writing.sink", "oncelog.spark.reading.source", *WORKERS} - daemon.WITH_ARROW <= set(modules)


@pytest.mark.timeout(300)
def test_spark_stream_runs_with_the_daemon(server: Server, name: str, tmp_path: Path) -> None:
    for topic in (name, f"{name}-out"):
        create(server.bootstrap, topic, 2)
    command = [sys.executable, "-c", COPY, server.bootstrap, name, str(tmp_path / "checkpoint")]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    seen = values(server.bootstrap, f"{name}-out")
    assert sorted(int(value.split()[0]) for value in seen) == list(range(20))
    assert set(seen.values()) == {1}
    assert all("oncelog.spark.daemon" in value for value in seen)
    assert not open_producers(server.bootstrap, f"{name}-out", f"{name}-sink-commits")
