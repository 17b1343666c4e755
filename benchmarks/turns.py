"""Measure what metrics or idempotence cost: CPU time per record with and without them, of client and broker.

scripts/bench --metrics [--rounds N]
scripts/bench --idempotence [--rounds N]

Two clients in one process do the same work in turns of some milliseconds, on one broker, with acks=all. One of them has
no metrics or no idempotence: its recorders do nothing, or its batches have no producer id. Other work on the machine
only adds CPU time, so the table compares the fastest quarter of the turns.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from growth import cpu_seconds
from rich.console import Console
from rich.table import Table

from oncelog import Admin, Consumer, Producer
from support.servers import OncelogCluster

TOPIC, INPUT = "metrics", "metrics-input"
PARTITIONS = 3
RECORDS = 60_000
"""Records of the topic that consumers read."""
VALUE = bytes(100)
ROWS = pa.table({"value": [VALUE] * 10_000})


def nothing(*_: Any) -> None:
    """Record nothing."""


def quiet(client: Any) -> Any:
    """Turn the recorders of a new client off, and return it."""
    core = client._core
    core.cluster.requests.of_node = core.cluster.requests.keep_nodes = nothing
    if isinstance(client, Producer):
        core.sender._count = core.sends.answered = nothing
    else:
        core.fetches.fetched = core.fetches.consumed = nothing
    return client


def send(producer: Producer) -> int:
    """Send one by one, in batches of the default size."""
    for number in range(3_000):
        producer.send(TOPIC, VALUE, partition=number % PARTITIONS)
    producer.flush()
    return 3_000


def send_alone(producer: Producer) -> int:
    """Send one by one and wait for each: one record a request."""
    for _ in range(50):
        producer.send(TOPIC, VALUE, partition=0).result()
    return 50


def send_table(producer: Producer) -> int:
    """Send an Arrow table."""
    producer.send_table(TOPIC, ROWS)
    producer.flush()
    return len(ROWS)


def poll(consumer: Consumer) -> int:
    """Read lists of records."""
    count = 0
    while count < 3_000:
        count += len(consumer.poll(10))
    return rewind(consumer, count)


def read_tables(consumer: Consumer) -> int:
    """Read Arrow tables."""
    count = 0
    for table in consumer.tables(timeout=10):
        count += len(table)
        if count >= RECORDS // 2:
            break
    return rewind(consumer, count)


def rewind(consumer: Consumer, count: int) -> int:
    """Go back if the next turn would read too far. Return `count`."""
    if sum(consumer.cached_lag().values()) <= RECORDS // 2:
        consumer.seek_to_beginning()
    return count


def producer(bootstrap: str, *, idempotence: bool = True) -> Producer:
    """Create a producer."""
    return Producer(bootstrap, linger_ms=0, batch_size=16_384, acks="all", enable_idempotence=idempotence)


def consumer(bootstrap: str) -> Consumer:
    """Create a consumer of all partitions."""
    made = Consumer(bootstrap, auto_offset_reset="earliest")
    made.assign([(INPUT, partition) for partition in range(PARTITIONS)])
    return made


Work = Callable[[Any], int]
Pair = tuple[Callable[[str], Any], Callable[[str], Any]]
"""Create a client with what is measured, and one without it."""

SENDING: dict[str, Work] = {
    "send one by one": send,
    "send one by one, wait for each": send_alone,
    "send a table": send_table,
}
READING: dict[str, Work] = {"poll one by one": poll, "read tables": read_tables}

SUBJECTS: dict[str, tuple[tuple[dict[str, Work], Pair], ...]] = {
    "metrics": (
        (SENDING, (producer, lambda bootstrap: quiet(producer(bootstrap)))),
        (READING, (consumer, lambda bootstrap: quiet(consumer(bootstrap)))),
    ),
    "idempotence": ((SENDING, (producer, lambda bootstrap: producer(bootstrap, idempotence=False))),),
}


def measure(server: OncelogCluster, rounds: int, subject: str) -> Table:
    """Return the table of results."""
    columns = ("with (us)", "without (us)", "ratio")
    shown = Table("CPU of a record", *(f"{who}, {column}" for who in ("client", "broker") for column in columns))
    for works, pair in SUBJECTS[subject]:
        for name, work in works.items():
            clients = [make(server.bootstrap) for make in pair]
            times: list[list[tuple[float, float]]] = [[], []]
            for number in range(-3, rounds):
                for which in (0, 1) if number % 2 else (1, 0):
                    begun = time.process_time(), cpu_seconds(server.broker_pid())
                    count = work(clients[which])
                    spent = time.process_time() - begun[0], cpu_seconds(server.broker_pid()) - begun[1]
                    if number >= 0:  # the first turns connect and compile
                        times[which].append((spent[0] / count * 1e6, spent[1] / count * 1e6))
            for client in clients:
                client.close()
            cells = []
            for who in (0, 1):
                ours, bare = (
                    statistics.mean(sorted(turn[who] for turn in each)[: max(1, rounds // 4)]) for each in times
                )
                cells += [f"{ours:.3f}", f"{bare:.3f}", f"{ours / bare:.3f}"]
            shown.add_row(name, *cells)
    return shown


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure the CPU time of metrics or idempotence.")
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    gc.disable()  # its pauses would fall into some turns only
    with tempfile.TemporaryDirectory(prefix="oncelog-metrics-") as folder:
        server = OncelogCluster(Path(folder))
        try:
            with Admin(server.bootstrap) as admin:
                admin.create_topics(TOPIC, PARTITIONS)
                admin.create_topics(INPUT, PARTITIONS)
            with Producer(server.bootstrap) as filling:
                for number in range(RECORDS):
                    filling.send(INPUT, VALUE, partition=number % PARTITIONS)
            Console(width=120).print(measure(server, arguments.rounds, arguments.subject))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
