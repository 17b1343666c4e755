"""KIP-939 over the wire: InitProducerId v6, transactions without a timeout, and sessions that keep a transaction.

Apache Kafka 4.3.1 serves none of it to clients, so that the specification is the control.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from oncelog import Admin
from support.servers import OncelogCluster, Server
from support.transactions import (
    TWO_PHASE_SETTINGS,
    commit_offset,
    committed,
    describe,
    end_once,
    ended,
    listed,
    markers,
    pass_timeout,
    producers,
    set_transaction_version,
    until_state,
    write,
    written,
)
from support.wire import Session, Wire, code

SETTINGS = TWO_PHASE_SETTINGS
NONE = 0
FENCED = code("PRODUCER_FENCED")
STALE = code("INVALID_PRODUCER_EPOCH")
INVALID_STATE = code("INVALID_TXN_STATE")


class Kept(NamedTuple):
    """A transaction with a record in each of two partitions, its producer, and that of the session that kept it."""

    topic_id: UUID
    old: Session
    holder: Session


def offset(wire: Wire, name: str, who: Session) -> int:
    wire.find_coordinator(name, 0)
    return commit_offset(wire, name, who, name, name, 5)


def keep(wire: Wire, transactional_id: str, **fields: Any) -> Any:
    return wire.init_producer(transactional_id, version=6, keep_prepared_txn=True, **fields)


def session(answer: Any) -> Session:
    assert not answer.error_code, answer
    return Session(answer.producer_id, answer.producer_epoch)


def opened(wire: Wire, name: str, **fields: Any) -> tuple[UUID, Session]:
    topic_id = wire.create_topic(name, 2)
    who = session(wire.init_producer(name, version=6, **fields))
    for partition in (0, 1):
        written(wire, name, who, name, [b"x"], partition=partition)
    return topic_id, who


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    return module_wire


@pytest.fixture
def kept(wire: Wire, name: str) -> Kept:
    topic_id, old = opened(wire, name, enable2_pc=True)
    return Kept(topic_id, old, session(keep(wire, name, enable2_pc=True)))


REFUSED = {
    "end by the former producer": (lambda wire, name, kept: end_once(wire, name, kept.old).error_code, FENCED),
    "end by the former producer, version 4": (
        lambda wire, name, kept: end_once(wire, name, kept.old, version=4).error_code,
        FENCED,
    ),
    "abort by the former producer": (lambda wire, name, kept: end_once(wire, name, kept.old, False).error_code, FENCED),
    "partition of the former producer": (lambda wire, name, kept: wire.add_partitions(name, kept.old, name), [FENCED]),
    "partition of the holder": (
        lambda wire, name, kept: wire.add_partitions(name, kept.holder, name),
        [INVALID_STATE],
    ),
    "record of the holder": (
        lambda wire, name, kept: write(wire, name, kept.holder, name, [b"more"]).error_code,
        INVALID_STATE,
    ),
    "offset of the former producer": (lambda wire, name, kept: offset(wire, name, kept.old), STALE),
    "offset of the holder": (lambda wire, name, kept: offset(wire, name, kept.holder), INVALID_STATE),
    "session of an unknown producer": (
        lambda wire, name, kept: keep(wire, name, session=Session(10**6, 0)).error_code,
        FENCED,
    ),
    "usual session of the former producer": (
        lambda wire, name, kept: wire.init_producer(name, session=kept.old).error_code,
        FENCED,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_changes_nothing(wire: Wire, name: str, kept: Kept, what: str) -> None:
    act, expected = REFUSED[what]
    assert act(wire, name, kept) == expected
    assert describe(wire, name).transaction_state == "Ongoing"
    assert ended(wire, name, kept.holder) == Session(kept.holder.producer_id, kept.holder.epoch + 1)
    until_state(wire, name, "CompleteCommit")
    for partition in (0, 1):
        assert wire.values(kept.topic_id, partition, committed=True) == [b"x"]


@pytest.mark.parametrize("commit", [True, False])
def test_session_that_keeps_ends_the_transaction(wire: Wire, name: str, kept: Kept, commit: bool) -> None:
    again = keep(wire, name, enable2_pc=True)
    assert (again.ongoing_txn_producer_id, again.ongoing_txn_producer_epoch) == (kept.old.producer_id, kept.old.epoch)
    following = ended(wire, name, session(again), commit)
    until_state(wire, name, "CompleteCommit" if commit else "CompleteAbort")
    for partition in (0, 1):
        assert markers(wire, kept.topic_id, partition) == [
            (kept.old.producer_id, kept.old.epoch + 1, "COMMIT" if commit else "ABORT")
        ]
        assert wire.values(kept.topic_id, partition, committed=True) == ([b"x"] if commit else [])
    written(wire, name, following, name, [b"next"])
    ended(wire, name, following)
    until_state(wire, name, "CompleteCommit")
    assert wire.values(kept.topic_id, committed=True) == ([b"x", b"next"] if commit else [b"next"])


def test_offsets_are_kept_with_the_transaction(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = session(wire.init_producer(name, version=6, enable2_pc=True))
    assert offset(wire, name, who) == NONE
    ended(wire, name, session(keep(wire, name)))
    until_state(wire, name, "CompleteCommit")
    assert committed(wire, name, name) == (5, 0)


def test_nothing_to_keep(wire: Wire, name: str) -> None:
    answer = keep(wire, name)
    assert (answer.error_code, answer.producer_epoch, answer.ongoing_txn_producer_id) == (NONE, 0, -1)
    assert answer.ongoing_txn_producer_epoch == -1


def test_transaction_waits_longer_than_its_timeout(wire: Wire, name: str) -> None:
    """A transaction of the same timeout, which began later, is aborted meanwhile."""
    topic_id, who = opened(wire, name, timeout_ms=1, enable2_pc=True)
    pass_timeout(wire, name)
    found = describe(wire, name)
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 2**31 - 1)
    ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    assert wire.values(topic_id, committed=True) == [b"x"]


# -- tools ------------------------------------------------------------------------------------------------------------


def test_tools_see_the_producer_of_the_transaction(module_server: Server, wire: Wire, name: str, kept: Kept) -> None:
    """The partitions know this one, so that a search for hanging transactions compares the same producers."""
    found = describe(wire, name)
    assert (found.producer_id, found.producer_epoch, found.transaction_state) == (*kept.old, "Ongoing")
    assert [(topic.topic, sorted(topic.partitions)) for topic in found.topics] == [(name, [0, 1])]
    states = listed(wire, producer_id_filters=[kept.old.producer_id]).transaction_states
    assert [(state.transactional_id, state.transaction_state) for state in states] == [(name, "Ongoing")]
    assert producers(wire, name)[kept.old.producer_id].current_txn_start_offset == 0
    with Admin(module_server.bootstrap) as admin:
        assert admin.find_hanging_transactions(name, older_than_ms=0) == []


def test_administrator_terminates_it(module_server: Server, wire: Wire, name: str, kept: Kept) -> None:
    with Admin(module_server.bootstrap) as admin:
        admin.fence_producers([name])
    until_state(wire, name, "CompleteAbort", "Empty")
    assert end_once(wire, name, kept.holder).error_code == FENCED
    for partition in (0, 1):
        assert [kind for _, _, kind in markers(wire, kept.topic_id, partition)] == ["ABORT"]


# -- restarts and settings --------------------------------------------------------------------------------------------


@pytest.fixture
def own_server(new_cluster: Callable[..., OncelogCluster]) -> OncelogCluster:
    return new_cluster(settings=SETTINGS)


def test_kept_transaction_survives_kills(own_server: Server, name: str) -> None:
    with Wire(own_server.bootstrap) as wire:
        topic_id, old = opened(wire, name, timeout_ms=1, enable2_pc=True)
    for epoch in (1, 2, 3):
        own_server.kill()
        own_server.wait_ready()
        with Wire(own_server.bootstrap) as wire:
            answer = keep(wire, name, enable2_pc=True)
            assert session(answer) == (old.producer_id, old.epoch + epoch)
            assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == old
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        wire.find_coordinator(name)
        ended(wire, name, session(answer))
        until_state(wire, name, "CompleteCommit")
        for partition in (0, 1):
            assert wire.values(topic_id, partition, committed=True) == [b"x"]


def test_setting_is_disabled_while_a_transaction_waits(
    own_server: OncelogCluster, new_cluster: Callable[..., OncelogCluster], name: str
) -> None:
    """It waits on, a session may keep and end it, and no new one is without a timeout."""
    with Wire(own_server.bootstrap) as wire:
        opened(wire, name, enable2_pc=True)
    own_server.stop()
    with Wire(new_cluster(own_server.directory).bootstrap) as wire:
        refused = wire.init_producer(name, version=6, enable2_pc=True, keep_prepared_txn=True)
        assert refused.error_code == code("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
        assert describe(wire, name).transaction_state == "Ongoing"
        ended(wire, name, session(keep(wire, name)))
        until_state(wire, name, "CompleteCommit")


def test_level_is_lowered_while_a_session_keeps_a_transaction(own_server: Server, name: str) -> None:
    with Wire(own_server.bootstrap) as wire:
        topic_id, old = opened(wire, name, enable2_pc=True)
        holder = session(keep(wire, name))
        set_transaction_version(wire, 1)
        assert keep(wire, name).error_code == code("UNSUPPORTED_VERSION")
        assert end_once(wire, name, holder, version=4).error_code == NONE
        until_state(wire, name, "CompleteCommit")
        assert markers(wire, topic_id) == [(old.producer_id, old.epoch, "COMMIT")]
        assert wire.values(topic_id, committed=True) == [b"x"]
        following = wire.session(name)
        assert following == (old.producer_id, holder.epoch + 1)
