"""Single rounds of compaction; `tests/properties/test_compaction.py` tests long sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oncelog.log.cleaning.clean import Cleaning
from oncelog.log.cleaning.offsets import OffsetMap
from oncelog.log.cleaning.plan import SEGMENTS_A_GROUP, group_segments, make_plan
from oncelog.log.cleaning.reading import CHUNK
from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.protocol.compression import Codec
from oncelog.protocol.records import LOG_APPEND_TIME, LOSSLESS, Record, build_batch, decode_records
from support.cleaning import COMPACT, batches, clean, committed, filled, put, rows
from support.crashdisk import CrashDisk
from support.logs import FOLDER, NOW, append, end_txn, new_log, open_log

# --- kept records ---


@pytest.mark.parametrize("codec", list(Codec))
def test_partly_kept_batch_keeps_its_codec_times_and_offsets(codec: Codec) -> None:
    disk, log = new_log(COMPACT)
    records = [Record(0, NOW + 10 - each, b"k%d" % each, bytes(30) + b"%d" % each) for each in range(4)]
    append(log, build_batch(records, codec=codec, producer_id=7, producer_epoch=2, base_sequence=5))
    put(log, (b"k1", b"new"), (b"k3", b"new"))
    log.roll(NOW)
    clean(log, disk)
    header, left = batches(log)[0]
    assert (header.base_offset, header.last_offset, header.codec) == (0, 3, codec)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 5)
    assert [(r.offset, r.timestamp, r.key) for r in left] == [(0, NOW + 10, b"k0"), (2, NOW + 8, b"k2")]
    assert header.max_timestamp == NOW + 10
    assert header.delete_horizon_ms is None


def test_header_name_that_is_not_utf_8_keeps_its_bytes() -> None:
    disk, log = new_log(COMPACT)
    headers = (("\udcff", b"value"),)
    append(log, build_batch([Record(0, NOW, b"k0", b"", headers), Record(1, NOW, b"k1", b"")]))
    put(log, (b"k1", b"new"))
    log.roll(NOW)
    clean(log, disk)
    data = log.read(0, 1000, upto=2, at_least_one=True)
    assert data
    (left,) = decode_records(data, names=LOSSLESS)
    assert (left.key, left.headers) == (b"k0", headers)
    assert b"\x02\xff\x0avalue" in bytes(data)


def test_fully_kept_batch_is_copied_unchanged() -> None:
    disk, log = new_log(COMPACT)
    put(log, (b"a", b"1"), codec=Codec.GZIP, level=9)
    before = log.read(0, 1000, upto=1, at_least_one=True)
    put(log, (b"b", b"1"))
    log.roll(NOW)
    clean(log, disk)
    assert log.read(0, 1000, upto=1, at_least_one=True) == before


def test_append_time_is_kept() -> None:
    disk, log = new_log(LogConfig(segment_bytes=300, compact=True, delete=False, timestamp_type=LOG_APPEND_TIME))
    put(log, (b"a", b"1"), (b"b", None), now_ms=NOW + 5, timestamp=NOW)
    put(log, (b"a", b"2"), now_ms=NOW + 6)
    log.roll(NOW)
    clean(log, disk)
    header, left = batches(log)[0]
    assert (header.timestamp_type, header.max_timestamp) == (LOG_APPEND_TIME, NOW + 5)
    assert [(r.key, r.timestamp) for r in left] == [(b"b", NOW + 5)]
    assert header.delete_horizon_ms is not None


def test_tombstone_expires_after_the_first_round_that_sees_it() -> None:
    disk, log = new_log(COMPACT)
    put(log, (b"a", b"1"))
    put(log, (b"a", None), (b"b", b"1"))
    log.roll(NOW)
    clean(log, disk, now_ms=NOW + 5000)
    header, left = batches(log)[0]
    assert [(r.key, r.value) for r in left] == [(b"a", None), (b"b", b"1")]
    assert header.delete_horizon_ms == NOW + 6000
    assert [r.timestamp for r in left] == [NOW, NOW]
    for now_ms, count in ((NOW + 5999, 2), (NOW + 6000, 1)):
        put(log, (b"c", b"1"))
        log.roll(NOW)
        clean(log, disk, checkpoint=2, now_ms=now_ms)
        assert len([row for row in rows(log) if row[1] != b"c"]) == count


def test_last_batch_is_kept_empty_so_that_readers_reach_the_end() -> None:
    disk, log = new_log(COMPACT)
    put(log, (b"a", b"1"))
    put(log, (b"b", b"1"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end_txn(log, 1, commit=False, epoch=1, version=2)
    log.roll(NOW)
    for now_ms in (NOW, NOW + 1000, NOW + 2000):
        log.expire_producers(now_ms + 10**9)
        clean(log, disk, now_ms=now_ms)
    assert [(header.base_offset, len(records)) for header, records in batches(log)] == [(0, 1), (2, 0)]
    assert log.read(1, 100, upto=3, at_least_one=True)
    again = open_log(disk, COMPACT)
    assert (again.log_end_offset, rows(again)) == (3, rows(log))


def in_transaction(log: Log, key: bytes, *, commit: bool, epoch: int = 0, sequence: int = 0) -> None:
    put(log, (key, b"1"), producer_id=1, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    end_txn(log, 1, commit=commit, epoch=epoch + 1, version=2)


def clean_often(log: Log, disk: CrashDisk) -> None:
    """Run enough rounds to remove everything removable."""
    for turn in range(1, 5):
        put(log, (b"~", b"%d" % turn))
        log.roll(NOW)
        clean(log, disk, now_ms=NOW + turn * 2000)


def markers(log: Log) -> list[int]:
    return [header.base_offset for header, records in batches(log) if header.is_control and records]


def test_commit_marker_is_kept_as_long_as_a_record_of_the_transaction() -> None:
    """KAFKA-14055: whatever its key is."""
    disk, log = new_log(COMPACT)
    in_transaction(log, b"a", commit=True)
    in_transaction(log, b"b", commit=True, epoch=1)
    clean_often(log, disk)
    assert [offset for offset, key, _ in rows(log) if key != b"~"] == [0, 2]
    assert markers(log) == [1, 3]
    put(log, (b"a", b"2"))
    clean_often(log, disk)
    assert markers(log) == [3]


def test_abort_marker_is_kept_as_long_as_a_batch_of_the_transaction() -> None:
    """Here, the batch holds the producer's sequence. Readers get the transaction as aborted as long as it is kept."""
    disk, log = new_log(COMPACT)
    put(log, (b"a", b"1"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end_txn(log, 1, commit=False)
    clean_often(log, disk)
    assert (rows(log)[0][1], markers(log)) == (b"~", [1])
    assert log.aborted_transactions(0, log.log_end_offset) == [(1, 0)]
    log.expire_producers(NOW + 10**9)
    clean_often(log, disk)
    assert markers(log) == []
    assert log.aborted_transactions(0, log.log_end_offset) == []


def test_aborted_record_does_not_remove_a_committed_one() -> None:
    disk, log = new_log(COMPACT)
    put(log, (b"a", b"kept"))
    in_transaction(log, b"a", commit=False)
    clean_often(log, disk)
    assert rows(log)[0] == (0, b"a", b"kept")


def test_aborted_transaction_beyond_this_rounds_keys_stays_aborted() -> None:
    """The round ends within a segment when its memory is full. The segment is rewritten as a whole."""
    disk, log = new_log(COMPACT)
    put(log, (b"a", b"1"))
    put(log, (b"b", b"1"))
    in_transaction(log, b"c", commit=False)
    log.roll(NOW)
    assert clean(log, disk, max_keys=1).end == 1
    assert log.aborted_transactions(0, log.log_end_offset) == [(1, 2)]
    assert committed(log) == {b"a": b"1", b"b": b"1"}


def test_undecided_and_uncommitted_records_are_not_cleaned() -> None:
    disk, log = new_log(COMPACT)
    put(log, (b"a", b"1"))
    log.roll(NOW)
    put(log, (b"a", b"2"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    put(log, (b"a", b"3"))
    log.roll(NOW)
    assert make_plan(log, None, NOW).end == 1
    end_txn(log, 1, commit=True)
    assert make_plan(log, None, NOW).end == 3
    clean(log, disk)
    assert [offset for offset, _, _ in rows(log)] == [2]


def test_last_marker_of_a_producer_is_kept_for_its_epoch() -> None:
    """In transaction version 2, the marker bumps the epoch: a zombie of the previous one must stay fenced."""
    disk, log = new_log(COMPACT)
    in_transaction(log, b"a", commit=False)
    put(log, (b"a", b"2"))
    clean_often(log, disk)
    assert markers(log) == [1]
    for name in disk.listdir(FOLDER):
        if name.endswith(".snapshot"):
            disk.remove(f"{FOLDER}/{name}")
    again = open_log(disk, COMPACT)
    assert [(info.producer_id, info.producer_epoch) for info in again.producers()] == [(1, 1)]


def test_record_without_a_key_is_removed() -> None:
    """The record was written before the topic was compacted."""
    disk, log = new_log(LogConfig(segment_bytes=300))
    append(log, build_batch([Record(0, NOW, None, b"1"), Record(0, NOW, b"a", b"1")]))
    log.roll(NOW)
    log.config = COMPACT
    clean(log, disk)
    assert rows(log) == [(1, b"a", b"1")]


def test_small_memory_takes_several_rounds() -> None:
    disk, log = new_log(COMPACT)
    for turn in range(40):
        put(log, (b"k%d" % (turn % 10), b"%d" % turn), (b"a key that is longer %d" % (turn % 3), b"%d" % turn))
    log.roll(NOW)
    ends = [0]
    while ends[-1] < 80:
        ends.append(clean(log, disk, checkpoint=ends[-1] or None, max_keys=4).end)
    assert len(ends) > 3
    assert ends == sorted(set(ends))
    found = rows(log)
    assert len(found) == len({key for _, key, _ in found}) == 13


def test_large_batch_is_one_step_for_a_worker() -> None:
    disk, log = new_log(LogConfig(segment_bytes=1 << 20, compact=True, delete=False))
    put(log, (b"a", b"1"))
    put(log, (b"b", bytes(5 * CHUNK)))
    put(log, (b"a", b"2"))
    log.roll(NOW)
    steps = []
    for step in Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=10).run():
        steps.append((step.io_bytes > CHUNK, step.slow))
        step.run()
    assert (True, True) in steps
    assert (False, False) in steps
    assert [key for _, key, _ in rows(log)] == [b"b", b"a"]


def test_keys_of_any_length_are_distinguished() -> None:
    offsets = OffsetMap(100)
    keys = [b"x" * size for size in range(40)] + [b"y" * size for size in range(1, 40)]
    for offset, key in enumerate(keys):
        assert offsets.put(key, offset)
    assert [offsets.get(key) for key in keys] == list(range(len(keys)))
    assert offsets.get(b"z") == -1
    full = OffsetMap(1)
    assert full.put(b"a", 0)
    assert not full.put(b"b", 1)
    assert (len(full), full.latest) == (1, 0)


# --- what is cleaned ---


def test_dirty_part_of_a_log() -> None:
    _, log = filled()
    plan = make_plan(log, None, NOW)
    active = log.segments.active.base_offset
    assert (plan.first_dirty, plan.end, plan.clean_bytes) == (0, active, 0)
    assert plan.dirty_ratio == 1.0
    half = list(log.segments)[1].base_offset
    plan = make_plan(log, half, NOW)
    assert (plan.first_dirty, plan.end) == (half, active)
    assert plan.clean_bytes == next(iter(log.segments)).size
    assert plan.clean_bytes + plan.dirty_bytes == sum(each.size for each in list(log.segments)[:-1])
    assert make_plan(log, active, NOW).dirty_bytes == 0


def test_checkpoint_outside_the_log_is_ignored() -> None:
    _, log = filled()
    assert make_plan(log, 99, NOW).first_dirty == 0
    log.advance_log_start(5)
    assert make_plan(log, 3, NOW).first_dirty == 5


def test_min_and_max_compaction_lag() -> None:
    _, log = filled()
    second = list(log.segments)[1].base_offset
    log.config = replace(COMPACT, min_compaction_lag_ms=100)
    assert make_plan(log, None, NOW + 100 + second).end == second
    assert make_plan(log, None, NOW + 1000).end == log.segments.active.base_offset
    log.config = replace(COMPACT, max_compaction_lag_ms=100, min_cleanable_ratio=1.0)
    assert not make_plan(log, None, NOW + 100).is_due
    assert make_plan(log, None, NOW + 101).is_due
    assert not make_plan(log, log.segments.active.base_offset, NOW + 101).is_due


def test_segments_are_grouped_up_to_the_size_of_one() -> None:
    disk, log = filled(count=30)
    sizes = [segment.size for segment in log.segments][:-1]
    groups = group_segments(plan := make_plan(log, None, NOW), plan.end)
    assert [segment for group in groups for segment in group] == list(log.segments)[:-1]
    assert all(sum(segment.size for segment in group) <= COMPACT.segment_bytes for group in groups)
    assert len(groups) == len(sizes)
    clean(log, disk)
    log.config = replace(COMPACT, segment_bytes=1000)
    groups = group_segments(plan := make_plan(log, None, NOW), plan.end)
    assert len(groups) < len(sizes)
    assert all(sum(segment.size for segment in group) <= 1000 for group in groups)
    snapshots = [name for name in disk.listdir(FOLDER) if name.endswith(".snapshot")]
    clean(log, disk)
    left = [name for name in disk.listdir(FOLDER) if name.endswith(".snapshot")]
    assert set(left) < set(snapshots)


def test_step_of_a_round_replaces_few_segments() -> None:
    """Each segment has files to rename."""
    disk = CrashDisk()
    log = open_log(disk, replace(COMPACT, segment_bytes=100))
    for turn in range(3 * SEGMENTS_A_GROUP):
        put(log, (b"k%d" % (turn % 50), b"%d" % turn))
    log.reconfigure(replace(COMPACT, segment_bytes=100_000))
    log.roll(NOW)
    before = committed(log)
    left = len(log.segments)
    assert left > 3 * SEGMENTS_A_GROUP
    for step in Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=100).run():
        assert left - len(log.segments) < SEGMENTS_A_GROUP
        left = len(log.segments)
        step.run()
    assert len(log.segments) < 6
    assert committed(log) == before
