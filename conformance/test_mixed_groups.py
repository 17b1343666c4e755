"""Members of three clients in one group keep their partitions through rebalances (KIP-429).

The clients are ours, librdkafka and Java's. Each of them leads the group in turn.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from oncelog import Admin, Consumer, Producer
from support.apache_kafka import SHORT_LIVED, java
from support.processes import ManagedProcess, wait_until
from support.rebalances import QUICK
from support.servers import Server

PARTITIONS = 6
STRATEGY = "cooperative-sticky"
HEARTBEAT_MS = 100
SESSION_MS = 45_000
"""On a busy machine, no member may expire: the records that it read since its last commit would be repeated."""

Poll = Callable[[], list[tuple[int, int]]]
"""Return (partition, offset) of the records since the last call, and keep the member alive."""


@contextmanager
def ours(server: Server, group: str, folder: Path) -> Iterator[Poll]:
    options = QUICK | {"heartbeat_interval_ms": HEARTBEAT_MS, "session_timeout_ms": SESSION_MS}
    with Consumer(
        server.bootstrap, group_id=group, enable_auto_commit=True, partition_assignment_strategy=STRATEGY, **options
    ) as consumer:
        consumer.subscribe([group])
        yield lambda: [(record.partition, record.offset) for record in consumer.poll(0.05)]


@contextmanager
def librdkafka(server: Server, group: str, folder: Path) -> Iterator[Poll]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "partition.assignment.strategy": STRATEGY,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
        }
    )
    consumer.subscribe([group])

    def poll() -> list[tuple[int, int]]:
        found = []
        for message in consumer.consume(500, 0.05):
            assert message.error() is None, message.error()
            found.append((message.partition(), message.offset()))
        return found

    try:
        yield poll
    finally:
        consumer.close()


@contextmanager
def javas(server: Server, group: str, folder: Path) -> Iterator[Poll]:
    properties = {
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "session.timeout.ms": SESSION_MS,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "true",
    }
    command = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", server.bootstrap, "--topic", group, "--group", group,
        *itertools.chain.from_iterable(("--command-property", f"{key}={value}") for key, value in properties.items()),
        "--formatter-property", "print.partition=true", "--formatter-property", "print.offset=true",
        options=SHORT_LIVED,
    )  # fmt: skip
    process = ManagedProcess(command, folder, f"console-consumer-{group}")
    seen = 0

    def poll() -> list[tuple[int, int]]:
        nonlocal seen
        lines = [line.split("\t") for line in process.lines()][seen:]
        seen += len(lines)
        return [(int(line[0].removeprefix("Partition:")), int(line[1].removeprefix("Offset:"))) for line in lines]

    try:
        yield poll
    finally:
        process.stop()


MEMBERS = {"ours": ours, "librdkafka": librdkafka, "java": javas}


@pytest.mark.parametrize("first", MEMBERS)
def test_all_members_keep_their_partitions(server: Server, name: str, tmp_path: Path, first: str) -> None:
    """The first member leads. Every record is returned once, although members join and leave."""
    with Admin(server.bootstrap) as admin, Producer(server.bootstrap) as producer:
        admin.create_topics(name, PARTITIONS)
        came: Counter[tuple[int, int]] = Counter()
        sent = 0

        def turn(polls: list[Poll]) -> list[set[int]]:
            """Send one record to each partition, and return the partitions that each member has read."""
            nonlocal sent
            for partition in range(PARTITIONS):
                producer.send(name, b"x", partition=partition)
            producer.flush()
            sent += PARTITIONS
            gave: list[set[int]] = [set() for _ in polls]

            def all_came() -> bool:
                for places, poll in zip(gave, polls, strict=True):
                    found = poll()
                    came.update(found)
                    places.update(partition for partition, _ in found)
                return len(came) == sent

            wait_until(all_came, "all records have arrived")
            return gave

        def until_even(polls: list[Poll]) -> list[set[int]]:
            """Wait until each member has its share, and send nothing before.

            A Java member commits when a rebalance starts and returns records that it fetches meanwhile. It then loses
            partitions without another commit (ConsumerCoordinator).
            """
            share = PARTITIONS // len(polls)

            def even() -> bool:
                for poll in polls:
                    came.update(poll())
                group = admin.describe_group(name)
                shares = [len(member.assignment or ()) for member in group.members]
                return group.state == "Stable" and shares == [share] * len(polls)

            wait_until(even, "each member has its share")
            gave = turn(polls)
            assert {len(places) for places in gave} == {share}
            return gave

        others = [member for member in MEMBERS if member != first]
        with MEMBERS[first](server, name, tmp_path) as one:
            turn([one])
            with MEMBERS[others[0]](server, name, tmp_path) as two:
                before = until_even([one, two])
                with MEMBERS[others[1]](server, name, tmp_path) as three:
                    after = until_even([one, two, three])
                    assert all(now < then for now, then in zip(after, before, strict=False)), "members keep partitions"
                    members = admin.describe_group(name).members
                    assert len(members) == 3
                until_even([one, two])
            turn([one])
        assert set(came.values()) == {1}, "no duplicates: records are committed before their partition is revoked"
