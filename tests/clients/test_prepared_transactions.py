"""Transactions that survive their process: prepared here, ended by another process, in both protocol versions."""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from oncelog import Admin, PreparedTransaction, Producer, Transaction, aio, errors
from oncelog.client.producer.prepared import TransactionOutcome
from support.servers import Server
from support.transactions import describe, producers, set_transaction_version, until_state
from support.wire import Wire, until

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}


@pytest.fixture
def wire(module_server: Server) -> Iterator[Wire]:
    """Connect to a server whose transaction.version the tests change. It is reset to 2 after each test."""
    with Wire(module_server.bootstrap) as connection:
        yield connection
        set_transaction_version(connection, 2)


@pytest.fixture(params=[2, 1], ids=["tv2", "tv1"])
def bootstrap(request: pytest.FixtureRequest, wire: Wire, module_server: Server) -> str:
    """Return the address of a server with one of the two protocol versions."""
    set_transaction_version(wire, request.param)
    return module_server.bootstrap


def prepared(bootstrap: str, topic: str, *values: bytes, **options: object) -> PreparedTransaction:
    """Prepare a transaction with these records in partitions 0, 1, ..., and drop its producer."""
    with Producer(bootstrap, transactional_id=topic, **options) as producer:
        producer.begin_transaction()
        for partition, value in enumerate(values):
            producer.send(topic, value, partition=partition)
        return producer.prepare()


def check_committed(wire: Wire, topic_id: UUID, *expected: bytes, partition: int = 0) -> None:
    """Check the records of a read_committed consumer, once the markers are written."""
    until(
        lambda: wire.values(topic_id, partition, committed=True),
        lambda found: found == [*expected],
        "the record is visible",
    )


