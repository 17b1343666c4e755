"""Timeouts, torn batches and the command line: the limits of the protocol, which are reported."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from oncelog import Admin
from oncelog.cli.sink import sink as command
from oncelog.client.blocking import BlockingCluster
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.messages import produce as pr
from oncelog.spark.cluster import partitions
from oncelog.spark.cluster.brokers import Brokers, run
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import (
    AnotherDriverError,
    MisuseError,
    NotDecidedError,
    NotVerifiedError,
    SinkError,
    TornBatchError,
)
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import STREAM, Owner, Record, Source, Span, TaskTransaction
from oncelog.spark.commit.steps import write_record
from oncelog.spark.writing import driver
from oncelog.spark.writing.driver import settle, undo_decision
from oncelog.spark.writing.options import sink_options
from spark.judges import create, open_producers, values
from spark.micro_batches import Query, Starter
from spark.test_sink_crashes import check
from support.history import check_once
from support.processes import wait_until
from support.servers import Server

TIMEOUT_MS = 9_000
"""A driver has a third of it for its decision, and tasks have the rest. This is enough for a slow machine."""
AFTER_C2 = 7
"""The operation of a commit after the decision becomes visible: EndTxn of the tasks."""


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as made:
        yield made


@pytest.fixture
def query(server: Server, name: str, tmp_path: Path) -> Query:
    create(server.bootstrap, name)
    checkpoint = tmp_path / "checkpoint"
    options = {"kafka.transaction.timeout.ms": str(TIMEOUT_MS)}
    return Query(server.bootstrap, name, f"sink-{name}", checkpoint, 6, **options)


def tear(query: Query, starter: Starter) -> None:
    """Kill a driver after the decision, and restart nothing before the timeout."""
    query.run(1)
    assert starter.run(query, 2, f"commit:{AFTER_C2}") == -signal.SIGKILL
    # Apache Kafka checks for expired transactions only every ten seconds.
    wait_until(lambda: not open_producers(query.bootstrap, query.topic), "the transaction times out", timeout=30)


def test_nothing_is_open_after_the_timeout(query: Query, starter: Starter) -> None:
    assert starter.run(query, 1, "commit:0") == -signal.SIGKILL
    assert open_producers(query.bootstrap, query.topic)
    listed = CliRunner().invoke(command, ["list", query.prefix, "-b", query.bootstrap]).output
    assert "committed: nothing yet" in listed
    assert "batch" not in listed
    wait_until(lambda: not open_producers(query.bootstrap, query.topic), "the transaction times out", timeout=30)
    query.run(2)
    check(query, 2)


def test_torn_batch_is_reported_and_can_be_undone(query: Query, starter: Starter) -> None:
    tear(query, starter)
    with pytest.raises(TornBatchError, match="oncelog sink abort"):
        query.run(2)
    options = sink_options(query.options, streaming=True)
    with pytest.raises(TornBatchError):
        settle(options)
    assert undo_decision(options, accept_loss=False).carried().record.source.batch == 0
    query.run(3)
    check(query, 3)


def test_topic_recreated_after_the_decision_does_not_block_later_batches(query: Query, starter: Starter) -> None:
    query.run(1)
    assert starter.run(query, 2, f"commit:{AFTER_C2}") == -signal.SIGKILL
    with Admin(query.bootstrap) as admin:
        admin.delete_topics(query.topic)
    create(query.bootstrap, query.topic)
    query.run(3)
    check_once((value for slot in query.values(2, 2) for value in slot), values(query.bootstrap, query.topic))


def test_batch_with_too_little_time_left_is_not_decided(query: Query) -> None:
    query.options["kafka.transaction.timeout.ms"] = "60000"
    plan = query.plan()
    messages = [query.task(plan, 0, slot, rows) for slot, rows in enumerate(query.values(0, 2))]
    late = SimpleNamespace(time=lambda: time.time() + 59, monotonic=time.monotonic, sleep=time.sleep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oncelog.spark.cluster.transactions.time", late)
        with pytest.raises(NotDecidedError, match="times out in"):
            query.commit(messages, 0)
    query.run(1)
    check(query, 1)


@pytest.mark.parametrize(
    ("last", "suspended", "error", "message"),
    [
        (op.DescribeProducers, False, NotDecidedError, "is no longer open"),
        (op.DescribeTransactions, False, SinkError, "has not answered EndTxn within its timeout of 2000 ms"),
        (op.DescribeTransactions, True, AnotherDriverError, "was too late"),
    ],
    ids=["after its first check", "after its last check", "after its last check, its clock stopped"],
)
def test_driver_that_sleeps_before_its_decision_decides_nothing(
    query: Query, last: type, suspended: bool, error: type[SinkError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open transactions have expired when the driver wakes up, and so has its own.

    `suspended`: the driver's clock does not count the sleep, so that only the broker can reject the decision.
    """
    query.options["kafka.transaction.timeout.ms"] = "6000"
    plan = query.plan()
    messages = [query.task(plan, 0, slot, rows) for slot, rows in enumerate(query.values(0, 2))]
    answer, seen = Brokers.answer, []

    def sleepy(self: Brokers, operation: op.Operation) -> Any:
        answered = answer(self, operation)
        seen.append(type(operation))
        if isinstance(operation, last) and (op.Produce in seen or last is op.DescribeProducers):
            monkeypatch.undo()
            wait_until(
                lambda: not open_producers(query.bootstrap, query.topic), "the transaction times out", timeout=60
            )
            if suspended:
                self.transactions._proposed.clear()
        return answered

    monkeypatch.setattr(Brokers, "answer", sleepy)
    with pytest.raises(error, match=message):
        query.commit(messages, 0)
    query.run(1)
    check(query, 1)


