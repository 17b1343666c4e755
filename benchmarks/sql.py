"""Compare `oncelog sql` on a topic with DuckDB on the same rows in a Parquet file, and with a consumer loop and pandas.

scripts/bench --sql [--records N] [--format json|avro] [--rounds N]

Each query runs in a process of its own, which prints its seconds, CPU seconds and peak memory. The broker is another
process. The rows have eight fields.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import oncelog
from oncelog import Admin, Consumer, Producer
from oncelog.formats import Avro, Json
from oncelog.tables.choosing import Wanted
from support.servers import OncelogCluster

TOPIC = "orders"
PARTITIONS = 4
BATCH = 100_000
START_MS = 1_790_000_000_000
SPAN_MS = 24 * 3_600_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("country", pa.string()),
        ("city", pa.string()),
        ("price", pa.float64()),
        ("quantity", pa.int32()),
        ("paid", pa.bool_()),
        ("customer", pa.int64()),
        ("note", pa.string()),
    ]
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": field.name, "type": kind}
        for field, kind in zip(
            SCHEMA, ("long", "string", "string", "double", "int", "boolean", "long", "string"), strict=True
        )
    ],
}
QUERIES = {
    "group": "select country, count(*) as n, sum(price) as total from {table} group by 1",
    "filter": "select count(*) as n, max(price) as top from {table} where city = 'city-7' and quantity > 5",
    "hour": "select count(*) as n, sum(quantity) as q from {table} where _timestamp >= {late}",
    "count": "select count(*) as n from {table}",
}


def rows(first: int, count: int, total: int) -> pa.Table:
    """Return orders with a column `_timestamp`, which grows from the first to the last of `total`."""
    random = np.random.default_rng(first)
    ids = np.arange(first, first + count)
    texts = {
        name: pa.array([f"{name}-{number}" for number in range(size)]).take(pa.array(random.integers(0, size, count)))
        for name, size in (("country", 50), ("city", 1000), ("note", 10_000))
    }
    columns = {
        "id": ids,
        **texts,
        "price": np.round(random.random(count) * 100, 2),
        "quantity": random.integers(1, 10, count).astype(np.int32),
        "paid": random.random(count) < 0.5,
        "customer": random.integers(0, 1_000_000, count),
    }
    made = pa.table({name: columns[name] for name in SCHEMA.names}, SCHEMA)
    times = pa.array(START_MS + ids * SPAN_MS // total).cast(pa.timestamp("ms", "UTC"))
    return made.append_column("_timestamp", times)


def load(bootstrap: str, count: int, form: str, path: Path) -> None:
    """Write the orders to the topic and to a Parquet file."""
    with Admin(bootstrap) as admin:
        admin.create_topics(TOPIC, partitions=PARTITIONS)
    written: pq.ParquetWriter | None = None
    value = Json() if form == "json" else Avro(AVRO)
    with Producer(bootstrap, linger_ms=5, batch_size=1 << 20) as producer:
        for first in range(0, count, BATCH):
            table = rows(first, min(BATCH, count - first), count)
            written = written or pq.ParquetWriter(path, table.schema)
            written.write_table(table)
            named = table.rename_columns([*SCHEMA.names, "timestamp"])
            spread = pa.array(np.arange(first, first + len(table)) % PARTITIONS, pa.int32())
            producer.send_table(TOPIC, named.append_column("partition", spread), value=value)
    assert written is not None
    written.close()


# -- the work of a process --------------------------------------------------------------------------------------------


def with_oncelog(query: str, bootstrap: str, form: str, path: str) -> list[tuple[object, ...]]:
    formats = {TOPIC: Wanted("json") if form == "json" else Wanted("avro", json.dumps(AVRO))}
    with oncelog.sql(query.format(table=TOPIC, late=late()), bootstrap, formats=formats) as found:
        return found.rows()


def with_parquet(query: str, bootstrap: str, form: str, path: str) -> list[tuple[object, ...]]:
    import duckdb

    return duckdb.sql(query.format(table=f"'{path}'", late=late())).fetchall()


def with_pandas(query: str, bootstrap: str, form: str, path: str) -> list[tuple[object, ...]]:
    """Read the values with a consumer, decode them one by one, and group them in pandas: only the first query."""
    import io

    import fastavro
    import pandas as pd

    schema = fastavro.parse_schema(AVRO)
    found = []
    with Consumer(bootstrap) as consumer:
        consumer.assign([(TOPIC, partition) for partition in range(PARTITIONS)])
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(*tp) < end for tp, end in ends.items()):
            for record in consumer.poll(1.0, 10_000):
                if form == "json":
                    found.append(json.loads(record.value))
                else:
                    found.append(fastavro.schemaless_reader(io.BytesIO(record.value), schema, None))
    grouped = pd.DataFrame(found).groupby("country").agg(n=("id", "size"), total=("price", "sum"))
    return [(country, int(count), total) for country, count, total in grouped.itertuples()]


WAYS: dict[str, Callable[[str, str, str, str], list[tuple[object, ...]]]] = {
    "oncelog": with_oncelog,
    "parquet": with_parquet,
    "pandas": with_pandas,
}


def late() -> str:
    """Return the time of the last hour's start, as SQL."""
    return f"make_timestamptz({(START_MS + SPAN_MS - 3_600_000) * 1000}::bigint)"


def child(way: str, name: str, bootstrap: str, form: str, path: str) -> None:
    begun = time.monotonic()
    found = WAYS[way](QUERIES[name], bootstrap, form, path)
    seconds = time.monotonic() - begun
    used = resource.getrusage(resource.RUSAGE_SELF)
    digest = sorted(str(tuple(round(x, 2) if isinstance(x, float) else x for x in row)) for row in found)
    print(json.dumps({"s": seconds, "cpu": used.ru_utime + used.ru_stime, "mb": used.ru_maxrss >> 10, "rows": digest}))


# -- the comparison ---------------------------------------------------------------------------------------------------


def measured(way: str, name: str, bootstrap: str, form: str, path: Path) -> dict[str, object]:
    arguments = [sys.executable, __file__, "--child", way, name, bootstrap, form, str(path)]
    found: dict[str, object] = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    return found


def cases(count: int) -> Iterator[tuple[str, str]]:
    for name in QUERIES:
        for way in WAYS:
            if way != "pandas" or (name == "group" and count <= 2_000_000):
                yield name, way


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--format", choices=("json", "avro"), default="json")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders.parquet"
        server = OncelogCluster(Path(folder) / "broker")
        try:
            load(server.bootstrap, given.records, given.format, path)
            print(f"{given.records:,} records, {given.format}; medians of {given.rounds} processes", flush=True)
            print(f"{'query':8} {'with':8} {'seconds':>8} {'CPU s':>8} {'peak MB':>8}")
            for name, way in cases(given.records):
                runs = [measured(way, name, server.bootstrap, given.format, path) for _ in range(given.rounds)]
                middle = [statistics.median(float(str(run[key])) for run in runs) for key in ("s", "cpu", "mb")]
                print(f"{name:8} {way:8} {middle[0]:8.2f} {middle[1]:8.2f} {middle[2]:8.0f}", flush=True)
                if way == "oncelog":
                    rows_of_topic = runs[0]["rows"]
                assert runs[-1]["rows"] == rows_of_topic, (name, way)
        finally:
            server.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
