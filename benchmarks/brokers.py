"""Compare three of our brokers with three of Apache Kafka 4.3.1, or our broker with several of them.

scripts/bench --brokers 3 [--quick] [--rounds N] [--warm N] [--kills N] [--json FILE]
scripts/bench --brokers 1,2,4 [--quick] [--rounds N] [--json FILE]

With 3, each topic has three replicas, min.insync.replicas=2 and acks=all. Each round starts one of the clusters with
empty folders, and warms it up with several passes of the first workload. CPU is that of all brokers together. The time
without a leader begins when the leader of a partition is killed, and ends when another broker has answered a Produce.

With a list, each topic has one replica. For each number of brokers, one process a broker sends the same batches
repeatedly. The speed grows only if the machine has cores for the brokers and for these processes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from capacity import Connection, check_produce, load
from capacity import produce as encoded_produce
from rich.console import Console
from rich.table import Table
from servers import BATCHES, LARGE, Figures, Row, answers, compared, cpu_seconds, latency, resident, run_tool, save
from servers import produce as produce_with_tool
from servers import properties as tool_properties

from oncelog import Admin
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.apache_kafka import kafka_libs
from support.kafka_nodes import KafkaNodes
from support.servers import REPLICATED, OncelogCluster
from support.wire import Wire, batch

REPLICAS = 3
CONNECTIONS = 3
"""Connections to each broker, each with its own partition."""

ROWS = (
    Row(BATCHES, "rec/s", 1.5),
    Row(LARGE, "MB/s", 1.2),
    Row(f"CPU: {BATCHES}", "s/M rec", 0.35, less=True),
    Row(f"CPU: {LARGE}", "s/M rec", 0.35, less=True),
    Row("end-to-end latency, mean", "ms", 1.0, less=True),
    Row("end-to-end latency, 99th percentile", "ms", 1.0, less=True),
    Row("ready after start", "s", 1.5, absolute=True),
    Row("largest resident memory when ready", "MB", 80, absolute=True),
    Row("largest resident memory after the load", "MB", 80, absolute=True),
    Row("without a leader after kill -9, median", "s", 1.0, absolute=True),
    Row("without a leader after kill -9, worst", "s"),
)


class Brokers(Protocol):
    """Several brokers, ours or Apache Kafka's. Their ids are 1, 2, ..., in the order of the addresses."""

    bootstrap: str

    def start(self) -> None:
        """Start the brokers that do not run, or let their supervisor do it."""

    def pids(self) -> list[int]:
        """Return the process ids of all brokers."""

    def kill(self, node: int) -> None:
        """Kill a broker as with `kill -9`."""

    def stop(self) -> object:
        """Stop all brokers."""


class OncelogBrokers:
    """Our brokers. They run after `start`."""

    def __init__(self, folder: Path, count: int = REPLICAS) -> None:
        self.bootstrap = ""
        self._folder, self._count = folder, count
        self._cluster: OncelogCluster | None = None

    def start(self) -> None:
        """Start all brokers. Later, wait until the supervisor has restarted the killed ones."""
        if self._cluster is not None:
            self._cluster.wait_ready()
            return
        settings = REPLICATED if self._count >= REPLICAS else {}
        self._cluster = OncelogCluster(self._folder, settings=settings, arguments=("--brokers", str(self._count)))
        self.bootstrap = self._cluster.bootstrap

    def pids(self) -> list[int]:
        """Return the process ids of all brokers, without the supervisor."""
        assert self._cluster is not None
        return [self._cluster.broker_pid(node) for node in range(1, self._count + 1)]

    def kill(self, node: int) -> None:
        """Kill a broker. The supervisor restarts it."""
        assert self._cluster is not None
        self._cluster.kill(node)

    def stop(self) -> None:
        """Stop all brokers."""
        if self._cluster is not None:
            self._cluster.stop()


class Partition(NamedTuple):
    """A partition's leader, or -1, and the number of its in-sync replicas."""

    leader: int
    in_sync: int