# -- any process, any time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_prepared_transaction_is_completed_after_its_process_dies(
    wire: Wire, bootstrap: str, name: str, decision: str
) -> None:
    topic_id = wire.create_topic(name, 2)
    script = f"""
        import os, signal
        from oncelog import Producer
        producer = Producer({bootstrap!r}, transactional_id={name!r})
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send({name!r}, b"%d" % partition, partition=partition)
        producer.send_offsets("group-" + {name!r}, {{({name!r}, 0): 7}})
        print(producer.prepare().to_text(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    handle = PreparedTransaction.from_text(done.stdout)
    assert handle.spans == ((name, 0, 0, 0), (name, 1, 0, 0))
    with Admin(bootstrap) as admin, Transaction.resume(done.stdout, bootstrap) as transaction:
        assert transaction.outcome() is TransactionOutcome.OPEN
        assert wire.values(topic_id, committed=True) == []
        for _ in range(2):
            getattr(transaction, decision)(30)
        check_committed(wire, topic_id, *([b"0"] if decision == "commit" else []))
        check_committed(wire, topic_id, *([b"1"] if decision == "commit" else []), partition=1)
        offsets = {(name, 0): 7} if decision == "commit" else {}
        until(lambda: admin.committed(f"group-{name}"), lambda found: found == offsets, "the offsets are visible, too")
        assert transaction.outcome() is (
            TransactionOutcome.COMMITTED if decision == "commit" else TransactionOutcome.ABORTED
        )
        if decision == "commit":
            with pytest.raises(errors.TransactionCommittedError, match="is already committed"):
                transaction.abort()
        else:
            with pytest.raises(errors.TransactionAbortedError, match="is already aborted"):
                transaction.commit()


def test_prepared_transaction_survives_a_broker_restart(own_server: Server, name: str) -> None:
    with Wire(own_server.bootstrap) as wire:
        topic_id = wire.create_topic(name, 2)
    handle = prepared(own_server.bootstrap, name, b"0", b"1")
    own_server.kill()
    own_server.wait_ready()
    with Transaction.resume(handle, own_server.bootstrap) as transaction:
        transaction.commit(60)
        assert transaction.outcome() is TransactionOutcome.COMMITTED
    with Wire(own_server.bootstrap) as wire:
        wire.leaders_serve(name, 2)
        check_committed(wire, topic_id, b"0")
        check_committed(wire, topic_id, b"1", partition=1)


def test_prepared_transaction_with_offsets_only(wire: Wire, bootstrap: str, name: str) -> None:
    wire.create_topic(name)
    with Producer(bootstrap, transactional_id=name) as producer, producer.transaction() as within:
        within.send_offsets(name, {(name, 0): 5})
        handle = within.prepare()
    with Admin(bootstrap) as admin, Transaction.resume(handle, bootstrap) as transaction:
        assert transaction.outcome() is TransactionOutcome.OPEN
        transaction.commit()
        until(lambda: admin.committed(name), lambda found: found == {(name, 0): 5}, "the offset is visible")
        assert transaction.outcome() is TransactionOutcome.COMMITTED
        with pytest.raises(errors.TransactionCommittedError):
            transaction.abort()
        Producer(bootstrap, transactional_id=name).close()
        with pytest.raises(errors.OutcomeUnknownError, match="knows only later transactions"):
            transaction.commit(1)


def test_prepared_transaction_with_asyncio(wire: Wire, bootstrap: str, name: str) -> None:
    topic_id = wire.create_topic(name)

    async def body() -> None:
        async with aio.Producer(bootstrap, transactional_id=name) as producer, producer.transaction() as within:
            await within.send(name, b"x")
            handle = await within.prepare()
        async with aio.Transaction.resume(str(handle), bootstrap) as transaction:
            assert await transaction.outcome() is aio.TransactionOutcome.OPEN
            await transaction.commit()
            with pytest.raises(errors.TransactionCommittedError):
                await transaction.abort()

    asyncio.run(body())
    check_committed(wire, topic_id, b"x")


# -- another process was faster ---------------------------------------------------------------------------------------


def test_resume_after_the_transaction_timed_out(wire: Wire, bootstrap: str, name: str) -> None:
    topic_id = wire.create_topic(name)
    handle = prepared(bootstrap, name, b"late", transaction_timeout_ms=2_000)
    until_state(wire, name, "CompleteAbort")
    with Transaction.resume(handle, bootstrap) as transaction:
        with pytest.raises(errors.TransactionAbortedError, match=r"timeout \(2000 ms\)"):
            transaction.commit()
        transaction.abort()
        assert transaction.outcome() is TransactionOutcome.ABORTED
    check_committed(wire, topic_id)


def test_resume_after_a_newer_producer_took_over(wire: Wire, bootstrap: str, name: str) -> None:
    topic_id = wire.create_topic(name)
    handle = prepared(bootstrap, name, b"old")
    with (
        Producer(bootstrap, transactional_id=name) as newer,
        Transaction.resume(handle, bootstrap) as transaction,
    ):
        with newer.transaction() as within:
            within.send(name, b"new")
        with pytest.raises(errors.TransactionAbortedError, match="a newer producer"):
            transaction.commit()
        transaction.abort()
        assert transaction.outcome() is TransactionOutcome.ABORTED
    check_committed(wire, topic_id, b"new")


def test_resume_after_several_newer_producers_finds_the_outcome_in_the_log(
    wire: Wire, bootstrap: str, name: str
) -> None:
    """The coordinator knows only the newer transaction."""
    topic_id = wire.create_topic(name)
    handle = prepared(bootstrap, name, b"old")
    with Transaction.resume(handle, bootstrap) as transaction:
        transaction.commit()
        for value in (b"aborted", b"newer"):
            newer = Producer(bootstrap, transactional_id=name)
            newer.begin_transaction()
            newer.send(name, value).result(30)
            (newer.abort_transaction if value == b"aborted" else newer.commit_transaction)()
            newer.close()
        transaction.commit()
        with pytest.raises(errors.TransactionCommittedError):
            transaction.abort()
        check_committed(wire, topic_id, b"old", b"newer")
        with Admin(bootstrap) as admin:
            admin.delete_records({(name, 0): 3})
        assert transaction.outcome() is TransactionOutcome.UNKNOWN
        with pytest.raises(errors.OutcomeUnknownError, match="no marker of it"):
            transaction.commit()


def test_concurrent_holders_agree_on_the_outcome(wire: Wire, bootstrap: str, name: str) -> None:
    topic_id = wire.create_topic(name)
    handle = prepared(bootstrap, name, b"x")
    outcomes: list[str] = []

    def decide(what: str) -> None:
        with Transaction.resume(handle, bootstrap) as transaction:
            try:
                getattr(transaction, what)(30)
                outcomes.append(what)
            except errors.TransactionEndedError as error:
                outcomes.append("commit" if isinstance(error, errors.TransactionCommittedError) else "abort")

    threads = [threading.Thread(target=decide, args=(what,)) for what in ("commit", "abort") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 6
    assert len(set(outcomes)) == 1, outcomes
    check_committed(wire, topic_id, *([b"x"] if outcomes[0] == "commit" else []))


# -- the producer that prepared it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", ["commit", "abort"])
def test_late_holder_does_not_end_the_next_transaction(wire: Wire, bootstrap: str, name: str, late: str) -> None:
    """In the old protocol, EndTxn of the previous transaction ends the next one if both have the same epoch."""
    topic_id = wire.create_topic(name)
    with Producer(bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"first")
        handle = producer.prepare()
        with pytest.raises(errors.UsageError, match="is prepared"):
            producer.send(name, b"more")
        with pytest.raises(errors.UsageError, match=r"call commit_transaction\(\) or abort_transaction\(\)"):
            producer.begin_transaction()
        assert producer.prepare() == handle
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(name, b"second").result(30)
        with Transaction.resume(handle, bootstrap) as transaction:
            if late == "commit":
                transaction.commit()
            else:
                with pytest.raises(errors.TransactionCommittedError):
                    transaction.abort()
        assert describe(wire, name).transaction_state == "Ongoing"
        producer.commit_transaction()
    check_committed(wire, topic_id, b"first", b"second")


def ended_by_another(producer: Producer, bootstrap: str, topic: str, *, commit: bool) -> None:
    producer.begin_transaction()
    producer.send(topic, b"x")
    with Transaction.resume(producer.prepare(), bootstrap) as transaction:
        if commit:
            transaction.commit()
        else:
            transaction.abort()


def test_abort_reports_that_another_holder_committed(wire: Wire, bootstrap: str, name: str) -> None:
    topic_id = wire.create_topic(name)
    with Producer(bootstrap, transactional_id=name) as producer:
        ended_by_another(producer, bootstrap, name, commit=True)
        with pytest.raises(errors.TransactionCommittedError):
            producer.abort_transaction()
    check_committed(wire, topic_id, b"x")


def test_commit_reports_that_another_holder_may_have_aborted(wire: Wire, bootstrap: str, name: str) -> None:
    topic_id = wire.create_topic(name)
    with Producer(bootstrap, transactional_id=name) as producer:
        ended_by_another(producer, bootstrap, name, commit=False)
        with pytest.raises(errors.AbortableError, match="another process with its handle"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction() as after:
            after.send(name, b"y")
    check_committed(wire, topic_id, b"y")


def test_transaction_with_failed_records_cannot_be_prepared(wire: Wire, bootstrap: str, name: str) -> None:
    wire.create_topic(name, max_message_bytes="500")
    with Producer(bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"x" * 1_000)
        with pytest.raises(errors.AbortableError) as caught:
            producer.prepare()
        assert isinstance(caught.value.__cause__, errors.RecordTooLargeError)
        producer.abort_transaction()
        producer.begin_transaction()
        handle = producer.prepare()
        assert handle.empty
        with Transaction.resume(handle, bootstrap) as transaction:
            transaction.commit()
            transaction.abort()
        producer.abort_transaction()
        with producer.transaction() as within:
            within.send(name, b"y")
    until(
        lambda: [each.current_txn_start_offset for each in producers(wire, name).values()],
        lambda found: found == [-1],
        "no transaction is open",
    )


# -- the handle -------------------------------------------------------------------------------------------------------

HANDLE = PreparedTransaction("id", 7, 3, 2, 60_000, (("t", 0, 5, 9),), ("g",))


def from_text(old: str, new: str) -> PreparedTransaction:
    """Return the handle's text with one part replaced."""
    return PreparedTransaction.from_text(HANDLE.to_text().replace(old, new))


def test_handle_can_be_serialized() -> None:
    assert PreparedTransaction.from_text(HANDLE.to_text()) == HANDLE
    assert pickle.loads(pickle.dumps(HANDLE)) == HANDLE
    assert "\n" not in HANDLE.to_text()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: PreparedTransaction.from_text("{}"),
            "is not the text of a prepared transaction; pass what its to_text",
        ),
        (
            lambda: PreparedTransaction.from_text("17"),
            "is not the text of a prepared transaction; pass what its to_text",
        ),
        (lambda: from_text('"format":1', '"format":2,"new":0'), "upgrade"),
        (lambda: from_text('"producer_id":7', '"producer_id":"7"'), "int"),
        (lambda: Transaction.resume(HANDLE), "bootstrap_servers is missing"),
        (lambda: Transaction.resume(HANDLE, "a:1", transactional_id="other"), "the handle belongs to 'id'"),
    ],
)
def test_invalid_handles_are_rejected(make: Callable[[], object], words: str) -> None:
    with pytest.raises(errors.OncelogError, match=words):
        make()
