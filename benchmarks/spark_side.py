"""Run one Spark of the comparison in spark.py: ours, or one with Spark's own connector, each in its own environment.

The program takes a JSON object as its argument (see `main`), and prints a JSON object for each result. It imports
nothing of the benchmarks, because the connector's environment contains only PySpark.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOW = "sha2(repeat(cast(value as string), 150), 512) <> ''"
"""A condition that all rows meet. The JVM needs far longer for it than the reader."""


def session(work: dict[str, Any]) -> Any:
    """Return a local Spark with two tasks at a time and a driver of 1 GiB."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if work["format"] == "oncelog":
        from oncelog.spark.java import ensure_java

        ensure_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config(
        "spark.sql.streaming.noDataMicroBatches.enabled", "false"
    )
    if work["jars"]:
        builder = builder.config("spark.jars", ",".join(work["jars"]))
    made = builder.config(map=work["settings"]).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    if work["format"] == "oncelog":
        import oncelog.spark

        oncelog.spark.register(made)
    return made


def tell(name: str, value: float) -> None:
    """Print one result for spark.py."""
    print(json.dumps({"name": name, "value": value}), flush=True)


def timed(run: Callable[[], Any]) -> float:
    """Return the elapsed seconds."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


class Memory:
    """The largest resident memory, in MB, of any Python worker of this process during the block."""

    def __init__(self) -> None:
        self.largest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            workers = [pid for pid in _below(os.getpid()) if _is_worker(pid)]
            self.largest = max([self.largest, *map(_resident, workers)])


def cpu_seconds() -> float:
    """Return the user and system time of this process and its descendants, including those that have ended and were
    reaped.
    """
    total = 0
    for pid in [os.getpid(), *_below(os.getpid())]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended meanwhile
        total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def _below(root: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # the process has ended
    below, found = {root}, []
    while fresh := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= fresh
        found += fresh
    return found


def _is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"-m"]
    except OSError:
        return False


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    except OSError:
        return 0.0


class Side:
    """The workloads of both sides."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.work, self.spark, self.copies = work, session(work), 0

    def rows(self, topic: str) -> Any:
        """Return a batch read of a whole topic."""
        reader = self.spark.read.format(self.work["format"]).option("kafka.bootstrap.servers", self.work["bootstrap"])
        return reader.option("subscribe", topic).option("kafka.isolation.level", "read_committed").load()

    def read(self, topic: str, where: str = "true") -> None:
        """Read every column of every row, and discard them."""
        self.rows(topic).where(where).write.format("noop").mode("overwrite").save()

    def copy(self) -> None:
        """Copy key and value of all rows to the next empty topic."""
        writer = self.rows(self.work["topic"]).select("key", "value").write.format(self.work["format"]).mode("append")
        writer = writer.option("kafka.bootstrap.servers", self.work["bootstrap"])
        if self.work["format"] == "oncelog":
            writer = writer.option("transactionalIdPrefix", f"copy-{os.getpid()}-{self.copies}")
        writer.option("topic", self.work["out"][self.copies]).save()
        self.copies += 1

    def stream(self, topic: str) -> None:
        """Copy a topic as a stream, in micro-batches of a quarter of the rows of `copy`."""
        reader = self.spark.readStream.format(self.work["format"]).option("startingOffsets", "earliest")
        reader = reader.option("kafka.bootstrap.servers", self.work["bootstrap"]).option("subscribe", topic)
        rows = reader.option("maxOffsetsPerTrigger", self.work["records"] // 4).load().select("key", "value")
        writer = rows.writeStream.format(self.work["format"]).trigger(availableNow=True)
        writer = writer.option("kafka.bootstrap.servers", self.work["bootstrap"])
        if self.work["format"] == "oncelog":
            writer = writer.option("transactionalIdPrefix", f"stream-{topic}-{os.getpid()}")
        writer = writer.option("topic", self.work["out"][self.copies])
        self.copies += 1
        writer.option("checkpointLocation", f"{self.work['folder']}/checkpoint-{topic}").start().awaitTermination()

    def run(self) -> None:
        """Run all workloads, and print each result."""
        records = self.work["records"]
        tell("first", timed(lambda: self.read(self.work["small"])))
        if self.work["first_only"]:
            return
        topic = self.work["topic"]
        ours = self.work["format"] == "oncelog"
        for _ in range(self.work["repeats"]):
            self.measure("read", lambda: self.read(topic))
        if ours:
            with Memory() as memory:
                self.read(topic, SLOW)
            tell("memory read", memory.largest)
        with Memory() as memory:
            for _ in range(self.work["repeats"]):
                self.measure("copy", self.copy)
        if ours:
            tell("memory copy", memory.largest)
        tell("stream", records / timed(lambda: self.stream(topic)))
        long, count = self.work["long"], records * self.work["longer"]
        tell("long stream", count / timed(lambda: self.stream(long)))

    def measure(self, name: str, work: Callable[[], None]) -> None:
        """Return rows per second, and the CPU time per million rows."""
        before, records = cpu_seconds(), self.work["records"]
        tell(name, records / timed(work))
        tell(f"CPU {name}", (cpu_seconds() - before) * 1e6 / records)


def main() -> None:
    """Run from the command line.

    Keys of the argument: format, bootstrap, jars, settings, folder, topic, long, longer, small, out, records, repeats,
    first_only.
    """
    side = Side(json.loads(sys.argv[1]))
    try:
        side.run()
    finally:
        side.spark.stop()


if __name__ == "__main__":
    main()