def described(wire: Wire, topic: str) -> list[Partition]:
    """Return the state of each partition of a topic, as the broker of this connection knows it."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    partitions = sorted(wire.call(request, 12).topics[0].partitions, key=lambda each: each.partition_index)
    return [Partition(each.leader_id, len(each.isr_nodes)) for each in partitions]


def until_described(addresses: list[str], topic: str, partitions: int, in_sync: int) -> list[Partition]:
    """Wait until all brokers know a leader and enough in-sync replicas of each partition."""
    end = time.monotonic() + 120
    for address in addresses:
        while True:
            try:
                with Wire(address) as wire:
                    found = described(wire, topic)
            except OSError:
                found = []
            if len(found) == partitions and all(each.leader > 0 and each.in_sync == in_sync for each in found):
                break
            assert time.monotonic() < end, f"{address}: {topic} has {found}"
            time.sleep(0.02)
    return found


# -- three brokers beside Apache Kafka ---------------------------------------------------------------------------------


def without_leader(brokers: Brokers, kills: int) -> Iterator[float]:
    """Kill the leader several times. Yield the seconds until a Produce with acks=all succeeds on another broker."""
    addresses = brokers.bootstrap.split(",")
    records = batch([b"x"])
    for _ in range(kills):
        leader = until_described(addresses, "killed", 1, REPLICAS)[0].leader
        others = [Wire(address) for node, address in enumerate(addresses, 1) if node != leader]
        begun = time.perf_counter()
        brokers.kill(leader)
        while all(wire.produce("killed", records).error_code for wire in others):
            time.sleep(0.002)
        yield time.perf_counter() - begun
        for wire in others:
            wire.close()
        brokers.start()


def one_round(
    make: Callable[[Path], Brokers], warm: int, kills: int, folder: Path, scale: float
) -> Iterator[tuple[str, float]]:
    """Run one round with new brokers. Yield (row, value)."""
    brokers = make(folder)
    try:
        begun = time.perf_counter()
        brokers.start()
        while not all(map(answers, brokers.bootstrap.split(","))):
            time.sleep(0.005)
        yield "ready after start", time.perf_counter() - begun
        yield "largest resident memory when ready", max(map(resident, brokers.pids()))
        yield from workloads(brokers, folder / "tools", warm, scale)
        yield "largest resident memory after the load", max(map(resident, brokers.pids()))
        create(brokers, folder, "killed", 1)
        gaps = list(without_leader(brokers, kills))
        yield "without a leader after kill -9, median", statistics.median(gaps)
        yield "without a leader after kill -9, worst", max(gaps)
    finally:
        brokers.stop()


def workloads(brokers: Brokers, folder: Path, warm: int, scale: float) -> Iterator[tuple[str, float]]:
    """Warm the brokers up, and run all workloads. Yield (row, value)."""
    small, large = int(2_000_000 * scale), int(600_000 * scale)
    batches = tool_properties(batch_size=65536, linger_ms=5)
    for number in range(warm):
        produce_with_tool(brokers, folder, f"warm-{number}", small, 100, *batches)
    before = cpu(brokers)
    yield BATCHES, produce_with_tool(brokers, folder, "batches", small, 100, *batches)[0]
    yield f"CPU: {BATCHES}", (cpu(brokers) - before) / small * 1e6
    before = cpu(brokers)
    big = tool_properties(batch_size=131072, linger_ms=5)
    yield LARGE, produce_with_tool(brokers, folder, "large", large, 1024, *big)[1]
    yield f"CPU: {LARGE}", (cpu(brokers) - before) / large * 1e6
    create(brokers, folder, "latency", 1)
    mean, highest = latency(brokers, folder, int(10_000 * scale))
    yield "end-to-end latency, mean", mean
    yield "end-to-end latency, 99th percentile", highest


def create(brokers: Brokers, folder: Path, topic: str, partitions: int) -> None:
    """Create a topic with the brokers' default replication factor."""
    options = ("--create", "--topic", topic, "--partitions", str(partitions))
    run_tool(folder, "TopicCommand", "--bootstrap-server", brokers.bootstrap, *options)
    until_described(brokers.bootstrap.split(","), topic, partitions, REPLICAS)


def cpu(brokers: Brokers) -> float:
    """Return the CPU time of all brokers so far."""
    return sum(map(cpu_seconds, brokers.pids()))


# -- several numbers of brokers ----------------------------------------------------------------------------------------


class Load(NamedTuple):
    """Batches that the load processes send."""

    name: str
    records: int
    size: int


LOADS = (Load("64 KiB batches of 100 B", 600, 100), Load("120 KiB batches of 1 KiB", 120, 1024))


