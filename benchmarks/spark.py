"""Compare our Spark source and exactly-once sink with Spark's own Kafka connector, on one oncelog broker.

scripts/bench --spark [--quick] [--rounds N] [--json FILE] [--preload]

Ours runs on the PySpark of this environment, or on the one that PYTHONPATH names. The connector runs on PySpark 4.1.3
in an environment of its own; that is the newest version that exists both as a wheel and as a jar. Both run two tasks at
a time. The connector's sink is at-least-once. Each round starts both Sparks and alternates their order. The table shows
medians over all repeats (`warm`: without the first of each round). The cost of the first read without compiled code is
measured in a separate Spark. With `--preload`, our Spark uses `spark.python.daemon.module=oncelog.spark.daemon`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from oncelog import Admin, Producer
from support.servers import OncelogCluster

PARTITIONS, VALUE_BYTES = 3, 100
RIVAL = "Spark's connector"
OURS = "oncelog"
LONGER = 4
"""How many times as many rows the longer stream has. The fixed cost of a stream then weighs less."""
PRELOADED = {"spark.python.daemon.module": "oncelog.spark.daemon"}
SIDE = Path(__file__).with_name("spark_side.py")


@dataclass(frozen=True)
class Row:
    """One line of the table. `target` is the smallest ratio to the connector."""

    name: str
    unit: str
    target: float | None = None


ROWS = {
    "read": Row("read -> noop, warm", "rows/s", 1.5),
    "cold read": Row("read -> noop, first of a Spark", "rows/s", 1.5),
    "copy": Row("copy topic to topic, batch, warm", "rows/s", 1.2),
    "cold copy": Row("copy topic to topic, batch, first of a Spark", "rows/s", 1.2),
    "stream": Row("copy topic to topic, 4 micro-batches", "rows/s", 1.2),
    "long stream": Row("copy topic to topic, 16 micro-batches of the same size", "rows/s", 1.2),
    "cold CPU read": Row("CPU of all of Spark: read -> noop, first of a Spark", "s/M rows"),
    "cold CPU copy": Row("CPU of all of Spark: copy, batch, first of a Spark", "s/M rows"),
    "CPU read": Row("CPU of all of Spark: read -> noop, warm", "s/M rows"),
    "CPU copy": Row("CPU of all of Spark: copy, batch, warm", "s/M rows"),
    "first": Row("first read of 1,000 rows", "s"),
    "empty": Row("the same with an empty cache of kernels", "s"),
    "memory read": Row("largest Python worker, read by a slow query", "MB"),
    "memory copy": Row("largest Python worker, copy", "MB"),
}


def rival_home() -> Path:
    """The folder with the connector's environment (`venv`) and its jars. scripts/bench creates it."""
    return Path(os.environ["ONCELOG_SPARK_RIVAL"])


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Write records of 100 B, in batches like those of a producer with `batch.size` 64 KiB."""
    with Admin(bootstrap) as admin:
        admin.create_topics(topic, PARTITIONS, 1)
    with Producer(bootstrap, batch_size=65_536) as producer:
        step = 100_000
        for first in range(0, records, step):
            count = min(step, records - first)
            numbers = np.arange(first, first + count)
            values = pa.array([f"{number:0{VALUE_BYTES}d}".encode() for number in numbers], pa.binary())
            keys = pa.array([f"{number % 1000}".encode() for number in numbers], pa.binary())
            producer.send_table(topic, pa.table({"key": keys, "value": values})).result(60)


class World:
    """A broker with a full topic, a longer one, a small one, and the requested number of empty ones."""

    def __init__(self, folder: Path, records: int, settings: dict[str, str]) -> None:
        self.folder, self.records, self.settings, self.sparks = folder, records, settings, 0
        self.server = OncelogCluster(folder / "broker")
        fill(self.server.bootstrap, "full", records)
        fill(self.server.bootstrap, "long", records * LONGER)
        fill(self.server.bootstrap, "small", 1_000)

    def run(self, side: str, repeats: int, *, empty: bool = False) -> Iterator[tuple[str, float]]:
        """Yield the figures of one Spark as they arrive."""
        self.sparks += 1
        out = [f"out-{self.sparks}-{number}" for number in range(repeats + 2)]
        with Admin(self.server.bootstrap) as admin:
            admin.create_topics(out, PARTITIONS, 1)
        folder = self.folder / f"spark-{self.sparks}"
        folder.mkdir()
        ours = side == OURS
        work = {
            "format": "oncelog" if ours else "kafka",
            "bootstrap": self.server.bootstrap,
            "jars": [] if ours else sorted(map(str, (rival_home() / "jars").glob("*.jar"))),
            "settings": self.settings if ours else {},
            "folder": str(folder),
            "topic": "full",
            "long": "long",
            "longer": LONGER,
            "small": "small",
            "out": out,
            "records": self.records,
            "repeats": repeats,
            "first_only": empty,
        }
        python = sys.executable if ours else str(rival_home() / "venv/bin/python")
        yield from _results([python, "-u", str(SIDE), json.dumps(work)], folder, empty)
        with Admin(self.server.bootstrap) as admin:
            admin.delete_topics(out)


def _results(command: list[str], folder: Path, empty: bool) -> Iterator[tuple[str, float]]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)} if empty else dict(os.environ)
    if command[0] != sys.executable:
        environment.pop("PYTHONPATH", None)  # it may name another PySpark for ours
    with (
        (folder / "stderr").open("w") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                yield found["name"], found["value"]
    if process.returncode:
        raise RuntimeError(f"{command[2]} of {command[0]} failed:\n{(folder / 'stderr').read_text()[-4000:]}")


def show(console: Console, medians: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    table = Table("work", "", RIVAL, OURS, "ratio", "target", "")
    for key, row in ROWS.items():
        rival, ours = medians[RIVAL].get(key), medians[OURS].get(key)
        if ours is None:
            continue
        digits = 2 if row.unit.startswith("s") else 0
        ratio = ours / rival if rival else None
        verdict = "" if row.target is None or ratio is None else "met" if ratio >= row.target else "missed"
        table.add_row(
            row.name,
            row.unit,
            f"{rival:,.{digits}f}" if rival else "",
            f"{ours:,.{digits}f}",
            f"{ratio:.2f} x" if ratio else "",
            f">= {row.target} x" if row.target else "",
            verdict,
        )
    console.print(table)


def measure(console: Console, world: World, rounds: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Run all rounds. Return the values by side and row."""
    values: dict[str, dict[str, list[float]]] = {RIVAL: defaultdict(list), OURS: defaultdict(list)}
    for number in range(rounds):
        for side in (RIVAL, OURS) if number % 2 == 0 else (OURS, RIVAL):
            seen: set[str] = set()
            for name, value in world.run(side, repeats):
                key = f"cold {name}" if f"cold {name}" in ROWS and name not in seen else name
                seen.add(name)
                values[side][key].append(value)
                console.print(f"round {number + 1}/{rounds} {side:>18}: {ROWS[key].name}: {value:,.2f}")
    for _, value in world.run(OURS, repeats, empty=True):
        values[OURS]["empty"].append(value)
    return values


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Compare oncelog's Spark source and sink with Spark's own connector.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--quick", action="store_true", help="one round with half of the records")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--preload", action="store_true", help="use a PySpark daemon with our imports")
    arguments = parser.parse_args()
    rounds, records = (1, arguments.records // 2) if arguments.quick else (arguments.rounds, arguments.records)
    console = Console(width=120)
    console.print(f"{records:,} records of {VALUE_BYTES} B, {platform.platform()}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as folder:
        world = World(Path(folder), records, PRELOADED if arguments.preload else {})
        try:
            values = measure(console, world, rounds, 3)
        finally:
            world.server.stop()
    medians = {
        side: {key: statistics.median(found) for key, found in by_row.items()} for side, by_row in values.items()
    }
    show(console, medians)
    if arguments.json:
        arguments.json.write_text(json.dumps({"medians": medians, "rounds": values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
