"""Measure what a broker can do alone: oncelog and a warm Apache Kafka, with clients that cost next to nothing.

scripts/bench --capacity [--protocol P] [--authorizer] [--seconds N] [--warm N] [--rounds N] [--json FILE]
scripts/bench --capacity --against PROGRAM [--protocol P] [--authorizer] [--seconds N] [--rounds N]
scripts/bench --capacity --ways [--seconds N] [--rounds N]

Kafka's own clients need more CPU than the broker, so a benchmark with them measures the clients. Here, requests are
encoded beforehand. Three connections with five requests in flight each send the same bytes repeatedly, and only count
the responses. The broker runs on the first core, the load on the second. Each server is warmed up first. The table
shows requests per second and the broker's CPU time per request.

With `--against`, compare this oncelog with another one, such as `.cache/wheel/bin/oncelog` of a clone of an earlier
commit. Both brokers run on the first core and get the load in turn, for a short time each. What slows the machine for
some seconds slows both, so the median of the ratios shows differences of some percent.

With `--protocol`, the load connects with SSL, SASL_PLAINTEXT or SASL_SSL (PLAIN). With `--authorizer`, the brokers
check permissions, and one ACL with a prefix allows the load to use its topics. With `--ways`, brokers of this oncelog
that differ in these two run at the same time and get the load in turn. The table has their ratios to a broker without
TLS, logins and an authorizer.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import ssl
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from growth import cpu_seconds, fetch
from rich.console import Console
from rich.table import Table
from ways import OPEN, PROTOCOLS, TOPICS, Target, Way, connected, framed, running

from oncelog.protocol.headers import decode_response_header
from oncelog.protocol.messages.fetch import FetchRequest, FetchResponse
from oncelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from support.wire import batch

CONNECTIONS = 3
IN_FLIGHT = 5
PRODUCE, FETCH = 12, 16
"""Versions of the requests, which both servers know. Produce names its topic up to version 12."""
MB = 1 << 20
KB = 1024
ORDER = ("apache-kafka", "oncelog")


@dataclass(frozen=True)
class Row:
    """One kind of request."""

    name: str
    records: int
    size: int
    fetched: int = 0
    """Bytes that a Fetch requests. 0 means a Produce."""


ROWS = (
    Row("Produce, one record of 100 B", 1, 100),
    Row("Produce, a batch of 16 KiB", 150, 100),
    Row("Produce, a batch of 64 KiB", 600, 100),
    Row("Produce, 120 records of 1 KiB", 120, KB),
    Row("Fetch of 1 MiB", 960, KB, fetched=MB),
)


def produce(topic: str, partition: int, records: bytes) -> bytes:
    """Return a Produce of one batch with acks=all."""
    data = [PartitionProduceData(index=partition, records=records)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return framed(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), PRODUCE)


class Connection:
    """Send one request repeatedly, and count the responses."""

    def __init__(self, to: str | Callable[[], socket.socket], request: bytes, check: Callable[[bytes], None]) -> None:
        """`to` is an address, or returns a connection after its login."""
        self.socket = connected(to, OPEN) if isinstance(to, str) else to()
        self._request = request
        self._buffer = bytearray(4 * MB)
        self._held = 0
        self._skip = 0
        """Bytes of a response that have not arrived yet."""
        self.socket.sendall(request)
        check(self._first())
        self.socket.sendall(request * IN_FLIGHT)

    def _first(self) -> bytes:
        """Return the first response, for a check."""
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += self.socket.recv(MB)
        return data[4:]

    def serve(self) -> int:
        """Read the received bytes, send a request for each complete response, and return the number of responses."""
        complete = self._read()
        while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():  # which a selector does not report
            complete += self._read()
        if complete:
            self.socket.sendall(self._request * complete)
        return complete

    def _read(self) -> int:
        """Read once, and return the number of responses that are complete now."""
        view = memoryview(self._buffer)
        got = self.socket.recv_into(view[self._held :])
        if not got:
            raise ConnectionError("the broker closed the connection")
        end, at, complete = self._held + got, 0, 0
        self._held = 0
        while at < end:
            if self._skip:
                step = min(self._skip, end - at)
                self._skip -= step
                at += step
                complete += not self._skip
            elif end - at < 4:
                view[: end - at] = bytes(view[at:end])
                self._held = end - at
                break
            else:
                self._skip = int.from_bytes(view[at : at + 4], "big")
                at += 4
        return complete


def load(connections: list[Connection], seconds: float) -> int:
    """Keep the broker busy for this long, and return the number of responses."""
    count = 0
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while time.monotonic() < end:
            for key, _ in selector.select(1):
                count += key.data.serve()
    return count


def check_produce(response: bytes) -> None:
    """Raise AssertionError unless a Produce has succeeded."""
    _, at = decode_response_header(memoryview(response), ProduceRequest.API_KEY, PRODUCE)
    partition = ProduceResponse.decode(memoryview(response)[at:], PRODUCE).responses[0].partition_responses[0]
    assert not partition.error_code, partition


def check_fetch(response: bytes) -> None:
    """Raise AssertionError unless a Fetch has returned most of the requested bytes."""
    _, at = decode_response_header(memoryview(response), FetchRequest.API_KEY, FETCH)
    partition = FetchResponse.decode(memoryview(response)[at:], FETCH).responses[0].partitions[0]
    assert not partition.error_code, partition
    assert len(partition.records or b"") > MB * 0.8, len(partition.records or b"")


def requests(target: Target, row: Row, number: int) -> tuple[list[bytes], Callable[[bytes], None]]:
    """Create a topic, and return a request for each connection with the check of its response."""
    topic = f"{TOPICS}{number}"
    records = bytes(batch([bytes(row.size)] * row.records))
    with target.administrator() as wire:
        topic_id = wire.create_topic(topic, CONNECTIONS, retention_bytes=str(256 * MB), segment_bytes=str(64 * MB))
    produces = [produce(topic, index, records) for index in range(CONNECTIONS)]
    if not row.fetched:
        return produces, check_produce
    with target.administrator() as wire:
        for index in range(CONNECTIONS):
            assert not wire.produce(topic, records, partition=index).error_code
            assert not wire.produce(topic, records, partition=index).error_code
    fetches = [fetch(topic_id, [(index, 0)], max_bytes=row.fetched) for index in range(CONNECTIONS)]
    return [framed(each, FETCH) for each in fetches], check_fetch


def measured(
    target: Target, frames: list[bytes], check: Callable[[bytes], None], warm: float, seconds: float
) -> tuple[float, float]:
    """Return requests per second, and microseconds of the broker's CPU per request, after `warm` seconds of load."""
    connections = [Connection(target.open, frame, check) for frame in frames]
    try:
        load(connections, warm)
        before, started = cpu_seconds(target.pid), time.monotonic()
        count = load(connections, seconds)
        taken = time.monotonic() - started
        return count / taken, (cpu_seconds(target.pid) - before) / count * 1e6
    finally:
        for connection in connections:
            connection.socket.close()