@pytest.mark.parametrize("batches", [0, 1])
def test_plan_rejects_a_timeout_above_the_brokers(query: Query, batches: int) -> None:
    """Before any task, and before the plan has fenced another driver."""
    option = "kafka.transaction.timeout.ms"
    query.options[option] = "60000"
    query.run(batches)
    plan = query.plan()
    query.options[option] = "900001"
    with pytest.raises(MisuseError, match=r"kafka\.transaction\.timeout\.ms=900001 is above the broker's"):
        query.plan()
    query.options[option] = "60000"
    query.commit([query.task(plan, batches, slot, rows) for slot, rows in enumerate(query.values(batches, 2))], batches)
    check(query, batches + 1)


def sink_command(query: Query, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, query.prefix, "-b", query.bootstrap, "--format", "json"])


def test_sink_list_settle_and_abort_commands(query: Query, starter: Starter) -> None:
    query.options["kafka.transaction.timeout.ms"] = "60000"
    query.run(1)
    assert starter.run(query, 2, f"commit:{AFTER_C2}") == -signal.SIGKILL
    listed = json.loads(sink_command(query, "list").output)
    assert (listed["batch"], listed["settled"], len(listed["open"])) == (1, False, 3)
    assert all(entry["decided"] for entry in listed["open"])
    refused = sink_command(query, "abort")
    assert (refused.exit_code, "this revokes the decided batch 1" in refused.output) == (2, True)
    settled = json.loads(sink_command(query, "settle").output)
    assert (settled["batch"], settled["settled"]) == (1, True)
    check(query, 2)
    refused = sink_command(query, "abort")
    assert (refused.exit_code, "is settled" in refused.output) == (2, True)
    taken = json.loads(sink_command(query, "abort", "--yes").output)
    assert taken["batch"] == 1, "settled batches are kept"
    query.run(3)
    check(query, 3)


def test_settle_and_list_say_that_nothing_is_committed(query: Query) -> None:
    query.task(query.plan(), 0, 0, ["never committed"])
    for verb in ("settle", "list"):
        shown = CliRunner().invoke(command, [verb, query.prefix, "-b", query.bootstrap]).output.splitlines()
        assert "committed: nothing yet" in shown
        assert not any(line.startswith(("query:", "batch:")) for line in shown)


class WithoutClusterAction(Brokers):
    """The broker's answer to an operator who may not write markers."""

    def answer(self, operation: op.Operation) -> Any:
        return op.RequestOutcome.DENIED if isinstance(operation, op.WriteTxnMarkers) else super().answer(operation)


def hang(cluster: BlockingCluster, owner: Owner, at: TopicPartition, value: str) -> Span:
    """Write a row in a transaction that the coordinator does not know, as after a lost marker."""
    batch = partitions.record_batch(owner, [(b"k", value.encode())], int(time.time() * 1000))
    data = pr.PartitionProduceData(index=at.partition, records=batch)
    request = pr.ProduceRequest(
        transactional_id=owner.id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[pr.TopicProduceData(name=at.topic, partition_data=[data])],
    )
    response = cluster.call_leader(*at, request, partitions.PRODUCE_OLD)
    raise_for_error(response, "Produce")
    offset = response.responses[0].partition_responses[0].base_offset
    return Span(at, offset, offset)


