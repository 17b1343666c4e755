"""I10: what is known of producers survives restarts, retention, truncation; and it expires."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from support.servers import OncelogCluster, Server
from support.transactions import ended, producers, written
from support.wire import Session, Wire, batch, code, until

OUT_OF_ORDER = code("OUT_OF_ORDER_SEQUENCE_NUMBER")
LONG_AGO = 1_600_000_000_000
EXPIRY_MS = 1500
SETTINGS = {
    "producer.id.expiration.ms": str(EXPIRY_MS),
    "producer.id.expiration.check.interval.ms": "50",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "0",
}
"""Of the module's server."""
BIG = os.urandom(600_000)


def stop_and_start(server: Any) -> None:
    """A clean restart, on the port of before where it is to be had."""
    server.stop()
    server.start()


def snapshots(server: Server, topic: str) -> list[int]:
    """Offsets of the partition's snapshot files."""
    return sorted(int(path.stem) for path in server.partition_dir(topic).glob("*.snapshot"))


def newest(server: Server, topic: str) -> Path:
    return max(server.partition_dir(topic).glob("*.snapshot"))


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_taken_where_a_segment_ends(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name, segment_bytes=str(1 << 20))
    who = wire.session()
    for sequence in range(4):
        assert wire.produce(name, batch([BIG], who, sequence)).base_offset == sequence
    assert snapshots(server, name) == [1, 2, 3]
    assert wire.produce(name, batch([BIG], who, 1)).base_offset == 1, "what is in memory is not cut to the last batch"


def test_a_clean_stop_leaves_a_snapshot_with_each_producers_last_batch(own_server: Any, name: str) -> None:
    with Wire(own_server.bootstrap) as wire:
        wire.create_topic(name)
        who, other = wire.session(), wire.session()
        for sequence in range(5):
            wire.produce(name, batch([b"v"], who, sequence))
        wire.produce(name, batch([b"v"] * 3, Session(other.producer_id, 4), 0))
    stop_and_start(own_server)
    assert snapshots(own_server, name) == [8]
    with Wire(own_server.bootstrap) as wire:
        wire.leaders_serve(name)
        known = producers(wire, name)
        assert (known[who.producer_id].last_sequence, known[other.producer_id].last_sequence) == (4, 2)
        assert known[other.producer_id].producer_epoch == 4
        assert wire.produce(name, batch([b"v"], who, 4)).base_offset == 4
        assert wire.produce(name, batch([b"v"] * 3, Session(other.producer_id, 4), 0)).base_offset == 5
        assert wire.produce(name, batch([b"v"], who, 3)).error_code == OUT_OF_ORDER, "only the last one is kept"
        assert wire.produce(name, batch([b"v"], who, 6)).error_code == OUT_OF_ORDER
        assert wire.produce(name, batch([b"v"], who, 5)).base_offset == 8


def test_an_open_transaction_survives_in_the_snapshot(own_server: Any, name: str) -> None:
    with Wire(own_server.bootstrap) as wire:
        topic = wire.create_topic(name)
        who = wire.session(name)
        wire.produce(name, batch([b"plain"]))
        written(wire, name, who, name, [b"a"])
    stop_and_start(own_server)
    with Wire(own_server.bootstrap) as wire:
        wire.leaders_serve(name)
        wire.find_coordinator(name)
        assert producers(wire, name)[who.producer_id].current_txn_start_offset == 1
        until(lambda: wire.offset(name, committed=True), lambda lso: lso == 1, "it holds the last stable offset")
        written(wire, name, who, name, [b"b"], 1)
        ended(wire, name, who)
        until(lambda: wire.values(topic, committed=True), lambda found: found == [b"plain", b"a", b"b"], "committed")


@pytest.mark.parametrize("damage", ["flipped bit", "cut off", "emptied"])
def test_a_damaged_snapshot_is_passed_over(own_server: Any, name: str, damage: str) -> None:
    """The state is that of the snapshot before it, or of the start, and of what follows in the log."""
    with Wire(own_server.bootstrap) as wire:
        wire.create_topic(name)
        who = wire.session()
        for sequence in range(6):
            wire.produce(name, batch([b"v"], who, sequence))
    own_server.stop()
    path = newest(own_server, name)
    data = bytearray(path.read_bytes())
    data[12] ^= 4
    path.write_bytes({"flipped bit": data, "cut off": data[:-3], "emptied": b""}[damage])
    own_server.start()
    with Wire(own_server.bootstrap) as wire:
        wire.leaders_serve(name)
        offsets = [wire.produce(name, batch([b"v"], who, sequence)).base_offset for sequence in range(1, 7)]
        assert offsets == [1, 2, 3, 4, 5, 6]
        assert wire.produce(name, batch([b"v"], who, 9)).error_code == OUT_OF_ORDER


def test_after_a_crash_the_newest_snapshot_and_what_follows_it(own_server: Server, name: str) -> None:
    """Sequences live in the log: of a producer that wrote after the snapshot every batch is recognised again.

    DIFFERS: Kafka, too, reads them again, but then loads the snapshot that it has just made: the last batch only.
    """
    with Wire(own_server.bootstrap) as wire:
        wire.create_topic(name, segment_bytes=str(1 << 20))
        early, late = wire.session(), wire.session()
        for sequence in range(3):
            wire.produce(name, batch([b"v"], early, sequence))
        for _ in range(2):
            wire.produce(name, batch([BIG]))
        for sequence in range(3):
            wire.produce(name, batch([b"v"], late, sequence))
    assert snapshots(own_server, name) == [4]
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        wire.leaders_serve(name)
        assert wire.offset(name) == 8
        assert wire.produce(name, batch([b"v"], early, 2)).base_offset == 2
        assert wire.produce(name, batch([b"v"], late, 2)).base_offset == 7
        older = wire.produce(name, batch([b"v"], late, 1))
        if isinstance(own_server, OncelogCluster):
            assert older.base_offset == 6
        else:
            assert older.error_code == OUT_OF_ORDER
        for who in (early, late):
            assert wire.produce(name, batch([b"v"], who, 4)).error_code == OUT_OF_ORDER
            assert not wire.produce(name, batch([b"v"], who, 3)).error_code


