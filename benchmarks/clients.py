"""Compare our client with confluent-kafka (librdkafka) on one oncelog broker: records of 100 B, as tables and
individually.

scripts/bench --clients [--quick] [--rounds N] [--json FILE]

Each workload runs in its own process. It creates its data, connects, and sends or reads a little before its clock
starts. A round runs all workloads on a new broker, in alternating order. The table shows the median of the rounds. CPU
is the client's, of all its threads.

Both producers are idempotent, with acks=all and linger.ms=5. The other options are each client's defaults, except for
librdkafka's queues. These are made large enough that librdkafka does not wait for itself. Otherwise, its producer waits
for space, and its consumer waits a second (`fetch.queue.backoff.ms`) whenever it has buffered 100,000 messages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from servers import Row

SIZE = 100
PARTITIONS = 3


class Measured(NamedTuple):
    """The figures of a workload: records per second of wall clock, and per second of the client's CPU."""

    records: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def per_cpu(self) -> float:
        return self.records / self.cpu


class Clock:
    """The wall clock and CPU time of this process since the clock was created."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, records: int) -> Measured:
        return Measured(records, time.perf_counter() - self._wall, time.process_time() - self._cpu)


def values(count: int) -> list[bytes]:
    """Return distinct values of SIZE bytes."""
    return [b"%0*d" % (SIZE, number) for number in range(count)]


# -- workloads ---------------------------------------------------------------------------------------------------------


def confluent_send(bootstrap: str, topic: str, count: int) -> Measured:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    data = values(count)
    producer.produce(topic, b"first")
    producer.flush()
    clock = Clock()
    produce = producer.produce
    for value in data:
        produce(topic, value)
    producer.flush()
    return clock.stop(count)


def tables_send(bootstrap: str, topic: str, count: int) -> Measured:
    import pyarrow as pa

    from oncelog import Producer

    table = pa.table({"value": pa.array(values(count), pa.binary())})
    with Producer(bootstrap, linger_ms=5) as producer:
        producer.send_table(topic, table.slice(0, 1)).result()
        clock = Clock()
        producer.send_table(topic, table).result()
        return clock.stop(count)


def ours_send(bootstrap: str, topic: str, count: int) -> Measured:
    from oncelog import Producer

    data = values(count)
    with Producer(bootstrap, linger_ms=5) as producer:
        producer.send(topic, b"first").result()
        clock = Clock()
        send = producer.send
        for value in data:
            send(topic, value)
        producer.flush()
        return clock.stop(count)


def confluent_read(bootstrap: str, topic: str, count: int) -> Measured:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "auto.offset.reset": "earliest",
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    seen = len(consumer.consume(1, 30))
    clock = Clock()
    start = seen
    size = 0
    while seen < count:
        messages = consumer.consume(1_000, 1.0)
        for message in messages:
            size += len(message.value())
        seen += len(messages)
    measured = clock.stop(seen - start)
    consumer.close()
    return measured


def tables_read(bootstrap: str, topic: str, count: int) -> Measured:
    from oncelog import Consumer

    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, index) for index in range(PARTITIONS)])
        tables = consumer.tables()
        start = seen = len(next(tables))
        clock = Clock()
        size = 0
        while seen < count:
            table = next(tables)
            size += table["value"].nbytes
            seen += len(table)
        return clock.stop(seen - start)


def ours_read(bootstrap: str, topic: str, count: int) -> Measured:
    from oncelog import Consumer

    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, index) for index in range(PARTITIONS)])
        start = seen = len(consumer.poll(30))
        clock = Clock()
        size = 0
        while seen < count:
            records = consumer.poll(1.0)
            for record in records:
                size += len(record.value or b"")
            seen += len(records)
        return clock.stop(seen - start)


WORKS: dict[str, Callable[[str, str, int], Measured]] = {
    work.__name__: work for work in (confluent_send, tables_send, ours_send, confluent_read, tables_read, ours_read)
}
ONE_BY_ONE = ("ours_send", "ours_read")


class Line(NamedTuple):
    """A line of the table: two workloads, and the figure to compare."""

    row: Row
    theirs: str
    ours: str
    what: Callable[[Measured], float]


def lines() -> Iterator[Line]:
    """Return the lines of the table."""
    works = (
        ("produce as tables", "confluent_send", "tables_send", 1.5, 5.0),
        ("consume as tables", "confluent_read", "tables_read", 5.0, None),
        ("send individually", "confluent_send", "ours_send", 0.1, None),
        ("poll, individually", "confluent_read", "ours_read", 0.1, None),
    )
    for name, theirs, ours, wall, cpu in works:
        yield Line(Row(name, "rec/s", wall), theirs, ours, lambda measured: measured.rate)
        yield Line(Row(f"CPU: {name}", "rec/CPU-s", cpu), theirs, ours, lambda measured: measured.per_cpu)


# -- rounds -----------------------------------------------------------------------------------------------------------


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a new oncelog broker, and yield its address."""
    from support.servers import OncelogCluster

    server = OncelogCluster(folder)
    try:
        yield server.bootstrap
    finally:
        server.stop()


