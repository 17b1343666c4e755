"""Two-phase commit with oncelog's producer (KIP-939): a transaction waits for a decision, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from oncelog import Admin, PreparedTransaction, Producer, Transaction, aio, errors
from oncelog.client.producer.prepared import TransactionOutcome
from oncelog.client.producer.resumed import AsyncResumedTransaction
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS
from support.servers import OncelogCluster, Server
from support.transactions import (
    TWO_PHASE_SETTINGS,
    describe,
    pass_timeout,
    set_transaction_version,
    until_state,
)
from support.wire import Wire, until

SETTINGS = TWO_PHASE_SETTINGS
TWO_PHASE = {"transaction_two_phase_commit_enable": True}
KEEP_ONLY = {"keep_prepared_transaction": True}
KEEP = {**TWO_PHASE, **KEEP_ONLY}


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    return module_wire


@pytest.fixture
def bootstrap(module_server: Server) -> str:
    return module_server.bootstrap


@pytest.fixture
def topic_id(wire: Wire, name: str) -> UUID:
    return wire.create_topic(name)


def prepared(bootstrap: str, name: str, value: bytes, **options: object) -> str:
    """Prepare a transaction, and drop its producer. Return the text of the handle."""
    with Producer(bootstrap, transactional_id=name, **{**TWO_PHASE, **options}) as producer:
        producer.begin_transaction()
        producer.send(name, value)
        return producer.prepare().to_text()


def check_committed(wire: Wire, topic_id: UUID, *expected: bytes) -> None:
    until(lambda: wire.values(topic_id, committed=True), lambda found: found == [*expected], "the records are visible")


@pytest.mark.parametrize("decided", [True, False])
def test_successor_completes_the_transaction_as_decided(
    wire: Wire, bootstrap: str, name: str, topic_id: UUID, decided: bool
) -> None:
    handle = prepared(bootstrap, name, b"x")
    with Producer(bootstrap, transactional_id=name, **KEEP) as producer:
        assert producer.kept_transaction
        assert producer.complete_transaction(handle if decided else None) is decided
        assert not producer.kept_transaction
        with producer.transaction() as transaction:
            transaction.send(name, b"next")
    check_committed(wire, topic_id, *([b"x"] if decided else []), b"next")


def test_handle_of_an_older_transaction_does_not_commit_the_kept_one(
    wire: Wire, bootstrap: str, name: str, topic_id: UUID
) -> None:
    """The database holds the handle of the last decision: the process died before the next one."""
    old = prepared(bootstrap, name, b"decided")
    with Producer(bootstrap, transactional_id=name, **KEEP) as producer:
        assert producer.complete_transaction(old)
    prepared(bootstrap, name, b"undecided")
    with Producer(bootstrap, transactional_id=name, **KEEP) as producer:
        assert not producer.complete_transaction(old)
    check_committed(wire, topic_id, b"decided")
    until_state(wire, name, "CompleteAbort")


def test_handle_of_an_empty_transaction_does_not_commit_the_next_one(
    wire: Wire, bootstrap: str, name: str, topic_id: UUID
) -> None:
    """They have the same epoch, because nothing is sent to end an empty transaction."""
    with Producer(bootstrap, transactional_id=name, **TWO_PHASE) as producer:
        producer.begin_transaction()
        empty = producer.prepare()
        assert producer.complete_transaction(empty)
        producer.begin_transaction()
        producer.send(name, b"undecided")
        producer.prepare()
    with Producer(bootstrap, transactional_id=name, **KEEP) as producer:
        assert producer.kept_transaction
        assert not producer.complete_transaction(empty)
    check_committed(wire, topic_id)
    until_state(wire, name, "CompleteAbort")


def test_decided_transaction_that_was_aborted_is_reported(
    wire: Wire, bootstrap: str, name: str, topic_id: UUID
) -> None:
    """Nothing is open any more, which usually means that it was committed."""
    handle = prepared(bootstrap, name, b"x")
    Producer(bootstrap, transactional_id=name).close()
    until_state(wire, name, "CompleteAbort", "Empty")
    with Producer(bootstrap, transactional_id=name, **KEEP) as producer:
        with pytest.raises(errors.TransactionAbortedError, match="is not committed"):
            producer.complete_transaction(handle)
        assert not producer.complete_transaction(None)
    check_committed(wire, topic_id)


def test_handle_of_another_cluster_is_refused(own: OncelogCluster, bootstrap: str, name: str, topic_id: UUID) -> None:
    """Producer ids begin at 0 in each cluster, so that the transactions may look the same."""
    with Wire(own.bootstrap) as wire:
        wire.create_topic(name)
    elsewhere = prepared(own.bootstrap, name, b"x")
    prepared(bootstrap, name, b"x")
    with (
        Producer(bootstrap, transactional_id=name, **KEEP) as producer,
        pytest.raises(errors.UsageError, match="the handle belongs to cluster"),
    ):
        producer.complete_transaction(elsewhere)
    with Transaction.resume(elsewhere, bootstrap) as transaction:
        for act in (transaction.commit, transaction.abort, transaction.outcome):
            with pytest.raises(errors.UsageError, match=r"belongs to cluster .*; check bootstrap_servers"):
                act()


def test_call_is_repeated_after_a_timeout(own: OncelogCluster, name: str) -> None:
    with Wire(own.bootstrap) as wire:
        topic_id = wire.create_topic(name)
    with Producer(own.bootstrap, transactional_id=name, **TWO_PHASE) as producer:
        producer.begin_transaction()
        producer.send(name, b"x")
        handle = producer.prepare()
        os.kill(own.broker_pid(), signal.SIGSTOP)
        try:
            with pytest.raises(errors.TimedOutError):
                producer.complete_transaction(handle, timeout=0.2)
        finally:
            os.kill(own.broker_pid(), signal.SIGCONT)
        with Wire(own.bootstrap) as wire:
            until_state(wire, name, "CompleteCommit")
            assert producer.complete_transaction(handle)
            check_committed(wire, topic_id, b"x")
    with pytest.raises(errors.ClientClosedError):
        producer.complete_transaction(handle)


def test_successors_that_die_change_nothing(wire: Wire, bootstrap: str, name: str, topic_id: UUID) -> None:
    handle = prepared(bootstrap, name, b"x")
    for _ in range(3):
        with Producer(bootstrap, transactional_id=name, **KEEP) as producer:
            assert producer.kept_transaction
    with Producer(bootstrap, transactional_id=name, **KEEP) as producer:
        assert producer.complete_transaction(handle)
        assert producer.complete_transaction(handle), "nothing is open any more, but the log shows the end"
    check_committed(wire, topic_id, b"x")


def test_nothing_is_kept_of_a_new_transactional_id(bootstrap: str, name: str) -> None:
    with Producer(bootstrap, transactional_id=name, **KEEP) as producer:
        assert not producer.kept_transaction
        assert not producer.complete_transaction(None)


def test_producer_completes_its_own_prepared_transaction(wire: Wire, bootstrap: str, name: str, topic_id: UUID) -> None:
    with Producer(bootstrap, transactional_id=name, **TWO_PHASE) as producer:
        for value, decided in ((b"a", True), (b"b", False), (b"c", True)):
            producer.begin_transaction()
            producer.send(name, value)
            with pytest.raises(errors.UsageError, match="call prepare"):
                producer.complete_transaction(None)
            handle = producer.prepare()
            assert handle.timeout_ms == NO_TIMEOUT_MS
            assert producer.complete_transaction(handle if decided else None) is decided
    check_committed(wire, topic_id, b"a", b"c")


def test_kept_transaction_can_only_be_ended(bootstrap: str, name: str, topic_id: UUID) -> None:
    prepared(bootstrap, name, b"x")
    other = PreparedTransaction("other", 1, 1, 2, 1)
    with Producer(bootstrap, transactional_id=name, **KEEP) as producer:
        for act, words in (
            (lambda: producer.send(name, b"more"), "it is prepared"),
            (lambda: producer.begin_transaction(), "is prepared"),
            (lambda: producer.prepare(), "end it with complete_transaction"),
            (lambda: producer.complete_transaction(other), "belongs to transactional id 'other'"),
            (lambda: producer.complete_transaction("nonsense"), "not the text of a prepared transaction"),
            (lambda: producer.complete_transaction(b"{}"), "or its text, not bytes"),
        ):
            with pytest.raises(errors.UsageError, match=words):
                act()
        assert producer.kept_transaction
        producer.abort_transaction()
        assert not producer.kept_transaction


def test_handle_ends_a_transaction_that_a_producer_has_kept(
    wire: Wire, bootstrap: str, name: str, topic_id: UUID
) -> None:
    handle = prepared(bootstrap, name, b"x")
    keeper = Producer(bootstrap, transactional_id=name, **KEEP)
    with Transaction.resume(handle, bootstrap) as transaction:
        assert transaction.outcome() is TransactionOutcome.OPEN
        transaction.commit()
        transaction.commit()
        with pytest.raises(errors.TransactionCommittedError):
            transaction.abort()
    check_committed(wire, topic_id, b"x")
    with pytest.raises(errors.FencedError):
        keeper.complete_transaction(None)
    keeper.close()


@pytest.mark.parametrize("keepers", [0, 3])
def test_handle_ends_its_transaction_although_producers_keep_it_meanwhile(
    own: OncelogCluster, name: str, monkeypatch: pytest.MonkeyPatch, keepers: int
) -> None:
    """Each producer keeps it between two requests of resume(). The broker allows only short timeouts."""
    with Wire(own.bootstrap) as wire:
        topic_id = wire.create_topic(name)
    handle = prepared(own.bootstrap, name, b"x")
    Producer(own.bootstrap, transactional_id=name, transaction_timeout_ms=1000, **KEEP_ONLY).close()
    keep = AsyncResumedTransaction._keep
    left = iter(range(keepers))

    async def kept_again(self: AsyncResumedTransaction, until: float) -> tuple[int, int] | None:
        found = await keep(self, until)
        if next(left, None) is not None:
            options = {"transactional_id": name, "transaction_timeout_ms": 1000, **KEEP_ONLY}
            async with aio.Producer(own.bootstrap, **options):
                pass
        return found

    monkeypatch.setattr(AsyncResumedTransaction, "_keep", kept_again)
    with Transaction.resume(handle, own.bootstrap) as transaction:
        transaction.commit()
    with Wire(own.bootstrap) as wire:
        check_committed(wire, topic_id, b"x")


def test_usual_producer_aborts_what_waits(wire: Wire, bootstrap: str, name: str, topic_id: UUID) -> None:
    handle = prepared(bootstrap, name, b"x")
    Producer(bootstrap, transactional_id=name).close()
    with (
        Transaction.resume(handle, bootstrap) as transaction,
        pytest.raises(errors.TransactionAbortedError, match="by a newer producer"),
    ):
        transaction.commit()
    check_committed(wire, topic_id)


def test_administrator_terminates_what_waits(wire: Wire, bootstrap: str, name: str, topic_id: UUID) -> None:
    handle = prepared(bootstrap, name, b"x")
    keeper = Producer(bootstrap, transactional_id=name, **KEEP)
    command = [Path(sys.executable).with_name("oncelog"), "txn", "terminate", name, "-b", bootstrap]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "it waits without a timeout for a decision (two-phase commit)" in asked.stderr
    with Admin(bootstrap) as admin:
        admin.fence_producers(name)
    with pytest.raises(errors.FencedError):
        keeper.complete_transaction(handle)
    keeper.close()
    until_state(wire, name, "CompleteAbort", "Empty")
    check_committed(wire, topic_id)


@pytest.mark.parametrize("died", ["before", "after"])
def test_killed_process_and_broker(own: OncelogCluster, name: str, died: str) -> None:
    """A process is killed after prepare(), the broker is killed, and a transaction with a timeout is aborted."""
    with Wire(own.bootstrap) as wire:
        topic_id = wire.create_topic(name)
    script = f"""
        import os, signal
        from oncelog import Producer
        producer = Producer({own.bootstrap!r}, transactional_id={name!r}, transaction_two_phase_commit_enable=True)
        producer.begin_transaction()
        producer.send({name!r}, b"x")
        handle = producer.prepare().to_text()
        if {died == "after"}:
            print(handle, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    own.kill()
    own.wait_ready()
    with Wire(own.bootstrap) as wire:
        pass_timeout(wire, name)
        assert describe(wire, name).transaction_state == "Ongoing"
        with Producer(own.bootstrap, transactional_id=name, **KEEP) as producer:
            assert producer.complete_transaction(done.stdout or None) is (died == "after")
        check_committed(wire, topic_id, *([b"x"] if died == "after" else []))


def test_asyncio(wire: Wire, bootstrap: str, name: str, topic_id: UUID) -> None:
    handle = prepared(bootstrap, name, b"x")

    async def body() -> None:
        async with aio.Producer(bootstrap, transactional_id=name, **KEEP) as producer:
            assert producer.kept_transaction
            assert await producer.complete_transaction(handle)

    asyncio.run(body())
    check_committed(wire, topic_id, b"x")


# -- brokers that refuse ----------------------------------------------------------------------------------------------


@pytest.fixture
def own(new_cluster: Callable[..., OncelogCluster]) -> OncelogCluster:
    return new_cluster(settings={**SETTINGS, "transaction.max.timeout.ms": "30000"})


def test_broker_without_the_setting_says_what_is_needed(own_server: Server, name: str) -> None:
    with pytest.raises(errors.AuthorizationError, match=r"transaction\.two\.phase\.commit\.enable = true"):
        Producer(own_server.bootstrap, transactional_id=name, **TWO_PHASE)
    with Wire(own_server.bootstrap) as wire:
        set_transaction_version(wire, 1)
    with pytest.raises(errors.KafkaError) as refused:
        Producer(own_server.bootstrap, transactional_id=name, keep_prepared_transaction=True)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
