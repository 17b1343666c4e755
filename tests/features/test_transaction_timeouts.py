"""T6: transactions that last too long are aborted under a new epoch. Idle transactional ids expire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.servers import Server
from support.transactions import (
    commit_offset,
    committed,
    describe,
    end_once,
    ended,
    logged,
    markers,
    set_transaction_version,
    until_state,
    write,
    written,
)
from support.wire import Session, Wire, code, until

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
SEVERAL_STEPS_MS = 2_000
"""A timeout in which a busy machine completes several steps of a transaction."""
FENCED = code("PRODUCER_FENCED")
STALE = code("INVALID_PRODUCER_EPOCH")


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    return module_wire


def test_coordinator_aborts_and_bumps_the_epoch_once(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, 2)
    wire.find_coordinator(name, 0)
    who = wire.session(name, timeout_ms=SEVERAL_STEPS_MS)
    for partition in (0, 1):
        written(wire, name, who, name, [b"x"], partition=partition)
    assert commit_offset(wire, name, who, name, name, 5) == 0
    found = until_state(wire, name, "CompleteAbort")
    assert (found.producer_id, found.producer_epoch) == (who.producer_id, who.epoch + 1)
    for partition in (0, 1):
        assert markers(wire, topic_id, partition) == [(who.producer_id, who.epoch + 1, "ABORT")]
        assert wire.values(topic_id, partition, committed=True) == []
        assert wire.offset(name, partition=partition, committed=True) == 2
    assert committed(wire, name, name) == (-1, 0)


def test_timeout_starts_at_the_first_partition(wire: Wire, name: str) -> None:
    """The timeout starts neither at InitProducerId nor at the last record: a producer that keeps writing is aborted
    as well.
    """
    wire.create_topic(name)
    who = wire.session(name, timeout_ms=300)
    idle = wire.session(f"{name}-idle", timeout_ms=1)
    numbers = iter(range(10_000))
    last = until(
        lambda: write(wire, name, who, name, [b"x"], next(numbers)),
        lambda found: found.error_code,
        "the transaction is aborted",
    )
    assert last.error_code in (STALE, code("CONCURRENT_TRANSACTIONS"))
    assert describe(wire, f"{name}-idle").transaction_state == "Empty"
    assert describe(wire, f"{name}-idle").producer_epoch == idle.epoch


def test_kafka_19690_stalled_producer_gets_its_epoch_error_first(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name, timeout_ms=200)
    written(wire, name, who, name, [b"x"])
    until_state(wire, name, "CompleteAbort")
    for version in (11, 12):
        assert write(wire, name, who, name, [b"late"], 1, version=version).error_code == STALE
    assert wire.add_partitions(name, who, name) == [FENCED]
    assert wire.offset(name) == wire.offset(name, committed=True) == 2


def test_kafka_20785_commit_after_the_timeout_abort(wire: Wire, module_server: Server, name: str) -> None:
    """DIFFERS: Kafka 4.3.1 answers INVALID_TXN_STATE, as if the client had made a mistake. oncelog says that it was
    fenced.
    """
    wire.create_topic(name)
    who = wire.session(name, timeout_ms=200)
    written(wire, name, who, name, [b"x"])
    until_state(wire, name, "CompleteAbort")
    expected = FENCED if module_server.name == "oncelog" else code("INVALID_TXN_STATE")
    assert end_once(wire, name, who).error_code == expected
    answer = end_once(wire, name, who, commit=False)
    assert (answer.error_code, answer.producer_epoch) == (0, who.epoch + 1)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_same_producer_continues_after_the_timeout(wire: Wire, name: str, level: int) -> None:
    """KIP-588, in both protocol versions: InitProducerId with the old epoch."""
    topic_id = wire.create_topic(name)
    set_transaction_version(wire, level)
    who = wire.session(name, timeout_ms=SEVERAL_STEPS_MS)
    assert wire.add_partitions(name, who, name) == [0]
    assert not write(wire, name, who, name, [b"x"], version=11).error_code
    until_state(wire, name, "CompleteAbort")
    answer = wire.init_producer(name, session=who)
    if level < 2:  # no client holds the epoch of the abort, so a retry is not recognized
        assert answer.error_code in (0, FENCED)
        answer = wire.init_producer(name)
    again = Session(answer.producer_id, answer.producer_epoch)
    assert again.epoch > who.epoch
    assert wire.add_partitions(name, again, name) == [0]
    assert not write(wire, name, again, name, [b"y"], version=11).error_code
    assert not wire.end(name, again, version=4).error_code
    until_state(wire, name, "CompleteCommit")
    assert wire.values(topic_id, committed=True) == [b"y"]
    set_transaction_version(wire, 2)


def test_shorter_timeout_of_the_next_session_is_used(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.session(name, timeout_ms=600_000)
    who = wire.session(name, timeout_ms=200)
    written(wire, name, who, name, [b"x"])
    until_state(wire, name, "CompleteAbort")


def test_time_while_the_broker_is_down_counts(own_server: Server, name: str) -> None:
    """A transaction that is overdue at the start is aborted, under one new epoch."""
    with Wire(own_server.bootstrap) as wire:
        topic_id = wire.create_topic(name)
        who = wire.session(name, timeout_ms=300)
        written(wire, name, who, name, [b"x"])
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        wire.find_coordinator(name)
        assert until_state(wire, name, "CompleteAbort").producer_epoch == who.epoch + 1
        assert wire.values(topic_id, committed=True) == []


EXPIRING = {
    "transactional.id.expiration.ms": "700",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "50",
    **SETTINGS,
}


def test_idle_transactional_ids_expire(start_server: Callable[..., Server], name: str) -> None:
    """Each expired id gets a tombstone.

    Ids with an open transaction are kept. A returning client gets another producer id.
    """
    server = start_server(EXPIRING)
    with Wire(server.bootstrap) as wire:
        topic_id = wire.create_topic(name)
        ids = {step: f"{name}-{step}" for step in ("empty", "ended", "open")}
        sessions = {step: wire.session(each) for step, each in ids.items()}
        for step in ("ended", "open"):
            written(wire, ids[step], sessions[step], name, [step.encode()])
        after = ended(wire, ids["ended"], sessions["ended"])
        unknown = code("TRANSACTIONAL_ID_NOT_FOUND")
        for step in ("empty", "ended"):
            until(lambda step=step: describe(wire, ids[step]), lambda found: found.error_code == unknown, "forgotten")
            assert logged(wire, ids[step])[-1] == (-1, None)
        assert describe(wire, ids["open"]).transaction_state == "Ongoing"
        mapping = code("INVALID_PRODUCER_ID_MAPPING")
        assert wire.add_partitions(ids["empty"], sessions["empty"], name) == [mapping]
        assert end_once(wire, ids["ended"], after).error_code == mapping
        assert write(wire, ids["ended"], after, name, [b"late"]).error_code == mapping
        again = wire.session(ids["ended"])
        assert again.epoch == 0
        assert again.producer_id != sessions["ended"].producer_id
        ended(wire, ids["open"], sessions["open"])
        until(
            lambda: wire.values(topic_id, committed=True),
            lambda found: len(found) == 2,
            "both transactions are committed",
        )