# -- what is deleted ---------------------------------------------------------------------------------------------------


def test_retention_takes_the_records_and_leaves_the_producer(module_wire: Wire, name: str) -> None:
    """KIP-360, KAFKA-7190."""
    wire = module_wire
    wire.create_topic(name, retention_ms="1000")
    who = wire.session(name)  # a transaction keeps its producer from expiring
    written(wire, name, who, name, [b"v"] * 2)
    ended(wire, name, who)
    successor = wire.session(name)
    written(wire, name, successor, name, [b"v"])
    start = until(lambda: wire.offset(name, -2), lambda offset: offset >= 3, "the first segment is gone")
    assert producers(wire, name)[who.producer_id].last_sequence == 0
    answer = wire.produce(name, batch([b"v"], successor, 3, transactional=True), transactional_id=name)
    assert answer.error_code == OUT_OF_ORDER
    assert written(wire, name, successor, name, [b"v"], 1).base_offset >= start
    ended(wire, name, successor)


# -- expiry ------------------------------------------------------------------------------------------------------------


def known(wire: Wire, topic: str, who: Session) -> bool:
    return who.producer_id in producers(wire, topic)


def test_a_producer_that_is_idle_for_long_is_forgotten(module_wire: Wire, name: str) -> None:
    wire = module_wire
    wire.create_topic(name)
    who = wire.session()
    wire.produce(name, batch([b"v"], who, 0))
    assert known(wire, name, who)
    assert wire.produce(name, batch([b"v"], who, 7)).error_code == OUT_OF_ORDER
    until(lambda: known(wire, name, who), lambda found: not found, "it is forgotten")
    assert wire.produce(name, batch([b"v"], who, 7)).base_offset == 1, "any sequence will do as its first"
    assert wire.produce(name, batch([b"v"], who, 9)).error_code == OUT_OF_ORDER


def test_a_marker_counts_as_a_sign_of_life(module_wire: Wire, name: str) -> None:
    """KAFKA-9144: by the time of its data alone the producer was gone, and with it the coordinator's epoch."""
    wire = module_wire
    wire.create_topic(name)
    who = wire.session(name)
    data = batch([b"v"], who, 0, transactional=True, timestamp=LONG_AGO)
    until(
        lambda: wire.produce(name, data, transactional_id=name, version=12).error_code, lambda found: not found, "taken"
    )
    successor = ended(wire, name, who)
    state = until(lambda: producers(wire, name).get(who.producer_id), lambda found: found and found.producer_epoch, "")
    assert state is not None
    assert state.producer_epoch == successor.epoch
    assert state.last_timestamp > LONG_AGO + EXPIRY_MS
    until(lambda: known(wire, name, who), lambda found: not found, "it is forgotten")


def test_an_open_transaction_keeps_its_producer(module_wire: Wire, name: str) -> None:
    wire = module_wire
    wire.create_topic(name, 2)
    who, idle = wire.session(name), wire.session()
    data = batch([b"v"], who, 0, transactional=True, timestamp=LONG_AGO)
    until(
        lambda: wire.produce(name, data, transactional_id=name, version=12).error_code, lambda found: not found, "taken"
    )
    wire.produce(name, batch([b"v"], idle, 0))
    until(lambda: known(wire, name, idle), lambda found: not found, "a younger one is forgotten")
    assert producers(wire, name)[who.producer_id].current_txn_start_offset == 0
    ended(wire, name, who, False)


def test_old_data_does_not_expire_its_producer(module_wire: Wire, module_server: Server, name: str) -> None:
    """DIFFERS: Kafka goes by the records' timestamps: who loads old data is forgotten between two batches."""
    wire = module_wire
    wire.create_topic(name)
    who, other = wire.session(), wire.session()
    wire.produce(name, batch([b"v"], who, 0, timestamp=LONG_AGO))
    if isinstance(module_server, OncelogCluster):
        wire.produce(name, batch([b"v"], other, 0))
        assert known(wire, name, who)
        until(lambda: known(wire, name, who), lambda found: not found, "it is forgotten in its time")
    else:
        until(lambda: known(wire, name, who), lambda found: not found, "it is forgotten at once")


def test_delete_records_takes_the_records_and_leaves_the_producer(wire: Wire, name: str) -> None:
    """KIP-360: retries of what is deleted are recognised, and a hole is one still."""
    wire.create_topic(name)
    who = wire.session()
    for sequence in range(3):
        wire.produce(name, batch([b"v"], who, sequence))
    partitions = [DeleteRecordsPartition(partition_index=0, offset=3)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=partitions)], timeout_ms=10_000)
    assert not wire.call(request).topics[0].partitions[0].error_code
    assert wire.offset(name, -2) == 3
    assert producers(wire, name)[who.producer_id].last_sequence == 2
    assert wire.produce(name, batch([b"v"], who, 1)).base_offset == 1
    assert wire.produce(name, batch([b"v"], who, 5)).error_code == OUT_OF_ORDER
    assert wire.produce(name, batch([b"v"], who, 3)).base_offset == 3