def run(work: str, bootstrap: str, topic: str, count: int) -> Measured:
    """Run one workload in its own process."""
    command = [sys.executable, __file__, "--work", work, "--on", bootstrap, "--topic", topic, "--records", str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def one_round(folder: Path, scale: float, *, backwards: bool) -> Iterator[tuple[str, Measured]]:
    """Run all workloads: first the writers, then the readers, which read what confluent-kafka wrote."""
    from oncelog import Admin

    many, few = int(1_500_000 * scale), int(250_000 * scale)
    with broker(folder) as bootstrap:
        with Admin(bootstrap) as admin:
            admin.create_topics([name for name in WORKS if name.endswith("send")], PARTITIONS)
        for kind in ("send", "read"):
            names = [name for name in WORKS if name.endswith(kind)]
            for name in reversed(names) if backwards else names:
                topic = name if kind == "send" else "confluent_send"
                yield name, run(name, bootstrap, topic, few if name in ONE_BY_ONE else many)


def show(console: Console, found: dict[str, list[Measured]]) -> None:
    """Print the table: medians of the rounds, and the median of their ratios."""
    table = Table("work", "", "confluent-kafka", "oncelog", "ratio", "target", "")
    for row, theirs, ours, what in lines():
        pairs = [(what(a), what(b)) for a, b in zip(found[theirs], found[ours], strict=True)]
        kafka, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
        table.add_row(
            row.name, row.unit, f"{kafka:,.0f}", f"{mine:,.0f}", f"{mine / kafka:.2f} x", row.aim(),
            row.verdict(mine, kafka),
        )  # fmt: skip
    console.print(table)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Compare our client with confluent-kafka.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round with a fifth of the records")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--work", choices=WORKS, help="run only this workload, on a running broker")
    parser.add_argument("--on", default="localhost:9092", help="with --work: address of the broker")
    parser.add_argument("--topic", default="bench", help="with --work: a topic of three partitions")
    parser.add_argument("--records", type=int, default=1_000_000, help="with --work: number of records")
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(WORKS[arguments.work](arguments.on, arguments.topic, arguments.records)))
        return
    rounds, scale = (1, 0.2) if arguments.quick else (arguments.rounds, 1.0)
    console = Console(width=120)
    found: dict[str, list[Measured]] = defaultdict(list)
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as folder:
            for name, measured in one_round(Path(folder), scale, backwards=number % 2 == 1):
                found[name].append(measured)
                console.print(
                    f"round {number + 1}/{rounds} {name:>15}: {measured.rate:>12,.0f} rec/s "
                    f"{measured.per_cpu:>12,.0f} rec/CPU-s"
                )
    show(console, found)
    if arguments.json:
        arguments.json.write_text(json.dumps({name: list(each) for name, each in found.items()}, indent=1) + "\n")
        console.print(f"all figures: {arguments.json}")


if __name__ == "__main__":
    main()
