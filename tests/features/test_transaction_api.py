"""T12: the producer's transaction methods, and the effect of each error. Ours against either server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog import Producer, errors
from support.servers import Server
from support.transactions import committed, describe, set_transaction_version, state, until_state
from support.wire import Wire, until

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}


@pytest.fixture
def wire(module_wire: Wire) -> Iterator[Wire]:
    yield module_wire
    set_transaction_version(module_wire, 2)


def made(server: Server, name: str, **options: object) -> Producer:
    return Producer(server.bootstrap, transactional_id=name, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_begin_commit_abort(wire: Wire, module_server: Server, name: str, level: int) -> None:
    topic_id = wire.create_topic(name)
    set_transaction_version(wire, level)
    with made(module_server, name) as producer:
        for number in range(4):
            producer.begin_transaction()
            producer.send(name, b"%d" % number)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        with producer.transaction() as transaction:
            transaction.send(name, b"with")
        until_state(wire, name, "CompleteCommit")
        epoch = describe(wire, name).producer_epoch
        # Version 2 bumps the epoch with each transaction. Before, only an error makes the client bump it.
        assert epoch == 5 if level == 2 else epoch < 5
    assert wire.values(topic_id, committed=True) == [b"0", b"2", b"with"]


def fail_inside(producer: Producer, name: str) -> None:
    with producer.transaction() as transaction:
        transaction.send(name, b"x")
        raise ZeroDivisionError


def test_failed_block_aborts(wire: Wire, module_server: Server, name: str) -> None:
    topic_id = wire.create_topic(name)
    with made(module_server, name) as producer:
        with pytest.raises(ZeroDivisionError):
            fail_inside(producer, name)
        producer.flush()
        until(lambda: state(wire, name), lambda found: found in ("Empty", "CompleteAbort"), "the transaction has ended")
        with producer.transaction() as transaction:
            transaction.send(name, b"y")
    until(
        lambda: wire.values(topic_id, committed=True),
        lambda found: found == [b"y"],
        "only committed records are visible",
    )


def test_calls_in_the_wrong_order(module_server: Server, wire: Wire, name: str) -> None:
    wire.create_topic(name)
    with made(module_server, name) as producer:
        with pytest.raises(errors.UsageError):
            producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(errors.UsageError):
            producer.begin_transaction()
        producer.abort_transaction()
        with pytest.raises(errors.UsageError):
            producer.abort_transaction()
        with pytest.raises(errors.UsageError):
            producer.send(name, b"outside")


def test_fenced_producer_raises_an_error_that_says_to_close_it(wire: Wire, module_server: Server, name: str) -> None:
    topic_id = wire.create_topic(name)
    with made(module_server, name) as old:
        old.begin_transaction()
        old.send(name, b"old")
        old.flush()
        with made(module_server, name) as new, new.transaction() as transaction:
            transaction.send(name, b"new")
        with pytest.raises(errors.FencedError):
            old.commit_transaction()
        with pytest.raises(errors.FatalError):
            old.begin_transaction()
    until(
        lambda: wire.values(topic_id, committed=True),
        lambda found: found == [b"new"],
        "only the successor's records are visible",
    )


def test_timed_out_producer_aborts_and_continues(wire: Wire, module_server: Server, name: str) -> None:
    topic_id = wire.create_topic(name)
    with made(module_server, name, transaction_timeout_ms=2_000) as producer:
        producer.begin_transaction()
        producer.send(name, b"late")
        producer.flush()
        until_state(wire, name, "CompleteAbort")
        with pytest.raises(errors.AbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction() as transaction:
            transaction.send(name, b"again")
    until(lambda: wire.values(topic_id, committed=True), lambda found: found == [b"again"], "the producer continues")


@pytest.mark.parametrize("level", [1, 2])
def test_offsets_are_committed_with_the_transaction(wire: Wire, module_server: Server, name: str, level: int) -> None:
    wire.create_topic(name)
    wire.find_coordinator(name, 0)
    set_transaction_version(wire, level)
    with made(module_server, name) as producer:
        for offset, commit in ((3, True), (9, False)):
            producer.begin_transaction()
            producer.send_offsets(name, {(name, 0): offset})
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
            found = until(lambda: committed(wire, name, name), lambda answer: not answer[1], "the record is stable")
            assert found == (3, 0)


def test_kafka_18401_commit_of_an_empty_transaction_sends_no_request(
    wire: Wire, module_server: Server, name: str
) -> None:
    wire.create_topic(name)
    with made(module_server, name) as producer:
        before = None
        for _ in range(3):
            producer.begin_transaction()
            producer.commit_transaction()
            found = describe(wire, name)
            before = before or found
            assert (found.transaction_state, found) == ("Empty", before)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_producer_works_across_a_change_of_the_transaction_version(
    wire: Wire, module_server: Server, name: str, before: int, after: int
) -> None:
    """The producer keeps its protocol until its connection is reopened. Nothing is lost either way."""
    topic_id = wire.create_topic(name)
    set_transaction_version(wire, before)
    with made(module_server, name) as producer:
        for number in range(3):
            if number == 1:
                set_transaction_version(wire, after)
            with producer.transaction() as transaction:
                transaction.send(name, b"%d" % number)
    until(
        lambda: wire.values(topic_id, committed=True),
        lambda found: found == [b"0", b"1", b"2"],
        "all records are visible",
    )
