"""The programs of articles on exactly-once, with Kafka's Java client 2.0.0, which they describe, and 4.3.1.

`docs/documents` explains the articles: two on the idempotent producer have one program, and one on exactly-once
semantics has two. `conformance/java` has programs of our own that make the same calls in the same order, with the same
settings. None of the articles has a program in Python. Each test expects the same of Apache Kafka 4.3.1 and of oncelog,
also if the two clients differ.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from oncelog import Admin, Consumer, Producer
from oncelog.protocol.apis import ApiKey
from oncelog.testing import FaultProxy
from support.command_line import Tool
from support.java_programs import CLIENTS, NEW, OLD, JavaPrograms, compile_sources
from support.servers import Server

GROUP = "group1"
"""The group in the article."""

OUTPUTS = ("idempotent", "read", "read-fenced", "read-cold")
INPUTS = {"in": 4, "in-fenced": 4, "cold": 2}
"""Topics of one partition, and how many records each has before the programs start."""
PAIRS = ("sends", "too-large", "fenced")
"""Topics of two partitions."""

REJECTED = ("max.in.flight.requests.per.connection=6", "acks=1", "retries=0")

END_OF_FENCED = {
    OLD: ["caught ProducerFencedException"],
    NEW: ["caught InvalidProducerEpochException", "thrown ProducerFencedException"],
}


def read(server: Server, partitions: Sequence[tuple[str, int]], *, committed: bool = True) -> list[bytes | None]:
    """Return all values, by partition and offset."""
    level = "read_committed" if committed else "read_uncommitted"
    found = []
    with Consumer(server.bootstrap, auto_offset_reset="earliest", isolation_level=level) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(*partition) < end for partition, end in ends.items()):
            found += consumer.poll(0.1)  # Markers also advance the position, but end no poll.
    return [record.value for record in sorted(found, key=lambda record: (record.partition, record.offset))]


class Ran(NamedTuple):
    """What `Samples` has done with one client on one server."""

    server: Server
    version: str
    prefix: str
    events: dict[str, list[str]]
    """Program -> the lines that it printed."""

    def topic(self, program: str) -> str:
        """Return the topic of a program, which is also its transactional id."""
        return f"{self.prefix}-{program}"

    def values(self, program: str, *, committed: bool = True) -> list[bytes | None]:
        """Return the values in a program's topic."""
        partitions = [(self.topic(program), partition) for partition in range(2 if program in PAIRS else 1)]
        return read(self.server, partitions, committed=committed)

    def committed_offset(self, topic: str) -> int | None:
        """Return the offset that the group has committed, if there is one."""
        with Admin(self.server.bootstrap) as admin:
            found = admin.committed(GROUP).get((self.topic(topic), 0))
        return int(found) if found else None


