"""I1: producer ids are allocated in blocks of 1,000, and none twice."""

from __future__ import annotations

import threading

import pytest

from support.servers import Server
from support.wire import NO_SESSION, Session, Wire, batch, code

BLOCK = 1000


def ids(wire: Wire, count: int) -> list[int]:
    return [wire.session().producer_id for _ in range(count)]


def test_each_producer_gets_its_own_id_and_epoch_zero(wire: Wire) -> None:
    sessions = [wire.session() for _ in range(5)]
    assert {session.epoch for session in sessions} == {0}
    found = [session.producer_id for session in sessions]
    assert len(set(found)) == 5
    assert all(0 <= each < 2**63 for each in found)


def test_connections_and_transactional_ids_use_the_same_blocks(wire: Wire, server: Server, name: str) -> None:
    found: list[int] = []

    def take(index: int) -> None:
        with Wire(server.bootstrap) as connection:
            for turn in range(20):
                found.append(connection.session().producer_id)
                if turn % 5 == 0:
                    found.append(connection.session(f"{name}-{index}-{turn}").producer_id)

    takers = [threading.Thread(target=take, args=(index,)) for index in range(4)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert len(found) == 4 * 24
    assert len(set(found)) == len(found)


def test_blocks_follow_each_other_and_no_id_is_reused_after_kill_9(own_server: Server, name: str) -> None:
    with Wire(own_server.bootstrap) as wire:
        seen = ids(wire, BLOCK + 100)  # the next block follows without a gap visible to clients
        seen.append(wire.session(name).producer_id)
    assert seen == list(range(len(seen)))
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        after = ids(wire, 3)
        again = wire.session(name).producer_id
    assert after == [2 * BLOCK, 2 * BLOCK + 1, 2 * BLOCK + 2], "a crash loses the rest of a block"
    assert again == seen[-1], "a transactional id keeps its producer id"


@pytest.mark.parametrize("session", [Session(5, -1), Session(-1, 5)])
@pytest.mark.parametrize("transactional", [False, True])
def test_id_without_an_epoch_is_invalid(wire: Wire, name: str, session: Session, transactional: bool) -> None:
    answer = wire.init_producer(name if transactional else None, session=session)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code("INVALID_REQUEST"), -1, -1)


def test_without_a_transactional_id_any_session_gets_a_new_id(wire: Wire) -> None:
    """A producer at its last epoch does this (KIP-360 keeps the epoch only of transactional ones)."""
    old = wire.session()
    new = wire.init_producer(session=old)
    assert not new.error_code
    assert (new.producer_id > old.producer_id, new.producer_epoch) == (True, 0)


def test_empty_transactional_id_is_rejected(wire: Wire) -> None:
    assert wire.init_producer("", session=NO_SESSION).error_code == code("INVALID_REQUEST")


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_the_request(wire: Wire, version: int) -> None:
    answer = wire.init_producer(version=version)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)


def test_id_that_the_broker_did_not_assign_is_accepted(wire: Wire, name: str) -> None:
    """Kafka's partitions do not know the assigned ids either."""
    wire.create_topic(name)
    stranger = Session(2**63 - 1, 0)
    assert wire.produce(name, batch([b"v"], stranger, 0)).base_offset == 0
    assert wire.produce(name, batch([b"v"], stranger, 0)).base_offset == 0
    assert wire.produce(name, batch([b"v"], stranger, 1)).base_offset == 1
