"""T8: a replaced producer changes nothing: late writes, late EndTxn, late markers, former members."""

from __future__ import annotations

import pytest

from support.servers import Server
from support.transactions import (
    commit_offset,
    committed,
    describe,
    end_once,
    ended,
    marker,
    markers,
    producers,
    state,
    until_state,
    verify,
    write,
    written,
)
from support.wire import Session, Wire, code, retried

FENCED = code("PRODUCER_FENCED")
STALE = code("INVALID_PRODUCER_EPOCH")


def check_nothing_open(wire: Wire, name: str) -> None:
    """Check that nothing is open in the partition: its last stable offset is its end."""
    assert wire.offset(name, committed=True) == wire.offset(name)


# -- late writes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [11, 12])
def test_kafka_14402_write_after_the_abort_of_its_transaction(wire: Wire, name: str, version: int) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"x"])
    ended(wire, name, who, commit=False)
    until_state(wire, name, "CompleteAbort")
    assert write(wire, name, who, name, [b"late"], 1, version=version).error_code == STALE
    check_nothing_open(wire, name)


def test_kafka_14402_old_protocol_write_after_the_end_of_its_transaction(wire: Wire, name: str) -> None:
    """The epoch is unchanged: only the missing partition in the transaction shows it."""
    wire.create_topic(name)
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == [0]
    assert not write(wire, name, who, name, [b"x"], version=11).error_code
    assert not wire.end(name, who, version=4).error_code
    until_state(wire, name, "CompleteCommit")
    assert write(wire, name, who, name, [b"late"], 1, version=11).error_code == code("TRANSACTION_ABORTABLE")
    assert write(wire, name, who, name, [b"late"], 1, version=9).error_code == code("INVALID_TXN_STATE")
    check_nothing_open(wire, name)


def test_kafka_12671_write_to_a_partition_that_is_not_in_the_transaction(wire: Wire, name: str) -> None:
    wire.create_topic(name, 2)
    who = wire.session(name)
    assert wire.add_partitions(name, who, name, [0]) == [0]
    answer = write(wire, name, who, name, [b"x"], partition=1, version=11)
    assert answer.error_code == code("TRANSACTION_ABORTABLE")
    assert verify(wire, name, who, name, [0, 1]) == [0, code("TRANSACTION_ABORTABLE")]
    assert wire.offset(name, partition=1) == 0
    ended(wire, name, who)


def test_every_request_of_a_fenced_producer_is_rejected(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, 2)
    wire.find_coordinator(name, 0)
    old = wire.session(name)
    written(wire, name, old, name, [b"old"])
    new = wire.session(name)
    written(wire, name, new, name, [b"new"])
    for version in (11, 12):
        assert write(wire, name, old, name, [b"late"], 1, version=version).error_code == STALE
        # This partition has not seen the new epoch. The coordinator answers PRODUCER_FENCED, and Kafka translates it.
        assert write(wire, name, old, name, [b"late"], partition=1, version=version).error_code == STALE
    assert wire.add_partitions(name, old, name) == [FENCED]
    assert wire.add_offsets(name, old, name).error_code == FENCED
    for version in (3, 4, 5):
        assert commit_offset(wire, name, old, name, name, 3, version=version) == STALE
    for version in (4, 5):
        assert end_once(wire, name, old, version=version).error_code == FENCED
        assert end_once(wire, name, old, commit=False, version=version).error_code == FENCED
    assert describe(wire, name).transaction_state == "Ongoing"
    ended(wire, name, new)
    until_state(wire, name, "CompleteCommit")
    assert wire.values(topic_id, committed=True) == [b"new"]
    assert wire.values(topic_id, 1) == []


