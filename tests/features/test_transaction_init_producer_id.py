"""T2: InitProducerId in all its forms, up to the last epoch of a producer id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from support.servers import Server
from support.transactions import (
    ADMIN,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    describe,
    end_once,
    ended,
    seed,
    state,
    until_state,
    write,
    written,
)
from support.wire import Session, Wire, code

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
FENCED = code("PRODUCER_FENCED")
LAST = 32_766
"""The last epoch that a client gets. 32767 is reserved for fencing."""


def ask(wire: Wire, **fields: object) -> object:
    return wire.call(InitProducerIdRequest(**{"transaction_timeout_ms": 60_000, **fields})).error_code


def test_without_a_transactional_id_each_call_creates_another_producer(wire: Wire) -> None:
    sessions = [wire.session() for _ in range(3)]
    assert len({who.producer_id for who in sessions}) == 3
    assert {who.epoch for who in sessions} == {0}
    assert ask(wire, transactional_id=None, transaction_timeout_ms=-5) == 0, "the timeout counts for nothing"


def test_same_id_gets_the_same_producer_id_in_the_next_epoch(wire: Wire, name: str) -> None:
    first = wire.session(name)
    assert [wire.session(name) for _ in range(3)] == [Session(first.producer_id, first.epoch + n) for n in (1, 2, 3)]
    assert wire.session(name + "-other").producer_id != first.producer_id


def test_invalid_sessions_are_rejected(wire: Wire, name: str) -> None:
    wire.find_coordinator(name)
    assert ask(wire, transactional_id="") == code("INVALID_REQUEST")
    for timeout_ms in (0, -1, 900_001):
        error = ask(wire, transactional_id=name, transaction_timeout_ms=timeout_ms)
        assert error == code("INVALID_TRANSACTION_TIMEOUT")
    assert ask(wire, transactional_id=name, producer_id=5) == code("INVALID_REQUEST")
    assert ask(wire, transactional_id=name, producer_epoch=5) == code("INVALID_REQUEST")
    assert ask(wire, transactional_id=name, transaction_timeout_ms=900_000) == 0


def test_successor_aborts_its_predecessors_open_transaction(wire: Wire, name: str) -> None:
    """The successor gets a retriable error. The epoch is bumped twice: once to fence, once for the new session."""
    topic_id = wire.create_topic(name)
    first = wire.session(name)
    written(wire, name, first, name, [b"left"])
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    assert wire.call(request).error_code == code("CONCURRENT_TRANSACTIONS")
    second = wire.session(name)
    assert second == Session(first.producer_id, first.epoch + 2)
    assert wire.values(topic_id, committed=True) == []
    assert wire.values(topic_id) == [b"left"]
    assert write(wire, name, first, name, [b"late"], 1).error_code == code("INVALID_PRODUCER_EPOCH")
    assert end_once(wire, name, first).error_code == FENCED


def test_kip_360_producer_bumps_its_epoch_and_may_retry(wire: Wire, name: str) -> None:
    first = wire.session(name)
    answers = [wire.init_producer(name, session=first) for _ in range(2)]
    assert [(a.error_code, a.producer_id, a.producer_epoch) for a in answers] == [(0, first.producer_id, 1)] * 2
    successor = wire.session(name)
    assert successor.epoch == 2
    assert wire.init_producer(name, session=first).error_code == FENCED
    assert wire.init_producer(name, session=Session(first.producer_id, 1)).error_code == FENCED
    assert wire.init_producer(name, session=Session(first.producer_id, 7)).error_code == FENCED
    assert wire.init_producer(name, session=Session(first.producer_id + 1_000_000, 2)).error_code == FENCED
    assert wire.init_producer(name, session=first, version=3).error_code == code("INVALID_PRODUCER_EPOCH")
    assert state(wire, name) == "Empty"


def test_kip_360_unknown_producer_id_gets_a_new_one(wire: Wire, name: str) -> None:
    answer = wire.init_producer(name, session=Session(123_456_789, 5))
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id != 123_456_789


def test_kafka_6119_kip_588_producer_recovers_from_its_timeout(module_wire: Wire, name: str) -> None:
    wire = module_wire
    topic_id = wire.create_topic(name)
    who = wire.session(name, timeout_ms=200)
    written(wire, name, who, name, [b"x"])
    assert until_state(wire, name, "CompleteAbort").producer_epoch == who.epoch + 1
    assert end_once(wire, name, who, version=4).error_code == FENCED
    answer = wire.init_producer(name, session=who)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, who.producer_id, who.epoch + 1)
    again = Session(answer.producer_id, answer.producer_epoch)
    written(wire, name, again, name, [b"y"])
    ended(wire, name, again)
    until_state(wire, name, "CompleteCommit")
    assert wire.values(topic_id, committed=True) == [b"y"]


# -- exhausted epochs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def used_up(module_server: Server) -> Iterator[Wire]:
    """Return a coordinator that has loaded ids with nearly exhausted epochs; `ids` of the connection names them."""
    sessions: dict[str, Session] = {}
    with Wire(module_server.bootstrap) as wire, Wire(module_server.bootstrap, ADMIN) as admin:
        wire.create_topic("used-up")
        for step, epoch, status in (
            *((f"empty-{epoch}", epoch, EMPTY) for epoch in (LAST - 1, LAST, LAST + 1)),
            *((f"{what}-{epoch}", epoch, EMPTY) for what in ("commit", "abort", "retry") for epoch in (LAST - 1, LAST)),
            *((f"timeout-{epoch}", epoch, ONGOING) for epoch in (LAST - 1, LAST, LAST + 1)),
            *((f"successor-{epoch}", epoch, ONGOING) for epoch in (LAST - 1, LAST)),
            ("kip-360", LAST, COMPLETE_COMMIT),
            ("zombie", LAST, COMPLETE_ABORT),
            ("old-protocol", LAST, EMPTY),
        ):
            wire.find_coordinator(step)
            who = sessions[step] = Session(wire.session().producer_id, epoch)
            parts = () if status in (COMPLETE_COMMIT, COMPLETE_ABORT) else (("used-up", 0),)
            timeout_ms = 1 if step.startswith("timeout") else 60_000
            seed(admin, step, who, status, partitions=parts, transaction_timeout_ms=timeout_ms)
    module_server.kill()
    module_server.wait_ready()
    with Wire(module_server.bootstrap) as wire:
        wire.ids = sessions  # type: ignore[attr-defined]
        for step in sessions:
            wire.find_coordinator(step)
            describe(wire, step)  # waits until its coordinator has loaded
        yield wire


def who_is(wire: Wire, step: str) -> Session:
    session: Session = wire.ids[step]  # type: ignore[attr-defined]
    return session


def test_new_session_after_the_last_epoch_gets_another_producer_id(used_up: Wire) -> None:
    before = who_is(used_up, f"empty-{LAST - 1}")
    assert used_up.session(f"empty-{LAST - 1}") == Session(before.producer_id, LAST)
    for epoch in (LAST, LAST + 1):
        before = who_is(used_up, f"empty-{epoch}")
        after = used_up.session(f"empty-{epoch}")
        assert after.epoch == 0
        assert after.producer_id != before.producer_id


@pytest.mark.parametrize("commit", [True, False])
def test_kafka_18660_end_txn_at_the_last_epoch_returns_another_producer_id(used_up: Wire, commit: bool) -> None:
    what = "commit" if commit else "abort"
    step = f"{what}-{LAST - 1}"
    who = who_is(used_up, step)
    written(used_up, step, who, "used-up", [b"x"])
    who = ended(used_up, step, who, commit)
    assert who == Session(who_is(used_up, step).producer_id, LAST)
    written(used_up, step, who, "used-up", [b"y"])
    after = ended(used_up, step, who, commit)
    assert after.epoch == 0
    assert after.producer_id != who.producer_id
    until_state(used_up, step, "CompleteCommit" if commit else "CompleteAbort")
    again = end_once(used_up, step, who, commit)  # a retry after a lost answer
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, *after)
    written(used_up, step, after, "used-up", [b"z"])
    assert ended(used_up, step, after, commit) == Session(after.producer_id, 1)


def test_kafka_18660_retry_of_the_last_end_txn_keeps_its_outcome(used_up: Wire) -> None:
    step = f"retry-{LAST}"
    who = who_is(used_up, step)
    written(used_up, step, who, "used-up", [b"x"])
    after = ended(used_up, step, who)
    until_state(used_up, step, "CompleteCommit")
    assert end_once(used_up, step, who, commit=False).error_code in (code("INVALID_TXN_STATE"), FENCED)
    assert describe(used_up, step).producer_id == after.producer_id


@pytest.mark.parametrize("epoch", [LAST - 1, LAST, LAST + 1])
def test_kafka_19367_20090_timeout_near_the_last_epoch(used_up: Wire, epoch: int) -> None:
    """A successor loaded the state. Its abort neither overflows the epoch nor leaves the id stuck."""
    step = f"timeout-{epoch}"
    who = who_is(used_up, step)
    found = until_state(used_up, step, "CompleteAbort")
    rotated = epoch >= LAST
    assert (found.producer_id == who.producer_id) is not rotated
    assert found.producer_epoch == (0 if rotated else LAST)
    after = used_up.session(step)
    assert 0 <= after.epoch <= LAST
    written(used_up, step, after, "used-up", [b"goes on"])
    ended(used_up, step, after)


@pytest.mark.parametrize("epoch", [LAST - 1, LAST])
def test_kafka_20357_successor_near_the_last_epoch(used_up: Wire, epoch: int) -> None:
    step = f"successor-{epoch}"
    who = who_is(used_up, step)
    after = used_up.session(step)
    assert after.producer_id != who.producer_id
    assert after.epoch in (0, 1)
    assert end_once(used_up, step, who).error_code in (FENCED, code("INVALID_PRODUCER_ID_MAPPING"))
    written(used_up, step, after, "used-up", [b"goes on"])
    ended(used_up, step, after)


def test_kip_360_at_the_last_epoch_and_its_retry(used_up: Wire) -> None:
    who = who_is(used_up, "kip-360")
    first = used_up.init_producer("kip-360", session=who)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert first.producer_id != who.producer_id
    again = used_up.init_producer("kip-360", session=who)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, first.producer_id, 0)


def test_kip_360_of_a_zombie_at_the_last_epoch(used_up: Wire) -> None:
    who = who_is(used_up, "zombie")
    successor = used_up.session("zombie")
    assert used_up.init_producer("zombie", session=Session(who.producer_id, LAST - 1)).error_code == FENCED
    assert used_up.session("zombie").producer_id == successor.producer_id


def test_old_client_at_the_last_epoch_keeps_it(used_up: Wire) -> None:
    who = who_is(used_up, "old-protocol")
    for number in range(2):
        assert used_up.add_partitions("old-protocol", who, "used-up") == [0]
        assert not write(used_up, "old-protocol", who, "used-up", [b"x"], number, version=11).error_code
        assert not used_up.end("old-protocol", who, version=4).error_code
        until_state(used_up, "old-protocol", "CompleteCommit")
    assert describe(used_up, "old-protocol").producer_epoch == LAST
