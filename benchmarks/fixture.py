"""Measure a suite of tests that each need a broker: with the fixture of `oncelog.testing`, and with Apache Kafka.

scripts/bench --fixture [--tests N] [--workers N,N] [--rounds N] [--only SERVER] [--json FILE]

Each test creates a topic, sends ten records in a transaction, and reads them as a member of a group. The suite runs in
one process and under pytest-xdist; each process has its own broker. The tests and the client are the same for both
brokers, so the difference is that of the brokers: their start, topics, groups and transactions. The table shows the
median of the rounds, which alternate between the brokers. After each run, no process and no temporary folder of the
fixture may be left; another run is killed with SIGKILL in the middle, and may leave nothing either.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from support.processes import children, gone, wait_until

TESTS = """
import pytest
from oncelog import Consumer, Producer


@pytest.mark.parametrize("number", range({count}))
def test_service(bootstrap_servers, topic, number):
    with Producer(bootstrap_servers, transactional_id=topic) as producer, producer.transaction() as transaction:
        for value in range(10):
            transaction.send(topic, str(value))
    options = dict(group_id=topic, isolation_level="read_committed", auto_offset_reset="earliest")
    with Consumer(bootstrap_servers, **options) as consumer:
        consumer.subscribe([topic])
        found = []
        while len(found) < 10:
            found += consumer.poll(10)
        consumer.commit()
"""

KAFKA = """
import pytest
from support.apache_kafka import ApacheKafka


@pytest.fixture(scope="session")
def bootstrap_servers(tmp_path_factory):
    kafka = ApacheKafka(
        tmp_path_factory.mktemp("kafka"), heap="1g", settings={"group.initial.rebalance.delay.ms": "0"}
    )
    yield kafka.bootstrap
    kafka.stop()
"""
"""Replaces the fixture of the plugin. Testcontainers' KafkaContainer sets the same delay."""

CONFTESTS = {"Apache Kafka": KAFKA, "oncelog": ""}


def command(workers: int) -> list[str]:
    """Return the command that runs the suite in the current folder."""
    parallel = ["-n", str(workers)] if workers else []
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", "tmp", *parallel]


def write_suite(folder: Path, server: str, count: int) -> dict[str, str]:
    """Write the suite. Return the environment in which it runs: its temporary folders are in `folder`."""
    (folder / "test_suite.py").write_text(TESTS.format(count=count))
    (folder / "conftest.py").write_text(CONFTESTS[server])
    (folder / "temporary").mkdir()
    return {**os.environ, "TMPDIR": str(folder / "temporary")}


def seconds(server: str, count: int, workers: int) -> float:
    """Run the suite to its end. Return the seconds."""
    with tempfile.TemporaryDirectory(prefix="fixture-") as name:
        folder = Path(name)
        env = write_suite(folder, server, count)
        begun = time.perf_counter()
        done = subprocess.run(command(workers), cwd=folder, env=env, capture_output=True, text=True, check=False)
        took = time.perf_counter() - begun
        assert re.search(rf"\b{count} passed", done.stdout), done.stdout[-4000:]
        if server == "oncelog":
            assert_no_folders(folder)
    return took


def check_kill(count: int, workers: int) -> float:
    """Kill a run of the suite on oncelog in the middle. Return the seconds until no process and no folder is left."""
    with tempfile.TemporaryDirectory(prefix="fixture-") as name:
        folder = Path(name)
        env = write_suite(folder, "oncelog", count)
        with subprocess.Popen(command(workers), cwd=folder, env=env, stdout=subprocess.DEVNULL) as run:
            wait_until(lambda: len(broker_folders(folder)) == max(workers, 1), "each process has a broker")
            time.sleep(1)
            below = children(run.pid)
            run.send_signal(signal.SIGKILL)
            begun = time.perf_counter()
        wait_until(lambda: all(gone(pid) for pid in below), "all processes have ended")
        took = time.perf_counter() - begun
        assert_no_folders(folder)
    return took


def broker_folders(folder: Path) -> list[Path]:
    """Return the data folders of the brokers that `oncelog.testing` has started."""
    return list((folder / "temporary").glob("oncelog-*"))


def assert_no_folders(folder: Path) -> None:
    """Raise AssertionError if a broker has left its data."""
    left = broker_folders(folder)
    assert not left, f"left: {left}"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure a suite of tests with a broker.")
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--workers", default="0,2", help="numbers of processes of pytest-xdist; 0: without it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=tuple(CONFTESTS), help="measure only this server")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    console = Console(width=110)
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    numbers = [int(each) for each in arguments.workers.split(",")]
    for number in range(arguments.rounds):
        servers = [each for each in CONFTESTS if arguments.only in (None, each)]
        for server in servers if number % 2 == 0 else reversed(servers):
            for workers in numbers:
                row = f"{arguments.tests} tests, {f'{workers} workers' if workers else 'one process'}"
                took = seconds(server, arguments.tests, workers)
                values[server][row].append(took)
                console.print(f"round {number + 1}/{arguments.rounds} {server:>12}: {row}: {took:.1f} s")
    for workers in numbers:
        took = check_kill(arguments.tests, workers)
        console.print(f"killed, {workers} workers: nothing left after {took:.1f} s")
    table = Table("suite", *values)
    for row in next(iter(values.values())):
        table.add_row(row, *(f"{statistics.median(of[row]):.1f} s" for of in values.values()))
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
