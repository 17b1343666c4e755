"""Compaction (`cleanup.policy=compact`): the last record of each key is kept at its offset; all others may be
removed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID

import pytest

from oncelog.protocol.compression import Codec
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.records import BatchHeader, Record, build_batch, decode_records, iter_batches
from support.groups import offsets_of, simple_commit
from support.servers import Server
from support.wire import Session, Wire, code, retried, until

SETTINGS = {"log.cleaner.backoff.ms": "20"}
COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "internal_segment_bytes": "700"}
FILLER = b"~"
Pair = tuple[bytes, bytes | None]
Row = tuple[int, bytes | None, bytes | None]
T = TypeVar("T")


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    """Connect to a server whose cleaner hardly pauses."""
    return module_wire


def keyed(
    pairs: Iterable[Pair],
    who: Session | None = None,
    sequence: int = 0,
    *,
    codec: Codec = Codec.NONE,
    transactional: bool = False,
    timestamp: int | None = None,
) -> bytearray:
    now = int(time.time() * 1000) if timestamp is None else timestamp
    records = [Record(0, now, key, value, (("h", key),)) for key, value in pairs]
    producer = who or Session(-1, -1)
    return build_batch(
        records,
        codec=codec,
        transactional=transactional,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence if who else -1,
    )


def write(wire: Wire, topic: str, *pairs: Pair, who: Session | None = None, **more: object) -> int:
    """Produce one batch, and return its first offset."""
    records = keyed(pairs, who, **more)  # type: ignore[arg-type]
    answer = retried(lambda: wire.produce(topic, records))
    assert not answer.error_code, answer
    offset: int = answer.base_offset
    return offset


def transact(
    wire: Wire, topic: str, txn_id: str, who: Session, pairs: list[Pair], commit: bool, sequence: int = 0
) -> None:
    """Run one transaction with one batch, and wait until its marker is in the log."""
    assert wire.add_partitions(txn_id, who, topic) == [0]
    one = keyed(pairs, who, sequence, transactional=True)
    assert not retried(lambda: wire.produce(topic, one, transactional_id=txn_id)).error_code
    assert not wire.end(txn_id, who, commit).error_code
    until(lambda: wire.offset(topic, committed=True), lambda end: end == wire.offset(topic), "the marker is written")


def roll(wire: Wire, topic: str) -> None:
    """Write two segments of filler records, so that no earlier record is in the active segment."""
    for _ in range(2):
        write(wire, topic, (FILLER, bytes(600)))


def batches(wire: Wire, topic_id: UUID, start: int = 0) -> list[tuple[BatchHeader, list[Record]]]:
    """Return every batch from `start` on as stored in the log."""
    offset = start
    found: list[tuple[BatchHeader, list[Record]]] = []
    while True:
        answer = wire.fetch(topic_id, offset=offset)
        assert not answer.error_code, answer
        before = len(found)
        for header, view in iter_batches(answer.records or b""):
            if header.last_offset >= offset:
                found.append((header, decode_records(view)))
        if len(found) == before:
            return found
        offset = found[-1][0].next_offset


def rows(wire: Wire, topic_id: UUID, start: int = 0) -> list[Row]:
    """Return (offset, key, value) of every data record except the fillers."""
    return [
        (record.offset, record.key, record.value)
        for header, records in batches(wire, topic_id, start)
        if not header.is_control
        for record in records
        if record.key != FILLER
    ]


def keys_once(found: list[Row]) -> bool:
    return len({key for _, key, _ in found}) == len(found)


def compacting(wire: Wire, topic: str, ask: Callable[[], T]) -> Callable[[], T]:
    """Call `look`, and write a record to make the cleaner process the topic again.

    Tombstones are removed in the next round.
    """
    turns = itertools.count()

    def turn() -> T:
        if next(turns) % 5 == 4:
            write(wire, topic, (FILLER, bytes(600)))
        return ask()

    return turn


def test_last_record_of_each_key_keeps_its_offset(wire: Wire, name: str) -> None:
    """A small version of Kafka's LogCompactionTester: every codec, several keys in a batch, keys in several
    segments.
    """
    topic_id = wire.create_topic(name, **COMPACTED)
    last: dict[bytes, tuple[int, bytes | None]] = {}
    for turn in range(60):
        pairs = [(b"k%d" % ((turn * 7 + each) % 11), b"v%d-%d" % (turn, each)) for each in range(1 + turn % 4)]
        first = write(wire, name, *pairs, codec=Codec(turn % 5))
        last.update({key: (first + each, value) for each, (key, value) in enumerate(pairs)})
    roll(wire, name)
    end = wire.offset(name)
    found = until(lambda: rows(wire, topic_id), keys_once, "each key once")
    assert {key: (offset, value) for offset, key, value in found} == last
    assert wire.offset(name) == end
    left = [header for header, _ in batches(wire, topic_id)]
    assert all(one.next_offset <= other.base_offset for one, other in itertools.pairwise(left))
    # A reader may start at an offset whose record was removed.
    answer = wire.fetch(topic_id, offset=1)
    assert not answer.error_code
    assert next(iter_batches(answer.records))[0].last_offset >= 1
    headers = {record.headers for _, records in batches(wire, topic_id) for record in records}
    assert headers == {(("h", key),) for key in [*last, FILLER]}


def test_tombstone_is_removed_after_its_retention(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, **COMPACTED, delete_retention_ms="0")
    write(wire, name, (b"a", b"1"), (b"b", b"1"))
    write(wire, name, (b"a", None), (b"c", b"1"))
    roll(wire, name)
    found = until(compacting(wire, name, lambda: rows(wire, topic_id)), lambda got: len(got) == 2, "no tombstone")
    assert found == [(1, b"b", b"1"), (3, b"c", b"1")]


def test_tombstone_keeps_its_delete_horizon(wire: Wire, name: str) -> None:
    """KIP-534: the time of removal counts from the first compaction that saw the tombstone, and is stored in the
    batch.
    """
    topic_id = wire.create_topic(name, **COMPACTED, delete_retention_ms="3600000")
    before = int(time.time() * 1000)
    write(wire, name, (b"a", b"1"), timestamp=before - 7200_000)
    write(wire, name, (b"a", None), (b"c", b"1"), timestamp=before - 7200_000)
    roll(wire, name)
    found = until(lambda: rows(wire, topic_id), lambda got: len(got) == 2, "the value is removed")
    assert found == [(1, b"a", None), (2, b"c", b"1")]
    header, records = next((h, r) for h, r in batches(wire, topic_id) if h.base_offset == 1)
    assert header.delete_horizon_ms is not None
    assert before + 3600_000 <= header.delete_horizon_ms <= int(time.time() * 1000) + 3600_000
    assert [record.timestamp for record in records] == [before - 7200_000] * 2


def test_records_of_aborted_transactions_are_removed_whatever_their_keys(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, **COMPACTED, delete_retention_ms="0")
    write(wire, name, (b"a", b"kept"))
    for commit in (False, True):
        txn_id = f"{name}-{commit}"
        who = wire.session(txn_id)
        key = b"b" if commit else b"a"
        transact(wire, name, txn_id, who, [(key, b"%d" % commit)], commit)
    roll(wire, name)

    def gone(found: list[Row]) -> bool:
        return not any(value == b"0" for _, _, value in found)

    found = until(compacting(wire, name, lambda: rows(wire, topic_id)), gone, "the aborted record is removed")
    assert found == [(0, b"a", b"kept"), (3, b"b", b"1")]
    assert wire.values(topic_id, committed=True)[:2] == [b"kept", b"1"]
    # Both producers still have state, so the aborted batch is kept as a header, and so is its marker (KAFKA-14055).
    empty = [header for header, records in batches(wire, topic_id) if header.base_offset == 1 and not records]
    assert [(header.is_transactional, header.base_sequence) for header in empty] == [(True, 0)]
    assert sum(header.is_control for header, records in batches(wire, topic_id) if records) == 2


def test_marker_is_removed_after_its_data(wire: Wire, name: str) -> None:
    """The producer continues to write, so nothing of its first transactions has to be kept."""
    topic_id = wire.create_topic(name, **COMPACTED, delete_retention_ms="0")
    who = wire.session(name)
    for sequence, commit in enumerate((True, False, True)):
        transact(wire, name, name, who, [(b"a", b"%d" % sequence)], commit, sequence)
    roll(wire, name)

    def left() -> list[int]:
        return [header.base_offset for header, records in batches(wire, topic_id) if header.is_control and records]

    assert until(compacting(wire, name, left), lambda got: got == [5], "one marker is left") == [5]
    assert rows(wire, topic_id) == [(4, b"a", b"2")]


def test_records_after_an_open_transaction_are_not_compacted(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, **COMPACTED)
    for value in (b"1", b"2"):
        write(wire, name, (b"a", value))
    roll(wire, name)
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == [0]
    one = keyed([(b"open", b"0")], who, transactional=True)
    assert not retried(lambda: wire.produce(name, one, transactional_id=name)).error_code
    for value in (b"1", b"2"):
        write(wire, name, (b"b", value))
    roll(wire, name)
    found = until(
        lambda: rows(wire, topic_id), lambda got: got[0][0] == 1, "the records before the transaction are compacted"
    )
    # The segment in which the transaction starts is not changed, including the records before the transaction.
    assert [value for _, key, value in found if key == b"b"] == [b"1", b"2"]
    assert not wire.end(name, who, True).error_code
    roll(wire, name)
    until(lambda: rows(wire, topic_id), keys_once, "the rest is compacted")


def test_last_batch_of_a_producer_is_kept_for_its_sequence(
    start_server: Callable[[dict[str, str]], Server], name: str
) -> None:
    """After compaction and a crash, the retry is recognized, the gap is rejected, and the next batch is accepted."""
    server = start_server(SETTINGS)
    with Wire(server.bootstrap) as wire:
        topic_id = wire.create_topic(name, **COMPACTED)
        who = wire.session()
        for sequence in range(0, 6, 2):
            write(wire, name, (b"a", b"1"), (b"b", b"1"), who=who, sequence=sequence)
        write(wire, name, (b"a", b"other"), (b"b", b"other"))
        roll(wire, name)
        until(lambda: rows(wire, topic_id), keys_once, "each key once")
        mine = [(h, r) for h, r in batches(wire, topic_id) if h.producer_id == who.producer_id]
        assert [(h.base_offset, h.last_offset, h.base_sequence, h.last_sequence, r) for h, r in mine] == [
            (4, 5, 4, 5, [])
        ]
    server.kill()
    server.wait_ready()
    again = keyed([(b"a", b"1"), (b"b", b"1")], who, 4)
    with Wire(server.bootstrap) as wire:
        assert retried(lambda: wire.produce(name, again)).base_offset == 4
        gap = wire.produce(name, keyed([(b"a", b"1")], who, 7))
        assert gap.error_code == code("OUT_OF_ORDER_SEQUENCE_NUMBER")
        assert [value for _, _, value in rows(wire, topic_id)] == [b"other", b"other"]
        assert not wire.produce(name, keyed([(b"a", b"2")], who, 6)).error_code


def test_records_younger_than_min_compaction_lag_are_kept(wire: Wire, name: str) -> None:
    later = f"{name}-later"
    ids = [
        wire.create_topic(name, **COMPACTED, min_compaction_lag_ms="3600000"),
        wire.create_topic(later, **COMPACTED),
    ]
    for topic in (name, later):
        for value in (b"1", b"2"):
            write(wire, topic, (b"a", value))
        roll(wire, topic)
    until(lambda: rows(wire, ids[1]), keys_once, "the topic without a lag is compacted")
    assert len(rows(wire, ids[0])) == 2


def test_max_compaction_lag_ignores_the_dirty_ratio(wire: Wire, name: str) -> None:
    """The cleaner also rolls the active segment at the next append."""
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "1", "max_compaction_lag_ms": "1000"}
    topic_id = wire.create_topic(name, **settings)
    for turn in range(3):
        write(wire, name, (b"a", b"%d" % turn), timestamp=int(time.time() * 1000) - 5000 + 2000 * turn)
    found = until(compacting(wire, name, lambda: rows(wire, topic_id)), lambda got: len(got) == 1, "compacted")
    assert found == [(2, b"a", b"2")]


def test_record_without_a_key_is_rejected(wire: Wire, name: str) -> None:
    wire.create_topic(name, **COMPACTED)
    answer = wire.produce(name, build_batch([Record(0, int(time.time() * 1000), None, b"v")]))
    assert answer.error_code == code("INVALID_RECORD")


def test_compact_and_delete_does_both(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, **{**COMPACTED, "cleanup_policy": "compact,delete"}, retention_ms="3600000")
    old = int(time.time() * 1000) - 7200_000
    write(wire, name, (b"old", bytes(600)), timestamp=old)
    write(wire, name, (b"older", bytes(600)), timestamp=old)
    for value in (b"1", b"2"):
        write(wire, name, (b"a", value))
    roll(wire, name)
    until(lambda: wire.offset(name, -2), lambda start: start == 2, "the old records are removed")
    found = until(lambda: rows(wire, topic_id, 2), lambda got: len(got) == 1, "the key has one record")
    assert found == [(3, b"a", b"2")]


def test_long_history_of_the_coordinators_is_compacted(
    start_server: Callable[[dict[str, str]], Server], name: str
) -> None:
    """`__consumer_offsets` and `__transaction_state` are compacted: a restart reads only the current values."""
    settings = {
        **SETTINGS,
        "log.cleaner.min.cleanable.ratio": "0.01",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.segment.bytes": str(1 << 20),
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.segment.bytes": str(1 << 20),
    }
    txn_id = name + "x" * 30_000
    server = start_server(settings)
    with Wire(server.bootstrap) as wire:
        wire.create_topic(name)
        wire.find_coordinator(name, 0)
        for offset in range(600):
            simple_commit(wire, name, name, {0: offset}, metadata="m" * 4000)
        for epoch in range(80):
            assert wire.session(txn_id).epoch == epoch
        for topic, most in (("__consumer_offsets", 300), ("__transaction_state", 50)):
            info = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12).topics[0]
            until(
                lambda info=info: len(batches(wire, info.topic_id)), lambda left, m=most: left < m, f"{topic} is short"
            )
            assert wire.offset(topic) >= 80
    server.kill()
    server.wait_ready()
    with Wire(server.bootstrap) as wire:
        wire.find_coordinator(name, 0)
        assert until(lambda: offsets_of(wire, name), bool, "the offsets are loaded") == {(name, 0): 599}
        assert wire.session(txn_id).epoch == 80
