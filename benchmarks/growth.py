"""Measure whether the cost of a request grows with the data that the broker holds.

scripts/bench --growth [--scale F] [--recover MB]

The benchmark measures the broker's CPU time per request (user and system) instead of the wall clock, so that other work
on the machine hardly matters. It compares a small world with a large one. The large world has, times F: 1,000
partitions with records, 500 open connections, 10,000 transactional ids, 10,000 groups with offsets, and 100,000
producers in one partition. The small world has ten of each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from uuid import UUID

from rich.console import Console
from rich.table import Table

from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.schema import Message
from support.servers import OncelogCluster
from support.wire import Session, Wire, batch, retried

FLAT = 1.5
"""A request may cost this many times as much in the large world. The processor's caches alone explain part of that."""
PIPELINE = 20
"""Number of requests in flight, so that the broker seldom sleeps between two requests."""
SMALL = 10
TOPIC_PARTITIONS = 100
ROUND_S = 5
ROUNDS = 2
HOUSEKEEPING = dict.fromkeys(
    (
        "log.flush.offset.checkpoint.interval.ms",
        "log.retention.check.interval.ms",
        "producer.id.expiration.check.interval.ms",
    ),
    str(1000 * ROUND_S),
)
"""The broker's periodic tasks run more often than every 1, 5 and 10 minutes."""
MB = 1 << 20


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process so far, in nanosecond resolution (`/proc/PID/stat` has 10 ms)."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def pipelined(wire: Wire, requests: Iterable[Message], version: int) -> list[Message]:
    """Return the responses to many requests of one version, with several of them in flight at any time."""
    answers, waiting = [], []
    for request in requests:
        wire.send(request, version)
        waiting.append(request)
        if len(waiting) == PIPELINE:
            answers += [wire.receive(each, version) for each in waiting]
            waiting.clear()
    return answers + [wire.receive(each, version) for each in waiting]


def produce(topic_id: UUID, partition: int, who: Session | None = None, sequence: int = 0, size: int = 100) -> Message:
    """Return a Produce (v13) of one record."""
    data = PartitionProduceData(index=partition, records=bytes(batch([bytes(size)], who, sequence)))
    topics = [TopicProduceData(topic_id=topic_id, partition_data=[data])]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)


def fetch(
    topic_id: UUID, partitions: Iterable[tuple[int, int]], session: int = 0, epoch: int = -1, *, max_bytes: int = MB
) -> FetchRequest:
    """Return a Fetch (v16) that does not wait. Each place is (partition, offset)."""
    wanted = [FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=MB) for index, at in partitions]
    topics = [FetchTopic(topic_id=topic_id, partitions=wanted)] if wanted else []
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, session_id=session, session_epoch=epoch, topics=topics
    )


def commit(group: str) -> Message:
    """Return an OffsetCommit (v8) of a group without members."""
    offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="one", partitions=[offset])],
    )


