"""Compare our broker with Apache Kafka 4.3.1, each under load from Kafka's own performance tools.

scripts/bench [--quick] [--rounds N] [--json FILE]

Each round starts one server with an empty folder, runs every workload, and stops it. Rounds alternate between the
servers, so that other work on the machine affects both. The table shows the median of the rounds and our ratio to
Kafka. The tools' JVM and other processes influence the speed, so the table also shows the broker's CPU time. See
growth.py for the cost of a request on a broker with much data.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import socket
import statistics
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from support.apache_kafka import ApacheKafka, java, kafka_libs
from support.processes import ManagedProcess
from support.servers import OncelogCluster, Server

TOOLS = "org.apache.kafka.tools"
PARTITIONS = 3
MB = 1 << 20
Figures = dict[str, Any]
"""`medians` and `rounds`: the figures by server and row."""


class Addressed(Protocol):
    """A broker, or several."""

    bootstrap: str


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `target` is the smallest ratio to Kafka; with `less`, the largest ratio; with `absolute`, our largest figure. None:
    the row has no target.
    """

    name: str
    unit: str
    target: float | None = None
    absolute: bool = False
    less: bool = False

    def aim(self) -> str:
        """Return the target in words."""
        if self.target is None:
            return ""
        if self.absolute:
            return f"<= {self.target:g} {self.unit}"
        return f"{'<=' if self.less else '>='} {self.target:g} x"

    def verdict(self, ours: float, kafka: float) -> str:
        """Return whether our figure meets the target."""
        if self.target is None:
            return ""
        if self.absolute:
            met = ours <= self.target
        else:
            met = ours <= self.target * kafka if self.less else ours >= self.target * kafka
        return "[green]met[/]" if met else "[red]missed[/]"


DEFAULT = "produce 100 B, default batches"
BATCHES = "produce 100 B, 64 KiB batches, linger 5"
LARGE = "produce 1 KiB, 128 KiB batches"
TRANSACTIONS = "transactions of 100 ms, 100 B"
CONSUME = "consume 1 KiB"

ROWS = (
    Row(DEFAULT, "rec/s", 2.0),
    Row(BATCHES, "rec/s", 2.0),
    Row(LARGE, "MB/s", 1.2),
    Row(TRANSACTIONS, "rec/s", 2.0),
    Row(CONSUME, "MB/s", 1.2),
    Row("end-to-end latency, mean", "ms", 1.0, less=True),
    Row("end-to-end latency, 99th percentile", "ms", 1.0, less=True),
    Row("ready after start", "s", 0.5, absolute=True),
    Row("resident memory when ready", "MB", 80, absolute=True),
    Row("resident memory after the load", "MB", 80, absolute=True),
    Row(f"CPU: {DEFAULT}", "s/M rec"),
    Row(f"CPU: {BATCHES}", "s/M rec"),
    Row(f"CPU: {LARGE}", "s/GB"),
    Row(f"CPU: {TRANSACTIONS}", "s/M rec"),
    Row(f"CPU: {CONSUME}", "s/GB"),
)


def run_tool(folder: Path, name: str, *arguments: str) -> str:
    """Run a performance tool with a JVM as in Kafka's scripts. Return its stdout."""
    process = ManagedProcess(java(f"{TOOLS}.{name}", *arguments, heap="512m"), folder, name)
    try:
        process.wait_for(lambda: process.popen.poll() is not None, f"{name} ends", timeout=300)
    finally:
        process.kill()
    assert process.popen.returncode == 0, process.output()
    return process.stdout_path.read_text()


def create_topic(server: Addressed, folder: Path, topic: str) -> None:
    """Create an empty topic of PARTITIONS partitions."""
    options = ("--create", "--topic", topic, "--partitions", str(PARTITIONS))
    run_tool(folder, "TopicCommand", "--bootstrap-server", server.bootstrap, *options)


def produce(server: Addressed, folder: Path, topic: str, records: int, size: int, *options: str) -> tuple[float, float]:
    """Return (records per second, MB per second) of Kafka's ProducerPerformance with acks=all."""
    create_topic(server, folder, topic)
    shown = run_tool(
        folder, "ProducerPerformance", "--bootstrap-server", server.bootstrap, "--topic", topic,
        "--num-records", str(records), "--record-size", str(size), "--throughput", "-1",
        *options,
    )  # fmt: skip
    last = [line for line in shown.splitlines() if line.startswith(f"{records} records sent")][-1]
    found = re.search(r"([\d.]+) records/sec \(([\d.]+) MB/sec\)", last)
    assert found, shown
    return float(found[1]), float(found[2])


def properties(**values: object) -> tuple[str, ...]:
    """Return producer settings in the tool's form: after one option, because a repeated option replaces the
    previous one.
    """
    return ("--command-property", "acks=all", *(f"{key.replace('_', '.')}={value}" for key, value in values.items()))


def consume(server: Addressed, folder: Path, topic: str, records: int) -> float:
    """Return MB per second of Kafka's ConsumerPerformance, without the time to join the group."""
    shown = run_tool(
        folder, "ConsumerPerformance", "--bootstrap-server", server.bootstrap, "--topic", topic,
        "--num-records", str(records), "--hide-header", "--timeout", "60000",
    )  # fmt: skip
    columns = shown.strip().splitlines()[-1].split(",")
    return float(columns[8])