def send(address: str, topic: str, partitions: list[int], load_name: str, seconds: float) -> list[float]:
    """Send batches to the partitions that one broker leads. Return batches in the warm-up, batches, seconds."""
    work = next(each for each in LOADS if each.name == load_name)
    records = bytes(batch([bytes(work.size)] * work.records))
    connections = [Connection(address, encoded_produce(topic, index, records), check_produce) for index in partitions]
    warm = load(connections, seconds / 4)
    begun = time.monotonic()
    return [warm + len(connections), load(connections, seconds), time.monotonic() - begun]


def scaled(count: int, folder: Path, seconds: float) -> Iterator[tuple[str, float]]:
    """Run the loads on `count` brokers. Yield (row, value)."""
    brokers = OncelogBrokers(folder, count)
    try:
        brokers.start()
        addresses = brokers.bootstrap.split(",")
        for number, work in enumerate(LOADS):
            topic = f"scaled-{number}"
            with Admin(brokers.bootstrap) as admin:
                configs = {"retention.bytes": str(256 << 20), "segment.bytes": str(64 << 20)}
                admin.create_topics(topic, CONNECTIONS * count, replication_factor=1, configs=configs)
            leaders = until_described(addresses, topic, CONNECTIONS * count, 1)
            before = cpu(brokers)
            sent = []
            for node, address in enumerate(addresses, 1):
                led = [index for index, each in enumerate(leaders) if each.leader == node]
                arguments = json.dumps([address, topic, led, work.name, seconds])
                command = [sys.executable, __file__, "--send", arguments]
                sent.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            found = [json.loads(process.communicate(timeout=10 * seconds + 60)[0]) for process in sent]
            rate = sum(batches / taken for _, batches, taken in found) * work.records
            total = sum(warm + batches for warm, batches, _ in found) * work.records
            yield f"{work.name}, rec/s", rate
            yield f"{work.name}, CPU s/M rec", (cpu(brokers) - before) / total * 1e6
    finally:
        brokers.stop()


def compare_counts(console: Console, counts: list[int], rounds: int, seconds: float) -> Figures:
    """Measure each number of brokers, and print a table. Return all figures by row and number of brokers."""
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for count in counts if number % 2 == 0 else reversed(counts):
            with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as folder:
                for row, value in scaled(count, Path(folder), seconds):
                    values[row][count].append(value)
                    console.print(f"round {number + 1}/{rounds} {count} brokers: {row}: {value:,.2f}")
    table = Table("work", *(f"{count} broker{'s' * (count > 1)}" for count in counts), "last / first")
    for row, by_count in values.items():
        medians = [statistics.median(by_count[count]) for count in counts]
        digits = 2 if "CPU" in row else 0
        table.add_row(row, *(f"{each:,.{digits}f}" for each in medians), f"{medians[-1] / medians[0]:.2f} x")
    console.print(table)
    return values


# ----------------------------------------------------------------------------------------------------------------------


def numbers(text: str) -> list[int]:
    """Read the option --brokers."""
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or (len(found) == 1 and found != [REPLICAS]):
        raise argparse.ArgumentTypeError(f"must be {REPLICAS}, or a list such as 1,2,4; not {text!r}")
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure several brokers.")
    parser.add_argument("--brokers", type=numbers, required=True, metavar="N", help="3, or a list such as 1,2,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=3, help="passes of the first workload before it is measured")
    parser.add_argument("--kills", type=int, default=5, help="kills of a leader in each round")
    parser.add_argument("--quick", action="store_true", help="one round with a fifth of the load, one pass, two kills")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    rounds, scale = (1, 0.2) if arguments.quick else (arguments.rounds, 1.0)
    warm, kills = (1, 2) if arguments.quick else (arguments.warm, arguments.kills)
    console = Console(width=120)
    console.print(f"{platform.platform()}, Python {platform.python_version()}")
    if len(arguments.brokers) > 1:
        save(console, compare_counts(console, arguments.brokers, rounds, 10 * scale), arguments.json)
        return
    console.print(f"Apache Kafka from {kafka_libs()}")
    rivals = {
        "Apache Kafka": partial(one_round, partial(KafkaNodes, heap="1g", options=()), warm, kills),
        "oncelog": partial(one_round, OncelogBrokers, warm, kills),
    }
    save(console, compared(console, ROWS, rivals, rounds, scale), arguments.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--send"]:
        print(json.dumps(send(*json.loads(sys.argv[2]))))
    else:
        main()
