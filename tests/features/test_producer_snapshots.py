"""I10: producer state survives restarts, through snapshots (at rolls and at a clean stop) and the log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

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
INVALID_EPOCH = code("INVALID_PRODUCER_EPOCH")
BIG = os.urandom(600_000)
DAMAGE = ("flipped bit", "cut off", "emptied")


def snapshots(server: Server, topic: str) -> list[int]:
    """Return the offsets of the partition's snapshot files."""
    return sorted(int(path.stem) for path in server.partition_dir(topic).glob("*.snapshot"))


def newest(server: Server, topic: str) -> Path:
    return max(server.partition_dir(topic).glob("*.snapshot"))


def test_snapshot_is_written_when_a_segment_rolls(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name, segment_bytes=str(1 << 20))
    who = wire.session()
    for sequence in range(4):
        assert wire.produce(name, batch([BIG], who, sequence)).base_offset == sequence
    assert snapshots(server, name) == [1, 2, 3]
    assert wire.produce(name, batch([BIG], who, 1)).base_offset == 1, (
        "producer state in memory is not reduced to the last batch"
    )


# -- a clean stop ------------------------------------------------------------------------------------------------------


class Restarted(NamedTuple):
    """A server after a clean stop and a start, and the producers that wrote before."""

    bootstrap: str
    known: str
    snapshots: list[int]
    who: Session
    other: Session
    opened: str
    opened_id: UUID
    transaction: Session
    damaged: dict[str, str]


@pytest.fixture(scope="module")
def restarted(module_server: Any) -> Restarted:
    """Restart once for all tests that check the result. Each test has its own topic."""
    names = iter(f"t-{uuid4().hex[:12]}" for _ in range(9))
    known, opened = next(names), next(names)
    with Wire(module_server.bootstrap) as wire:
        who, other = wire.session(), wire.session()
        wire.create_topic(known)
        for sequence in range(5):
            wire.produce(known, batch([b"v"], who, sequence))
        wire.produce(known, batch([b"v"] * 3, Session(other.producer_id, 4), 0))
        opened_id = wire.create_topic(opened)
        transaction = wire.session(opened)
        wire.produce(opened, batch([b"plain"]))
        written(wire, opened, transaction, opened, [b"a"])
        damaged = {damage: next(names) for damage in DAMAGE}
        for topic in damaged.values():
            wire.create_topic(topic)
            for sequence in range(6):
                wire.produce(topic, batch([b"v"], who, sequence))
    module_server.stop()
    offsets = snapshots(module_server, known)
    for damage, topic in damaged.items():
        path = newest(module_server, topic)
        data = bytearray(path.read_bytes())
        data[12] ^= 4
        path.write_bytes({"flipped bit": data, "cut off": data[:-3], "emptied": b""}[damage])
    module_server.start()
    with Wire(module_server.bootstrap) as wire:
        for topic in (known, opened, *damaged.values()):
            wire.leaders_serve(topic)
    return Restarted(module_server.bootstrap, known, offsets, who, other, opened, opened_id, transaction, damaged)


def test_clean_stop_stores_each_producers_last_batches(restarted: Restarted, module_server: Server) -> None:
    """DIFFERS: Kafka stores the last batch only. It rejects the retry of an earlier one, which it has written, too."""
    assert restarted.snapshots == [8]
    topic, who, other = restarted.known, restarted.who, Session(restarted.other.producer_id, 4)
    with Wire(restarted.bootstrap) as wire:
        known = producers(wire, topic)
        assert (known[who.producer_id].last_sequence, known[other.producer_id].last_sequence) == (4, 2)
        assert known[other.producer_id].producer_epoch == 4
        assert wire.produce(topic, batch([b"v"], who, 4)).base_offset == 4
        assert wire.produce(topic, batch([b"v"] * 3, other, 0)).base_offset == 5
        assert wire.produce(topic, batch([b"v"], restarted.other, 3)).error_code == INVALID_EPOCH
        earlier = [wire.produce(topic, batch([b"v"], who, sequence)) for sequence in range(4)]
        if isinstance(module_server, OncelogCluster):
            assert [each.base_offset for each in earlier] == [0, 1, 2, 3]
        else:
            assert [each.error_code for each in earlier] == [OUT_OF_ORDER] * 4
        assert wire.produce(topic, batch([b"v"], who, 6)).error_code == OUT_OF_ORDER
        assert wire.produce(topic, batch([b"v"], who, 5)).base_offset == 8


def test_open_transaction_survives_in_the_snapshot(restarted: Restarted) -> None:
    topic, who = restarted.opened, restarted.transaction
    with Wire(restarted.bootstrap) as wire:
        wire.find_coordinator(topic)
        assert producers(wire, topic)[who.producer_id].current_txn_start_offset == 1
        assert wire.offset(topic, committed=True) == 1, "it holds the last stable offset"
        written(wire, topic, who, topic, [b"b"], 1)
        ended(wire, topic, who)
        expected = [b"plain", b"a", b"b"]
        until(lambda: wire.values(restarted.opened_id, committed=True), lambda found: found == expected, "committed")


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_snapshot_is_skipped(restarted: Restarted, damage: str) -> None:
    """The state is recovered from the previous snapshot (or from the start) and the records after it."""
    topic, who = restarted.damaged[damage], restarted.who
    with Wire(restarted.bootstrap) as wire:
        offsets = [wire.produce(topic, batch([b"v"], who, sequence)).base_offset for sequence in range(1, 7)]
        assert offsets == [1, 2, 3, 4, 5, 6]
        assert wire.produce(topic, batch([b"v"], who, 9)).error_code == OUT_OF_ORDER


# -- a crash -----------------------------------------------------------------------------------------------------------


def test_recovery_uses_the_newest_snapshot_and_the_records_after_it(own_server: Server, name: str) -> None:
    """Sequences are stored in the log: every batch of a producer that wrote after the snapshot is recognized. Recovery
    does not validate these batches, although they start in the middle of the sequences.

    DIFFERS: Kafka also reads them again, but then loads the snapshot that it has just written: only the last batch.
    """
    middle = f"{name}-middle"
    with Wire(own_server.bootstrap) as wire:
        wire.create_topic(name, segment_bytes=str(1 << 20))
        wire.create_topic(middle)
        early, late = wire.session(), wire.session()
        for sequence in range(3):
            wire.produce(name, batch([b"v"], early, sequence))
        for _ in range(2):
            wire.produce(name, batch([BIG]))
        for sequence in range(3):
            wire.produce(name, batch([b"v"], late, sequence))
        assert wire.produce(middle, batch([b"v"], early, 100)).base_offset == 0
        newer = Session(early.producer_id, 7)
        assert wire.produce(middle, batch([b"v"], newer, 0)).base_offset == 1
    assert snapshots(own_server, name) == [4]
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        wire.leaders_serve(name)
        wire.leaders_serve(middle)
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
        assert wire.produce(middle, batch([b"v"], early, 101)).error_code == INVALID_EPOCH
        assert wire.produce(middle, batch([b"v"], newer, 0)).base_offset == 1
        assert wire.produce(middle, batch([b"v"], newer, 1)).base_offset == 2


# -- deleted records ---------------------------------------------------------------------------------------------------


def test_delete_records_keeps_producer_state(wire: Wire, name: str) -> None:
    """KIP-360: retries of deleted batches are recognized, and a gap is still a gap."""
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
