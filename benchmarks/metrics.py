"""Measure what a client's metrics cost: its CPU time per record with and without them.

scripts/bench --metrics [--rounds N] [--records N]

Rounds with and without alternate in one process, against one broker. Without means that the recorders do nothing. The
machine's other work only adds CPU time, so the lowest times are compared. The table also shows the spread of the ratios
of rounds that followed each other.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from oncelog import Admin, Consumer, Producer
from oncelog.client.metrics.fetches import Fetches
from oncelog.client.metrics.requests import Requests
from oncelog.client.metrics.sends import Sends
from oncelog.client.producer.sender import Sender
from support.servers import OncelogCluster

TOPIC = "metrics"
PARTITIONS = 3
VALUE = bytes(100)


@contextmanager
def without_metrics() -> Iterator[None]:
    """Let the recorders do nothing, in clients that are created in this block."""

    def nothing(*_: Any) -> None:
        pass

    parts: tuple[tuple[type, str], ...] = (
        *((Requests, name) for name in ("of_node", "keep_nodes")),
        *((Sends, name) for name in ("answered", "retried", "failed")),
        *((Fetches, name) for name in ("fetched", "consumed")),
        (Sender, "_count"),
    )
    patches = [mock.patch.object(kind, name, nothing) for kind, name in parts]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def send(bootstrap: str, records: int) -> None:
    """Send one by one, in batches of the default size."""
    with Producer(bootstrap) as producer:
        for number in range(records):
            producer.send(TOPIC, VALUE, partition=number % PARTITIONS)


def send_alone(bootstrap: str, records: int) -> None:
    """Send one by one and wait for each: one record a request."""
    with Producer(bootstrap, linger_ms=0) as producer:
        for _ in range(records // 50):
            producer.send(TOPIC, VALUE, partition=0).result()


def send_tables(bootstrap: str, records: int) -> None:
    """Send Arrow tables."""
    table = pa.table({"value": [VALUE] * 20_000})
    with Producer(bootstrap, linger_ms=0, batch_size=1 << 16) as producer:
        for _ in range(max(1, records * 5 // 20_000)):
            producer.send_table(TOPIC, table)


def poll(bootstrap: str, records: int) -> None:
    """Read lists of records."""
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, partition) for partition in range(PARTITIONS)])
        left = records
        while left > 0:
            left -= len(consumer.poll(10))


def read_tables(bootstrap: str, records: int) -> None:
    """Read Arrow tables."""
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, partition) for partition in range(PARTITIONS)])
        left = records * 5
        for table in consumer.tables(timeout=10):
            left -= len(table)
            if left <= 0:
                return


WORK: dict[str, tuple[Callable[[str, int], None], float]] = {
    "send one by one": (send, 1),
    "send one by one, wait for each": (send_alone, 1 / 50),
    "send tables": (send_tables, 5),
    "poll one by one": (poll, 1),
    "read tables": (read_tables, 5),
}
"""What to run, and how many records it moves for each record of `--records`."""


def cpu(work: Callable[[str, int], None], bootstrap: str, records: int) -> float:
    """Return the CPU seconds of this process that some work takes."""
    gc.collect()
    begun = time.process_time()
    work(bootstrap, records)
    return time.process_time() - begun


def measure(bootstrap: str, records: int, rounds: int) -> Table:
    """Return the table of results."""
    shown = Table("work", "with, us/record", "without, us/record", "ratio", "middle half of the pairs")
    for name, (work, share) in WORK.items():
        work(bootstrap, records)  # compile, import and fill the topic
        pairs = []
        for number in range(rounds):
            times = {}
            for metrics in (True, False) if number % 2 else (False, True):
                if metrics:
                    times[metrics] = cpu(work, bootstrap, records)
                else:
                    with without_metrics():
                        times[metrics] = cpu(work, bootstrap, records)
            pairs.append((times[True], times[False]))
        ratios = [with_them / without for with_them, without in pairs]
        low, _, high = statistics.quantiles(ratios, n=4)
        ours, bare = (min(column) / (records * share) * 1e6 for column in zip(*pairs, strict=True))
        shown.add_row(name, f"{ours:.3f}", f"{bare:.3f}", f"{ours / bare:.3f}", f"{low:.3f} to {high:.3f}")
    return shown


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure the CPU time of a client's metrics.")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncelog-metrics-") as folder:
        server = OncelogCluster(Path(folder))
        try:
            with Admin(server.bootstrap) as admin:
                admin.create_topics(TOPIC, PARTITIONS)
            Console(width=120).print(measure(server.bootstrap, arguments.records, arguments.rounds))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