@pytest.fixture(scope="module", params=CLIENTS)
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JavaPrograms:
    """Compile the programs with one client."""
    return JavaPrograms(request.param, tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def ran(server: Server, programs: JavaPrograms) -> Ran:
    """Run all programs on one server, in one process of Java."""
    prefix = f"t-{uuid.uuid4().hex[:12]}"
    with Admin(server.bootstrap) as admin, Producer(server.bootstrap) as producer:
        admin.create_topics([f"{prefix}-{name}" for name in (*OUTPUTS, *INPUTS)], 1)
        admin.create_topics([f"{prefix}-{name}" for name in PAIRS], 2)
        admin.create_topics(f"{prefix}-five", 5)
        for name, count in INPUTS.items():
            for number in range(count):
                producer.send(f"{prefix}-{name}", b"%d" % number)
    events: dict[str, list[str]] = {}
    for line in programs.run("Samples", server.bootstrap, prefix):
        if line.startswith("  "):
            events[next(reversed(events))].append(line.strip())
        else:
            events[line] = []
    return Ran(server, programs.version, prefix, events)


def test_each_idempotent_producer_has_an_id_and_starts_at_sequence_0(ran: Ran) -> None:
    """The program runs twice. It closes its producer, which the articles do not."""
    assert ran.events["idempotent"] == []
    assert ran.values("idempotent") == [b"test", b"test"]
    tool = Tool(ran.server.bootstrap)
    command = ("txn", "producers", ran.topic("idempotent"), "-p", "0")
    first, second = tool.json(*command)
    assert first["producer_id"] != second["producer_id"]
    assert [(each["producer_epoch"], each["last_sequence"]) for each in (first, second)] == [(0, 0), (0, 0)]
    if ran.server.name == "oncelog":  # Apache Kafka shows no batches.
        shown = tool.json(*command, "--batches")
        columns = ("first_sequence", "last_sequence", "first_offset", "last_offset")
        batches = [[batch[column] for column in columns] for each in shown["producers"] for batch in each["batches"]]
        assert batches == [[0, 0, 0, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("setting", REJECTED)
def test_idempotence_rejects_setting(ran: Ran, setting: str) -> None:
    """The articles ask for at most five requests in flight, `acks=all`, and retries."""
    assert ran.events[setting] == ["rejected ConfigException"]


def test_lost_answer_and_retry_store_one_record(server: Server, programs: JavaPrograms, name: str) -> None:
    """The client sends the record again after a lost response, and the broker recognises the duplicate."""
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name, 1)
    with FaultProxy(server.bootstrap, "lose-answer Produce:1") as wire:
        programs.run("IdempotentSend", wire.bootstrap_servers, name, "close")
        assert [request.api for request in wire.seen].count(ApiKey.PRODUCE) == 2
    assert read(server, [(name, 0)]) == [b"test"]
    if server.name == "oncelog":
        assert Tool(server.bootstrap).json("txn", "producers", name, "-p", "0", "--batches")["duplicate_batches"] == 1


def test_sample_without_close_loses_its_record(server: Server, programs: JavaPrograms, name: str) -> None:
    """The articles neither flush nor close the producer, so the program ends before its record is sent.

    A producer id that arrives late makes sure of that. Without the proxy, some runs of client 2.0.0 win the race.
    """
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name, 1)
    with FaultProxy(server.bootstrap, "delay InitProducerId for=5s") as wire:
        assert programs.run("IdempotentSend", wire.bootstrap_servers, name) == []
        assert ApiKey.PRODUCE not in [request.api for request in wire.seen]
    assert read(server, [(name, 0)]) == []


def test_lines_without_keys_go_to_five_partitions(ran: Ran) -> None:
    """Without keys, the partitions take turns. Since version 2.4, a batch has one partition (KIP-480)."""
    partitions = [(ran.topic("five"), partition) for partition in range(5)]
    with Admin(ran.server.bootstrap) as admin:
        ends = sorted(admin.end_offsets(partitions).values())
    assert ends == {OLD: [12, 12, 12, 12, 12], NEW: [0, 0, 0, 0, 60]}[ran.version]
    lines = read(ran.server, partitions)
    assert sorted(map(str, lines)) == sorted(str(b"hello lagou %d" % number) for number in range(1, 61))


def test_transaction_commits_two_partitions(ran: Ran) -> None:
    """The first program on transactions sends two records."""
    assert ran.events["sends"] == ["committed"]
    assert ran.values("sends") == [b"one", b"two"]
    with Admin(ran.server.bootstrap) as admin:
        ends = admin.end_offsets([(ran.topic("sends"), partition) for partition in range(2)])
        assert list(ends.values()) == [2, 2], "each partition has its record and a marker"
        assert admin.describe_transaction(ran.topic("sends")).state == "CompleteCommit"


def test_first_sample_commits_without_a_record_that_is_too_large(ran: Ran) -> None:
    """The first program on transactions ignores the futures, so client 2.0.0 commits without the second record.

    Later clients report the error at the commit, and the program aborts.
    """
    done, values = {OLD: (["committed"], [b"one"]), NEW: (["caught KafkaException", "aborted"], [])}[ran.version]
    assert ran.events["too-large"] == done
    assert ran.values("too-large", committed=False) == values


def test_successor_fences_the_first_sample(ran: Ran) -> None:
    """Another producer with the same transactional id starts before the first record is sent.

    With client 4.3.1, the first error is not the ProducerFencedException that the program expects. It tries to abort,
    which throws that exception, and does not close its producer.
    """
    assert ran.events["fenced"] == END_OF_FENCED[ran.version]
    assert ran.values("fenced", committed=False) == []
    with Admin(ran.server.bootstrap) as admin:
        transaction = admin.describe_transaction(ran.topic("fenced"))
    assert (transaction.state, transaction.producer_epoch) == ("Empty", 1)


def test_second_sample_commits_output_and_offset(ran: Ran) -> None:
    """The second program on transactions reads the last two of four records."""
    assert ran.events["read"] == ["polled 2", "committed"]
    assert ran.committed_offset("in") == 4
    with Consumer(ran.server.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([(ran.topic("read"), 0)])
        assert [(record.key, record.value) for record in consumer.poll(30)] == [(b"Key", b"Value")]


def test_second_sample_cannot_abort_after_it_was_fenced(ran: Ran) -> None:
    """Another producer with the same transactional id starts after the poll.

    The program catches ProducerFencedException and aborts, which throws in both clients: a fenced producer can only
    be closed. The program closes both clients, and has committed nothing. It need not seek back, because the next
    consumer of the group starts at the committed offset.
    """
    thrown = {OLD: "KafkaException", NEW: "ProducerFencedException"}[ran.version]
    assert ran.events["read-fenced"] == ["polled 2", "caught ProducerFencedException", f"thrown {thrown}"]
    assert ran.values("read-fenced", committed=False) == []
    assert ran.committed_offset("in-fenced") is None, "the next consumer of the group reads the records again"


def test_second_sample_writes_its_record_whatever_it_polled(ran: Ran) -> None:
    """The consumer has not joined its group when the program starts.

    Client 2.0.0 waits until it has joined. The `poll` of today returns after 100 ms, perhaps without records. The
    program writes its record in any case, because it does not derive its output from its input.
    """
    polled, ended = ran.events["read-cold"]
    assert ended == "committed"
    assert polled in ("polled 0", "polled 2")  # With client 2.0.0, a slow machine may need more than 100 ms to fetch.
    assert ran.committed_offset("cold") == (2 if polled == "polled 2" else None)
    assert ran.values("read-cold") == [b"Value"]


def test_client_of_today_has_two_methods_of_the_samples_no_longer(tmp_path: Path) -> None:
    """Version 4.0 removed `poll(long)` and the group id of `sendOffsetsToTransaction`."""
    errors = compile_sources(NEW, tmp_path / "as-in-2018")
    assert [error.partition(": error: ")[2] for error in errors] == [
        "incompatible types: int cannot be converted to Duration",
        "incompatible types: String cannot be converted to ConsumerGroupMetadata",
    ]
    assert all(error.startswith("ReadProcessWrite.java:") for error in errors)


def test_sample_with_a_missing_parenthesis_does_not_compile(tmp_path: Path) -> None:
    """One of the articles lacks a parenthesis in its call of `send`."""
    line = 'new ProducerRecord(topic, "test"));'
    (error,) = compile_sources(OLD, tmp_path / "java", {line: line.replace("))", ")")})
    assert error.startswith("IdempotentSend.java:")
    assert "')'" in error