def test_zombie_cannot_get_a_new_epoch(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: Kafka aborts the successor's open transaction before it rejects the zombie. oncelog rejects it at
    once.
    """
    wire.create_topic(name)
    old = wire.session(name)
    new = wire.session(name)
    written(wire, name, new, name, [b"new"])
    assert wire.init_producer(name, session=old).error_code == FENCED
    assert state(wire, name) == ("Ongoing" if server.name == "oncelog" else "CompleteAbort")
    if server.name == "oncelog":
        ended(wire, name, new)


# -- late EndTxn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_kafka_17754_late_end_txn_does_not_end_the_next_transaction(wire: Wire, name: str, commit: bool) -> None:
    topic_id = wire.create_topic(name)
    first = wire.session(name)
    written(wire, name, first, name, [b"1"])
    second = ended(wire, name, first, commit)
    until_state(wire, name, "CompleteCommit" if commit else "CompleteAbort")
    written(wire, name, second, name, [b"2"])
    for late in (True, False):
        assert end_once(wire, name, first, late).error_code == FENCED
        assert end_once(wire, name, first, late, version=4).error_code == FENCED
    assert state(wire, name) == "Ongoing"
    ended(wire, name, second, not commit)
    until_state(wire, name, "CompleteAbort" if commit else "CompleteCommit")
    assert wire.values(topic_id, committed=True) == [b"1" if commit else b"2"]


def test_kafka_9600_end_txn_with_a_future_epoch(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"x"])
    for version in (4, 5):
        for ahead in (1, 2, 100):
            newer = Session(who.producer_id, who.epoch + ahead)
            assert end_once(wire, name, newer, version=version).error_code == FENCED
    assert describe(wire, name).producer_epoch == who.epoch
    ended(wire, name, who)


# -- markers of operators ---------------------------------------------------------------------------------------------


def test_operator_can_end_a_transaction_in_a_partition(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, 2)
    who = wire.session(name)
    written(wire, name, who, name, [b"x"])
    assert marker(wire, who, name, partitions=[0, 1]) == [0, 0]
    assert markers(wire, topic_id) == [(who.producer_id, who.epoch, "ABORT")]
    assert wire.values(topic_id, committed=True) == []
    check_nothing_open(wire, name)
    ended(wire, name, who)  # the coordinator does not know of it, and writes its own marker in addition
    until_state(wire, name, "CompleteCommit")
    assert [kind for _, _, kind in markers(wire, topic_id)] == ["ABORT", "COMMIT"]
    assert wire.values(topic_id, committed=True) == []


def test_kip_1228_late_or_repeated_marker(wire: Wire, name: str) -> None:
    """In version 2, a marker's epoch is above that of the records, so that a marker of the previous transaction is
    detected.
    """
    topic_id = wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"1"])
    after = ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    written(wire, name, after, name, [b"2"])
    assert marker(wire, after, name, transaction_version=2, version=2) == [STALE], "it has the epoch of the writer"
    assert marker(wire, who, name, transaction_version=2, version=2) == [STALE]
    assert marker(wire, who, name) == [STALE]
    assert len(markers(wire, topic_id)) == 1
    assert wire.offset(name, committed=True) == 2
    ended(wire, name, after)
    until_state(wire, name, "CompleteCommit")
    assert wire.values(topic_id, committed=True) == [b"1", b"2"]


def test_marker_of_an_old_coordinator_epoch(wire: Wire, name: str) -> None:
    """The old marker does not decrease the coordinator's epoch (KAFKA-9144)."""
    wire.create_topic(name)
    who = Session(wire.session().producer_id, 3)
    assert marker(wire, who, name, coordinator_epoch=5) == [0]
    assert producers(wire, name)[who.producer_id].coordinator_epoch == 5
    assert marker(wire, who, name, coordinator_epoch=4) == [code("TRANSACTION_COORDINATOR_FENCED")]
    assert producers(wire, name)[who.producer_id].coordinator_epoch == 5
    assert marker(wire, who, name, coordinator_epoch=6) == [0]
    assert marker(wire, Session(who.producer_id, who.epoch - 1), name, coordinator_epoch=9) == [STALE]


def test_marker_for_a_missing_partition(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    unknown = code("UNKNOWN_TOPIC_OR_PARTITION")
    assert sorted(marker(wire, who, name, partitions=[0, 7])) == [0, unknown]
    assert marker(wire, who, f"{name}-missing") == [unknown]


# -- former members ---------------------------------------------------------------------------------------------------


def test_kip_447_offsets_of_an_unknown_member(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.find_coordinator(name, 0)
    who = wire.session(name)
    assert commit_offset(wire, name, who, name, name, 1, generation=3, member="unknown") in (
        code("UNKNOWN_MEMBER_ID"),
        code("ILLEGAL_GENERATION"),
    )
    assert committed(wire, name, name, stable=False) == (-1, 0)
    assert commit_offset(wire, name, who, name, name, 1) == 0, "without a member, as before KIP-447"
    ended(wire, name, who, commit=False)


def test_restarted_broker_still_fences(own_server: Server, name: str) -> None:
    with Wire(own_server.bootstrap) as wire:
        wire.create_topic(name)
        old = wire.session(name)
        written(wire, name, old, name, [b"x"])
        new = wire.session(name)
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        wire.find_coordinator(name)
        assert retried(lambda: write(wire, name, old, name, [b"late"], 1)).error_code == STALE
        assert wire.end(name, old, version=5).error_code == FENCED
        written(wire, name, new, name, [b"y"])
        ended(wire, name, new)
