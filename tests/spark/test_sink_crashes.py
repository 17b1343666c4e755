"""The driver is killed before each operation of the protocol, and restarted."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.client.requests import broker_fanout
from oncelog.spark.commit import finish
from oncelog.spark.commit.errors import AnotherDriverError, NotDecidedError
from oncelog.spark.commit.finish import Committing
from oncelog.spark.commit.steps import Steps
from oncelog.spark.commit.task import Prepared
from oncelog.spark.writing.driver import look, settle
from oncelog.spark.writing.options import sink_options
from spark.judges import create, open_producers, values
from spark.micro_batches import Query, Starter
from spark.two_brokers import TwoBrokers
from support.history import check_once
from support.servers import Server

ROWS = 6
OPERATIONS = {"plan": 9, "task": 3, "commit": 14}
"""The largest number of operations of each program without failures."""


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as made:
        yield made


@pytest.fixture
def query(server: Server, name: str, tmp_path: Path) -> Query:
    create(server.bootstrap, name)
    return Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", ROWS)


def check(query: Query, batches: int) -> None:
    """Check every row of these batches once, no other rows, and nothing open."""
    wanted = {value for batch in range(batches) for value in query.values(batch, 1)[0]}
    check_once(wanted, values(query.bootstrap, query.topic))
    assert not open_producers(query.bootstrap, query.topic, f"{query.prefix}-commits")


@pytest.mark.parametrize("program", OPERATIONS)
def test_sink_killed_before_each_operation_and_restarted(
    query: Query, starter: Starter, program: str, tmp_path: Path
) -> None:
    until, killed = 1, []
    assert starter.run(query, until) == 0
    for number in range(OPERATIONS[program]):
        until += 1
        status = starter.run(query, until, f"{program}:{number}:{tmp_path / str(number)}")
        if status == -signal.SIGKILL:
            killed.append(number)
            assert starter.run(query, until) == 0
        check(query, until)
    print(f"{program}: killed before operations {killed}")
    assert killed == list(range(len(killed)))
    assert len(killed) >= 3


@pytest.mark.parametrize("program", OPERATIONS)
def test_sink_killed_then_settled_then_restarted(query: Query, starter: Starter, program: str, tmp_path: Path) -> None:
    """After `oncelog sink settle` nothing is open. Decided batches are fully visible, others not at all."""
    options = sink_options(query.options, streaming=True)
    until = 1
    assert starter.run(query, until) == 0
    for number in range(0, OPERATIONS[program], 2):
        until += 1
        once = tmp_path / str(number)
        if starter.run(query, until, f"{program}:{number}:{once}") == -signal.SIGKILL:
            settled = settle(options)
            assert not settled.strays
            record, left, strays = look(options)
            assert record.settled
            assert not left
            assert not strays
            check(query, record.source.batch + 1)
            assert starter.run(query, until) == 0
        check(query, until)


def test_replayed_batch_changes_nothing(query: Query) -> None:
    query.run(2)
    before = values(query.bootstrap, query.topic)
    replayed = query.batch(1, slots=3)
    assert not any(isinstance(message.message, Prepared) for message in replayed)
    assert values(query.bootstrap, query.topic) == before


def test_twin_is_neither_duplicated_nor_left_open(query: Query) -> None:
    plan = query.plan()
    first, second = query.values(0, 2)
    lost = query.task(plan, 0, 0, first, number=0, tid=0)
    messages = [query.task(plan, 0, 0, first, number=1, tid=2), query.task(plan, 0, 1, second, tid=1)]
    assert lost.message.transaction != messages[0].message.transaction
    query.commit(messages, 0)
    query.log(0)
    check(query, 1)
    query.run(3)
    check(query, 3)


def test_twin_that_begins_during_the_commit_is_not_left_open(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = query.plan()
    first, second = query.values(0, 2)
    messages = [query.task(plan, 0, 0, first, tid=0), query.task(plan, 0, 1, second, tid=1)]

    def twin(state: Committing) -> Steps[Committing]:
        yield from ()
        query.task(plan, 0, 0, first, number=1, tid=2)
        return state

    decision = finish.COMMIT.index(finish.propose_decision)
    monkeypatch.setattr(finish, "COMMIT", (*finish.COMMIT[:decision], twin, *finish.COMMIT[decision:]))
    query.commit(messages, 0)
    check(query, 1)


def test_commit_does_without_a_broker_that_has_no_part_in_the_batch(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.options["kafka.default.api.timeout.ms"] = "20000"
    plan = query.plan()
    messages = [query.task(plan, 0, slot, rows) for slot, rows in enumerate(query.values(0, 2))]
    monkeypatch.setattr(broker_fanout, "UNANSWERED_WAIT_MS", 500)
    with monkeypatch.context() as patch, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        TwoBrokers(patch, port=unused.getsockname()[1])
        query.commit(messages, 0)
    query.log(0)
    check(query, 1)
    assert settle(sink_options(query.options, streaming=True)).left == ()


def test_failed_task_is_retried(query: Query) -> None:
    plan = query.plan()
    first, second = query.values(0, 2)

    def breaking() -> Iterator[object]:
        yield from ()
        raise RuntimeError("the source went away")

    with pytest.raises(RuntimeError, match="went away"):
        query.attempt(plan, 0, 0, breaking(), number=0, tid=0)
    messages = [query.task(plan, 0, 0, first, number=1, tid=2), query.task(plan, 0, 1, second, tid=1)]
    query.commit(messages, 0)
    check(query, 1)


def test_fenced_driver_commits_nothing(query: Query) -> None:
    plan = query.plan()
    messages = [query.task(plan, 0, slot, rows) for slot, rows in enumerate(query.values(0, 2))]
    query.batch(0, slots=3)
    with pytest.raises((AnotherDriverError, NotDecidedError)):
        query.commit(messages, 0)
    with pytest.raises(AnotherDriverError):
        query.task(plan, 0, 0, ["late"], number=3, tid=9)
    query.log(0)
    check(query, 1)


def test_empty_batch_writes_a_record(query: Query) -> None:
    query.rows = 0
    query.run(3)
    record, left, _ = look(sink_options(query.options, streaming=True))
    assert (record.source.batch, record.rows, record.settled) == (2, 0, True)
    assert not left