def answers(bootstrap: str) -> bool:
    """Return whether the server answers ApiVersions."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    try:
        with socket.create_connection((host, int(port)), timeout=1) as sock:
            sock.sendall(request)
            return len(sock.recv(4)) == 4
    except OSError:
        return False


def latency(server: Addressed, folder: Path, records: int) -> tuple[float, float]:
    """Return (mean, 99th percentile) in ms of Kafka's EndToEndLatency, which sends and reads one record of 100 B at
    a time.
    """
    shown = run_tool(
        folder, "EndToEndLatency", "--bootstrap-server", server.bootstrap, "--topic", "latency",
        "--num-records", str(records), "--producer-acks", "all", "--record-size", "100",
    )  # fmt: skip
    found = re.search(r"Avg latency: ([\d.]+) ms.*99th = (\d+)", shown, re.DOTALL)
    assert found, shown
    return float(found[1]), float(found[2])


def resident(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def workloads(server: Server, pid: int, folder: Path, scale: float) -> Iterator[tuple[str, float]]:
    """Run all workloads. Yield (row, value) after each, and (row, CPU seconds per million records or per GB)."""
    small, large = int(2_000_000 * scale), int(600_000 * scale)
    batches = properties(batch_size=65536, linger_ms=5)
    big = properties(batch_size=131072, linger_ms=5)
    transactions = ("--transactional-id", "bench", "--transaction-duration-ms", "100")
    works: dict[str, tuple[float, Callable[[], float]]] = {
        DEFAULT: (small / 1e6, lambda: produce(server, folder, "default", small, 100, *properties())[0]),
        BATCHES: (2 * small / 1e6, lambda: produce(server, folder, "batches", 2 * small, 100, *batches)[0]),
        LARGE: (large * 1024 / 1e9, lambda: produce(server, folder, "large", large, 1024, *big)[1]),
        TRANSACTIONS: (
            small / 1e6,
            lambda: produce(server, folder, "transactions", small, 100, *properties(), *transactions)[0],
        ),
        CONSUME: (large * 1024 / 1e9, lambda: consume(server, folder, "large", large)),
    }
    for name, (amount, work) in works.items():
        before = cpu_seconds(pid)
        yield name, work()
        yield f"CPU: {name}", (cpu_seconds(pid) - before) / amount
    mean, highest = latency(server, folder, int(10_000 * scale))
    yield "end-to-end latency, mean", mean
    yield "end-to-end latency, 99th percentile", highest


def oncelog_round(folder: Path, scale: float) -> Iterator[tuple[str, float]]:
    """Run one round with our broker."""
    started = time.perf_counter()
    server = OncelogCluster(folder)
    yield from measured(server, started, folder, scale, lambda: server.broker_pid())


def kafka_round(folder: Path, scale: float) -> Iterator[tuple[str, float]]:
    """Run one round with Apache Kafka: 1 GiB of heap, as in its start script, and the usual options of the JVM."""
    server = ApacheKafka(folder, heap="1g", options=())
    server.stop()
    started = time.perf_counter()
    server.start()
    yield from measured(server, started, folder, scale, lambda: server.process.pid)


def measured(
    server: Server, started: float, folder: Path, scale: float, pid: Callable[[], int]
) -> Iterator[tuple[str, float]]:
    """Measure start-up, memory and the workloads of a new server. Stop the server."""
    try:
        while not answers(server.bootstrap):
            time.sleep(0.005)
        yield "ready after start", time.perf_counter() - started
        yield "resident memory when ready", resident(pid())
        yield from workloads(server, pid(), folder / "tools", scale)
        yield "resident memory after the load", resident(pid())
    finally:
        server.stop()


ROUNDS = {"Apache Kafka": kafka_round, "oncelog": oncelog_round}
Round = Callable[[Path, float], Iterator[tuple[str, float]]]
"""Runs one server in a folder, with a share of the records. Yields (row, value)."""


def compared(console: Console, rows: Sequence[Row], rivals: Mapping[str, Round], rounds: int, scale: float) -> Figures:
    """Run alternating rounds of the servers, and print a table of `rows`. Return all figures."""
    values: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in rivals}
    for number in range(rounds):
        order = list(rivals) if number % 2 == 0 else list(rivals)[::-1]
        for name in order:
            with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as folder:
                for row, value in rivals[name](Path(folder), scale):
                    values[name][row].append(value)
                    console.print(f"round {number + 1}/{rounds} {name:>12}: {row}: {value:,.2f}")
    medians = {
        name: {row: statistics.median(of_row) for row, of_row in found.items()} for name, found in values.items()
    }
    show(console, rows, medians)
    return {"medians": medians, "rounds": values}


def save(console: Console, figures: Figures, path: Path | None) -> None:
    """Write all figures to a file, if one is given."""
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n")
        console.print(f"all figures: {path}")


def show(console: Console, rows: Sequence[Row], medians: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    table = Table("work", "", "Apache Kafka 4.3.1", "oncelog", "ratio", "target", "")
    for row in rows:
        kafka, ours = medians["Apache Kafka"][row.name], medians["oncelog"][row.name]
        digits = 2 if row.unit in ("s", "ms", "s/M rec", "s/GB") else 0
        ratio = f"{ours / kafka:.2f} x" if kafka else ""
        numbers = (f"{kafka:,.{digits}f}", f"{ours:,.{digits}f}", ratio)
        table.add_row(row.name, row.unit, *numbers, row.aim(), row.verdict(ours, kafka))
    console.print(table)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Compare oncelog with Apache Kafka.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round with a fifth of the records")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    rounds, scale = (1, 0.2) if arguments.quick else (arguments.rounds, 1.0)
    console = Console(width=110)
    console.print(f"Apache Kafka from {kafka_libs()}, {platform.platform()}, Python {platform.python_version()}")
    save(console, compared(console, ROWS, ROUNDS, rounds, scale), arguments.json)


if __name__ == "__main__":
    main()