def figures(target: Target, warm: float, seconds: float) -> Iterator[tuple[str, float, float]]:
    """Yield (row, requests per second, microseconds of CPU per request)."""
    for number, row in enumerate(ROWS):
        frames, check = requests(target, row, number)
        yield row.name, *measured(target, frames, check, warm if number == 0 else warm / 4, seconds)


def show(console: Console, values: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    """Print the medians of the rounds."""
    columns = ("Kafka, req/s", "oncelog, req/s", "ratio", "Kafka, us of CPU", "oncelog, us of CPU", "ratio")
    table = Table("request", *columns)
    for row in ROWS:
        kafka, ours = (
            tuple(statistics.median(column) for column in zip(*values[name][row.name], strict=True)) for name in ORDER
        )
        table.add_row(
            row.name,
            *(f"{kafka[0]:,.0f}", f"{ours[0]:,.0f}", f"{ours[0] / kafka[0]:.2f} x"),
            *(f"{kafka[1]:,.1f}", f"{ours[1]:,.1f}", f"{ours[1] / kafka[1]:.2f} x"),
        )
    console.print(table)


def in_turn(sides: list[Target], seconds: float, rounds: int) -> Iterator[tuple[str, list[list[float]]]]:
    """Yield (row, microseconds of CPU per request of each side in each round). The first two rounds only warm up."""
    for number, row in enumerate(ROWS):
        loads = [requests(target, row, number) for target in sides]
        found: list[list[float]] = []
        for turn in range(rounds + 2):
            taken = [0.0] * len(sides)
            for side in sorted(range(len(sides)), reverse=turn % 2 == 1):
                frames, check = loads[side]
                _, taken[side] = measured(sides[side], frames, check, seconds / 5, seconds)
            found.append(taken)
        yield row.name, found[2:]


def compare(program: Path, way: Way, seconds: float, rounds: int, console: Console) -> None:
    """Print the CPU time per request of another oncelog and of this one."""
    table = Table("request", "theirs, us of CPU", "ours, us of CPU", "median ratio", "half of the ratios")
    with (
        tempfile.TemporaryDirectory(prefix="oncelog-capacity-") as theirs,
        tempfile.TemporaryDirectory(prefix="oncelog-capacity-") as ours,
        running("oncelog", Path(theirs), program, way) as other,
        running("oncelog", Path(ours), way=way) as this,
    ):
        for name, found in in_turn([other, this], seconds, rounds):
            before, after = (statistics.median(column) for column in zip(*found, strict=True))
            low, ratio, high = statistics.quantiles([taken[1] / taken[0] for taken in found], n=4)
            table.add_row(name, f"{before:,.1f}", f"{after:,.1f}", f"{ratio:.3f} x", f"{low:.3f} to {high:.3f}")
            console.print(f"{name}: {ratio:.3f} x")
    console.print(table)


WAYS = (OPEN, OPEN._replace(authorizer=True), Way("SSL"), Way("SASL_SSL"), Way("SASL_SSL", authorizer=True))
"""The ways that `--ways` compares with the first one."""


def compare_ways(seconds: float, rounds: int, console: Console) -> None:
    """Print the CPU time per request of brokers that differ in TLS, logins and the authorizer."""
    table = Table("request", f"{WAYS[0]}, us of CPU", *(f"{way}: ratio" for way in WAYS[1:]))
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncelog-capacity-"))) for _ in WAYS]
        sides = [
            stack.enter_context(running("oncelog", folder, way=way)) for way, folder in zip(WAYS, folders, strict=True)
        ]
        for name, found in in_turn(sides, seconds, rounds):
            ratios = [statistics.median(taken[side] / taken[0] for taken in found) for side in range(1, len(WAYS))]
            first = statistics.median(taken[0] for taken in found)
            table.add_row(name, f"{first:,.1f}", *(f"{ratio:.3f} x" for ratio in ratios))
            console.print(f"{name}: " + ", ".join(f"{way} {r:.3f} x" for way, r in zip(WAYS[1:], ratios, strict=True)))
    console.print(table)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure both brokers alone.")
    parser.add_argument("--against", type=Path, metavar="PROGRAM", help="compare with this `oncelog` instead of Kafka")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="PLAINTEXT", help="the listener's protocol")
    parser.add_argument("--authorizer", action="store_true", help="let the brokers check permissions")
    parser.add_argument("--ways", action="store_true", help="compare protocols and the authorizer, on oncelog only")
    parser.add_argument(
        "--seconds", type=float, help="seconds for each row, after the warm-up (5; with --against and --ways 0.5)"
    )
    parser.add_argument("--warm", type=float, default=12.0, help="seconds of load before the first row")
    parser.add_argument("--rounds", type=int, help="repetitions (3; with --against and --ways 30)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    console = Console(width=130)
    way = Way(arguments.protocol, arguments.authorizer)
    if arguments.against is not None:
        compare(arguments.against, way, arguments.seconds or 0.5, arguments.rounds or 30, console)
        return
    if arguments.ways:
        compare_ways(arguments.seconds or 0.5, arguments.rounds or 30, console)
        return
    console.print(f"Listener: {way}")
    values: dict[str, dict[str, list[tuple[float, float]]]] = {name: defaultdict(list) for name in ORDER}
    for number in range(arguments.rounds or 3):
        for name in ORDER if number % 2 == 0 else reversed(ORDER):
            with (
                tempfile.TemporaryDirectory(prefix="oncelog-capacity-") as folder,
                running(name, Path(folder), way=way) as target,
            ):
                for row, rate, cpu in figures(target, arguments.warm, arguments.seconds or 5.0):
                    values[name][row].append((rate, cpu))
                    console.print(f"round {number + 1} {name:>12}: {row}: {rate:,.0f} req/s, {cpu:.1f} us of CPU")
    show(console, values)
    if arguments.json:
        arguments.json.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