class World:
    """A broker with its data."""

    def __init__(self, folder: Path, count: Callable[[int], int]) -> None:
        """Fill the broker. `count(large)` returns the number of items for a number in the large world."""
        self.server = OncelogCluster(folder, settings=HOUSEKEEPING)
        self.pid = self.server.broker_pid()
        self.wire = Wire(self.server.bootstrap)
        self.one = self.wire.create_topic("one", SMALL)
        self.topics = [
            self.wire.create_topic(f"t{index}", TOPIC_PARTITIONS) for index in range(count(1000) // TOPIC_PARTITIONS)
        ]
        everywhere = (produce(topic, index) for topic in self.topics for index in range(TOPIC_PARTITIONS))
        pipelined(self.wire, everywhere, 13)
        self.others = [Wire(self.server.bootstrap) for _ in range(count(500))]
        self.producers = count(100_000)
        pipelined(self.wire, (produce(self.one, 1, Session(10**6 + n, 0)) for n in range(self.producers)), 13)
        self.groups = count(10_000)
        self.wire.find_coordinator("g0", 0)
        pipelined(self.wire, (commit(f"g{n}") for n in range(self.groups)), 8)
        self.ids = [(f"x{n}", self.wire.session(f"x{n}")) for n in range(count(10_000))]

    def close(self) -> None:
        """Stop the broker."""
        for wire in (self.wire, *self.others):
            wire.close()
        self.server.stop()

    # --- workloads: each sends `times` requests ---

    def produce(self, times: int) -> None:
        """Write to one of many partitions."""
        pipelined(self.wire, (produce(self.one, 0) for _ in range(times)), 13)

    def produce_among_producers(self, times: int) -> None:
        """Write with idempotence to a partition that holds the state of many producers."""
        who = Session(self.wire.session().producer_id, 0)
        pipelined(self.wire, (produce(self.one, 1, who, n) for n in range(times)), 13)

    def produce_beside_a_fetch(self, times: int) -> None:
        """Write while a Fetch of all partitions waits for more bytes than will arrive."""
        offsets = {topic: [(index, 1) for index in range(TOPIC_PARTITIONS)] for topic in self.topics}
        offsets[self.one] = [(0, self.wire.offset("one"))]
        topics = [part for topic, wanted in offsets.items() for part in fetch(topic, wanted).topics]
        with Wire(self.server.bootstrap) as waiting:
            waiting.send(
                FetchRequest(max_wait_ms=600_000, min_bytes=1 << 30, max_bytes=MB, session_epoch=-1, topics=topics), 16
            )
            self.produce(times)

    def fetch(self, times: int) -> None:
        """Fetch one batch, without a session."""
        pipelined(self.wire, (fetch(self.one, [(0, n)], max_bytes=1) for n in range(times)), 16)

    def incremental_fetch(self, times: int) -> None:
        """Fetch in a session with all partitions of a topic, without new records."""
        topic = self.topics[0]
        first = self.wire.call(fetch(topic, ((index, 1) for index in range(TOPIC_PARTITIONS)), epoch=0), 16)
        for epoch in range(1, times + 1):
            self.wire.call(fetch(topic, (), first.session_id, epoch), 16)
        self.wire.call(fetch(topic, (), first.session_id, -1), 16)

    def metadata(self, times: int) -> None:
        """Request the metadata of one topic."""
        pipelined(self.wire, (MetadataRequest(topics=[MetadataRequestTopic(name="one")]) for _ in range(times)), 12)

    def commit(self, times: int) -> None:
        """Commit offsets of groups."""
        pipelined(self.wire, (commit(f"g{n % self.groups}") for n in range(times)), 8)

    def transaction(self, times: int) -> None:
        """Run a transaction from AddPartitionsToTxn to EndTxn, without records."""
        for n in range(times):
            name, who = self.ids[n % len(self.ids)]
            self.wire.add_partitions(name, who, "one")
            self.wire.end(name, who)

    def rest(self, _times: int) -> None:
        """Send nothing: only the broker's periodic tasks run."""
        time.sleep(ROUNDS * ROUND_S)


ROWS: tuple[tuple[str, Callable[[World, int], None], int], ...] = (
    ("Produce to one partition", World.produce, 2000),
    ("Produce, idempotent, among remembered producers", World.produce_among_producers, 2000),
    ("Produce beside a waiting Fetch of all partitions", World.produce_beside_a_fetch, 2000),
    ("Fetch of one batch", World.fetch, 2000),
    ("Metadata of one topic", World.metadata, 2000),
    ("OffsetCommit", World.commit, 2000),
    ("transaction: AddPartitionsToTxn, EndTxn, marker", World.transaction, 500),
)


def measured(world: World, work: Callable[[World, int], None], times: int) -> float:
    """Return the microseconds of the broker's CPU per request: the least of three runs, after a warm-up."""
    work(world, times // 10)
    found = []
    for _ in range(3):
        before = cpu_seconds(world.pid)
        work(world, times)
        found.append((cpu_seconds(world.pid) - before) / times * 1e6)
    return min(found)


def figures(world: World) -> Iterator[tuple[str, float]]:
    """Yield all figures of one world as (row, number)."""
    for name, work, times in ROWS:
        yield name, measured(world, work, times)
    if world.topics:
        each = measured(world, World.incremental_fetch, 200) / TOPIC_PARTITIONS
        yield f"incremental Fetch of {TOPIC_PARTITIONS} partitions, per partition", each
    before = cpu_seconds(world.pid)
    world.rest(1)
    yield "a round of housekeeping", (cpu_seconds(world.pid) - before) / ROUNDS * 1e6


def recovery(folder: Path, size: int) -> tuple[float, float]:
    """Return (seconds, CPU seconds) until a killed broker serves a log of `size` bytes again."""
    server = OncelogCluster(folder)
    try:
        wire = Wire(server.bootstrap)
        topic = wire.create_topic("log", 1)
        for _ in range(max(1, size // MB)):
            wire.call(produce(topic, 0, size=MB - 200), 13)
        server.kill()
        started = time.perf_counter()
        server.wait_ready()
        again = Wire(server.bootstrap)
        assert not retried(lambda: again.produce("log", batch([b"x"]))).error_code
        return time.perf_counter() - started, cpu_seconds(server.broker_pid())
    finally:
        server.stop()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Compare the cost of requests in a small and in a large world.")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the large world")
    parser.add_argument("--recover", type=int, default=1024, metavar="MB", help="size of the log to recover (0: none)")
    arguments = parser.parse_args()
    console = Console(width=110)
    table = Table("the broker's CPU", f"{SMALL} of each", "large world", "ratio", "", title="microseconds per request")
    worlds: list[dict[str, float]] = []
    for count in (lambda large: SMALL, lambda large: max(SMALL, int(large * arguments.scale))):
        with tempfile.TemporaryDirectory(prefix="oncelog-growth-") as folder:
            world = World(Path(folder), count)
            try:
                worlds.append(dict(figures(world)))
            finally:
                world.close()
    small, large = worlds
    for name in large:
        if name in {row[0] for row in ROWS}:
            ratio = large[name] / small[name]
            verdict = "[green]flat[/]" if ratio <= FLAT else "[red]grows[/]"
            table.add_row(name, f"{small[name]:,.1f}", f"{large[name]:,.1f}", f"{ratio:.2f} x", verdict)
        else:
            table.add_row(name, "", f"{large[name]:,.1f}", "", "")
    console.print(table)
    for size in (arguments.recover // 10, arguments.recover) if arguments.recover else ():
        with tempfile.TemporaryDirectory(prefix="oncelog-growth-") as folder:
            seconds, cpu = recovery(Path(folder), size * MB)
            console.print(f"killed with a log of {size:,} MB: serves again after {seconds:.2f} s, {cpu:.2f} s of CPU")


if __name__ == "__main__":
    main()