def test_hanging_rows_that_may_not_be_ended_are_not_undone(
    start_server: Callable[..., Server], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = start_server({"transaction.partition.verification.enable": "false"}).bootstrap
    create(bootstrap, name)
    query = Query(bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", 6)
    query.run(1)
    at = TopicPartition(name, 0)
    with BlockingCluster(bootstrap) as cluster:
        brokers, sink = Brokers(cluster), driver.sink_of(sink_options(query.options, streaming=True))
        owner: Owner = brokers.answer(op.InitProducerId(f"{query.prefix}/0/2/0.0", 60_000))
        transaction = TaskTransaction(owner, (hang(cluster, owner, at, "1-0"),))
        record = Record(Source(STREAM, query.query, 1), 2, 1, 1, False, (transaction,), (name,))
        run(write_record(sink, brokers.answer(op.InitProducerId(query.prefix, 10_000)), record), brokers)
    with monkeypatch.context() as patched:
        patched.setattr(driver, "Brokers", WithoutClusterAction)
        for arguments in (("abort", "--yes"), ("abort", "--yes", "--accept-loss"), ("settle",)):
            refused = sink_command(query, *arguments)
            assert isinstance(refused.exception, NotVerifiedError), arguments
            assert "ClusterAction" in str(refused.exception)
    listed = json.loads(sink_command(query, "list").output)
    assert (listed["batch"], listed["settled"]) == (1, False), "nothing was undone"
    assert open_producers(bootstrap, name) == [at]
    assert json.loads(sink_command(query, "abort", "--yes").output)["batch"] == 0
    assert not open_producers(bootstrap, name)
    query.run(2)
    check(query, 2)


def test_settle_error_names_no_option_that_was_not_set(
    start_server: Callable[..., Server], name: str, tmp_path: Path
) -> None:
    bootstrap = start_server({"transaction.max.timeout.ms": "8000"}).bootstrap
    create(bootstrap, name)
    query = Query(bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", 6)
    query.options["kafka.transaction.timeout.ms"] = "8000"
    query.run(1)
    refused = sink_command(query, "settle")
    assert isinstance(refused.exception, SinkError)
    assert "kafka.transaction.timeout.ms" not in str(refused.exception)
    assert "transaction.max.timeout.ms" in str(refused.exception)


def test_settle_rejects_a_prefix_without_a_sink(query: Query) -> None:
    result = sink_command(query, "settle")
    assert isinstance(result.exception, MisuseError)
    assert "no sink" in str(result.exception)


def test_two_queries_with_one_prefix(query: Query) -> None:
    query.run(1)
    query.query = "another-query"
    with pytest.raises(MisuseError, match="takeOver"):
        query.batch(0)
    query.options["takeOver"] = "true"
    query.batch(0)
    assert set(values(query.bootstrap, query.topic).values()) == {2}, "another query writes its own rows"


def test_older_or_newer_checkpoint(query: Query) -> None:
    query.run(3)
    with pytest.raises(MisuseError, match="the sink has already committed batch"):
        query.batch(1)
    with pytest.raises(MisuseError, match="adoptCheckpoint"):
        query.batch(7)
    query.options["adoptCheckpoint"] = "true"
    query.batch(7)


def test_source_that_returns_other_rows_in_a_replay(query: Query) -> None:
    query.run(1)
    query.rows = 5
    with pytest.raises(SinkError, match=r"did not return the same rows again.*acceptReplay=0 "):
        query.batch(0)
    query.options["acceptReplay"] = "1"
    with pytest.raises(SinkError, match="6 rows and is now replayed with 5"):
        query.batch(0)
    query.options["acceptReplay"] = "0"
    query.batch(0)
    query.batch(1)
    query.log(1)
    assert values(query.bootstrap, query.topic) == dict.fromkeys(
        [f"0-{row}" for row in range(6)] + [f"1-{row}" for row in range(5)], 1
    )


@pytest.mark.parametrize("acks", ["all", "ALL", "-1"])
def test_settings_that_the_sink_always_has_are_accepted(query: Query, acks: str) -> None:
    given = {"kafka.acks": acks, "kafka.enable.idempotence": "true", "kafka.retries": "2147483647"}
    query.options |= given
    query.batch(0)
    assert values(query.bootstrap, query.topic) == {f"0-{row}": 1 for row in range(6)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transactionalIdPrefix": "a/b"}, "transactionalIdPrefix"),
        ({"kafka.transaction.timeout.ms": "99999999"}, "kafka.transaction.timeout.ms"),
        ({"topic": "no-such-topic"}, "option topic"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id"),
        ({"kafka.acks": "1"}, "kafka.acks"),
        ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence"),
        ({"kafka.delivery.timeout.ms": "60000"}, "set that option"),
        ({"transactionalIdPrefixx": "x"}, "did you mean transactionalIdPrefix"),
        ({"takeOver": "maybe"}, "takeOver"),
        ({"acceptReplay": "true"}, "acceptReplay"),
        ({"kafka.compression.type": "brotli"}, "kafka.compression.type"),
        ({"kafka.max.request.size": "5"}, "kafka.max.request.size"),
        ({"kafka.transaction.timeout.ms": "9999999999"}, "kafka.transaction.timeout.ms"),
        ({"kafka.transaction.timeout.ms": "soon"}, "kafka.transaction.timeout.ms"),
        ({"topic": "a topic"}, "option topic"),
        ({"decisionTopic": "a/b"}, "option decisionTopic"),
        ({"topic": "same", "decisionTopic": "same"}, "option decisionTopic"),
        ({"txnAppId": "x", "txnVersion": "1"}, "txnAppId"),
        ({"kafka.bootstrap.servers": "nowhere"}, "kafka.bootstrap.servers"),
    ],
)
def test_misuse_names_the_option_and_writes_nothing(query: Query, options: dict[str, str], said: str) -> None:
    topic = query.options["topic"]
    query.options.update(options)
    with pytest.raises(MisuseError, match=said):
        query.plan()
    assert not values(query.bootstrap, topic)
