"""Compare reads of typed values: our source's formats, and Spark's functions on the bytes that a source returns.

scripts/bench --spark --formats [--quick] [--rounds N] [--records N] [--json FILE]

All reads run in one Spark, in turn: PySpark 4.1.3 with spark-avro 4.1.1, in the environment of Spark's connector, which
Maven has for no newer version. The first read of each kind is not measured. Each read selects all fields of a schema of
eight, two of them nested, and discards the rows. A row of the table has the CPU time of Spark's JVM and Python workers,
not of the broker, per million records: the median over the rounds.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from oncelog import Admin, Producer
from oncelog.formats import Avro, Json
from oncelog.testing.registry import SchemaRegistryDouble
from support.servers import OncelogCluster

PARTITIONS = 3
SIDE = Path(__file__).with_name("spark_formats_side.py")
OF = {"name": "Of", "type": "record", "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "int"}]}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "count", "type": "int"},
        {"name": "paid", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "address", "type": OF},
    ],
}
DDL = (
    "id bigint, customer string, price double, count int, paid boolean, note string, tags array<string>, "
    "address struct<city: string, zip: int>"
)
WAYS = {
    "plain": "bytes, all of them discarded",
    "typed": "oncelog, valueFormat",
    "function": "oncelog, bytes and Spark's function",
    "connector": "Spark's connector and Spark's function",
}
"""The ways to read, in the order of the table."""


def rows(first: int, count: int) -> pa.Table:
    """Return rows with values that differ from row to row."""
    numbers = np.arange(first, first + count)
    address = pa.StructArray.from_arrays(
        [pa.array([f"city {number % 997}" for number in numbers]), pa.array(numbers % 99_999, pa.int32())],
        names=["city", "zip"],
    )
    return pa.table(
        {
            "id": pa.array(numbers),
            "customer": pa.array([f"customer {number}" for number in numbers]),
            "price": pa.array(numbers * 0.25),
            "count": pa.array(numbers % 17, pa.int32()),
            "paid": pa.array(numbers % 3 == 0),
            "note": pa.array([None if number % 2 else f"note of {number}" for number in numbers]),
            "tags": pa.array([[f"t{number % 5}", "new"][: number % 3] for number in numbers]),
            "address": address,
        }
    )


def fill(bootstrap: str, records: int, schema_id: int) -> None:
    """Write the same records to a topic as JSON, and to another as framed Avro."""
    with Admin(bootstrap) as admin:
        admin.create_topics(["json", "avro"], PARTITIONS, 1)
    forms = {"json": Json(), "avro": Avro(SCHEMA, schema_id=schema_id)}
    with Producer(bootstrap) as producer:
        for first in range(0, records, 50_000):
            table = rows(first, min(50_000, records - first))
            for topic, form in forms.items():
                producer.send_table(topic, table, value=form).result(60)


def measure(
    bootstrap: str, registry: SchemaRegistryDouble, records: int, rounds: int
) -> dict[tuple[str, str], list[float]]:
    """Return the CPU seconds per million records, by topic and way."""
    rival = Path(os.environ["ONCELOG_SPARK_RIVAL"])
    (packages,) = (rival / "venv" / "lib").glob("python3*/site-packages")
    work = {
        "bootstrap": bootstrap,
        "registry": registry.url,
        "schema": json.dumps(SCHEMA),
        "ddl": DDL,
        "jars": sorted(map(str, [*(rival / "jars").glob("*.jar"), *(rival / "avro").glob("*.jar")])),
        "records": records,
        "rounds": rounds,
        "ways": list(WAYS),
    }
    paths = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    command = [sys.executable, "-u", str(SIDE), json.dumps(work)]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env={**os.environ, "PYTHONPATH": paths}
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                result = json.loads(line)
                topic, way = result["name"].split()
                found[topic, way].append(result["value"])
        if process.wait():
            said.seek(0)
            raise RuntimeError(f"{SIDE.name} failed:\n{said.read()[-4000:]}")
    return found


def show(console: Console, medians: dict[tuple[str, str], float]) -> None:
    """Print the table. The last column is the part of the CPU time that the plain read does not need."""
    table = Table("values", "way", "CPU s/M records", "x of valueFormat", "decoding: CPU s/M records", "x")
    for (topic, way), cpu in medians.items():
        typed, plain = medians[topic, "typed"], medians[topic, "plain"]
        decoding, ours = cpu - plain, typed - plain
        more = ("", "") if way == "plain" else (f"{decoding:.2f}", f"{decoding / ours:.2f}" if ours > 0 else "")
        table.add_row(topic, WAYS[way], f"{cpu:.2f}", f"{cpu / typed:.2f}", *more)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description="Compare the formats of oncelog's Spark source with Spark's functions."
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="two rounds with a fifth of the records")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args(arguments)
    rounds, records = (2, given.records // 5) if given.quick else (given.rounds, given.records)
    console = Console(width=140)
    console.print(f"{records:,} records of eight fields, {platform.platform()}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as folder, SchemaRegistryDouble() as registry:
        server = OncelogCluster(Path(folder) / "broker")
        try:
            number = registry.add("avro-value", {"schema": json.dumps(SCHEMA)})
            fill(server.bootstrap, records, number)
            found = measure(server.bootstrap, registry, records, rounds)
        finally:
            server.stop()
    medians = {key: statistics.median(values) for key, values in found.items()}
    show(console, medians)
    if given.json:
        given.json.write_text(json.dumps({" ".join(key): values for key, values in found.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
