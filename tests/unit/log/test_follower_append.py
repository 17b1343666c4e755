"""A follower's log: batches are appended as they are, and truncation restores the state before them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.log.recovery import Holes
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import Record, build_batch, iter_batches
from support.crashdisk import CrashDisk
from support.logs import NOW, append, batch, end_txn, follow, new_log, of_producer, open_log, restart_at, values

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)


def everything(log: Log, start: int | None = None) -> bytes:
    """Return all batches of a log."""
    found, offset = b"", log.log_start_offset if start is None else start
    while offset < log.log_end_offset:
        data = bytes(log.read(offset, 1 << 20, upto=log.log_end_offset, at_least_one=True))
        found += data
        offset = list(iter_batches(data))[-1][0].next_offset
    return found


def state(log: Log) -> Any:
    """Return what followers and leader must have in common. A snapshot has another timestamp for the last batch."""
    producers = {
        entry.producer_id: (entry.epoch, entry.coordinator_epoch, entry.txn_start, [each[:3] for each in entry.batches])
        for entry in log.producer_entries.values()
    }
    aborted = log.segments.aborted_between(log.log_start_offset, log.log_end_offset)
    return log.log_end_offset, log.leader_epoch, producers, aborted


def filled(steps: list[tuple[int, int]], config: LogConfig = CONFIG) -> Log:
    """Return a leader's log. Each step is (kind, producer): a batch outside or in a transaction, or a marker."""
    log = new_log(config)[1]
    sequences = dict.fromkeys(range(1, 4), 0)
    is_open: set[int] = set()
    for epoch, (kind, producer) in enumerate(steps):
        options = {"leader_epoch": epoch // 4}
        if kind == 0:
            append(log, batch(2), **options)
        elif kind == 1:
            append(log, of_producer(producer, sequences[producer], 2, txn=True), **options)
            sequences[producer] += 2
            is_open.add(producer)
        elif producer in is_open:
            end_txn(log, producer, commit=kind == 2, **options)
            is_open.remove(producer)
    return log


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=24)


@given(STEPS, st.data())
@settings(max_examples=25, deadline=None)
def test_follower_has_the_leaders_bytes_producers_and_aborted_transactions(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    leader = filled(steps)
    records = everything(leader)
    ends = [0]
    for header, _ in iter_batches(records):
        ends.append(ends[-1] + header.size)
    cuts = sorted({0, len(records), *data.draw(st.lists(st.sampled_from(ends), max_size=4))})
    disk, log = new_log(CONFIG)
    for start, end in pairwise(cuts):
        follow(log, records[start:end])
    assert everything(log) == records
    assert state(log) == state(leader)
    assert [log.end_offset_for_epoch(e) for e in range(8)] == [leader.end_offset_for_epoch(e) for e in range(8)]
    disk.kill()
    assert state(open_log(disk, CONFIG)) == state(leader)


@given(STEPS, st.data())
@settings(max_examples=25, deadline=None)
def test_truncation_restores_the_state_before_the_offset(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    leader = filled(steps)
    records = everything(leader)
    headers = [header for header, _ in iter_batches(records)]
    if not headers:
        return
    offset = data.draw(st.sampled_from([header.base_offset for header in headers]))
    size = sum(header.size for header in headers if header.base_offset < offset)
    short, long = new_log(CONFIG)[1], new_log(CONFIG)[1]
    follow(short, records[:size])
    follow(long, records)
    long.advance_high_watermark(long.log_end_offset)
    long.truncate_to(offset, NOW)
    assert state(long)[0] == offset
    assert (everything(long), state(long)) == (everything(short), state(short))
    follow(long, records[size:])
    assert (everything(long), state(long)) == (records, state(leader))


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda data: data[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),  # the CRC is wrong
        (lambda data: data + batch(base_offset=2, leader_epoch=1), ErrorCode.CORRUPT_MESSAGE),  # overlaps
        (lambda data: data + batch(base_offset=9, leader_epoch=0), ErrorCode.CORRUPT_MESSAGE),  # an older epoch
        (lambda data: data + batch(base_offset=9, leader_epoch=3), ErrorCode.CORRUPT_MESSAGE),  # after the leader's
    ],
)
def test_if_one_batch_is_rejected_none_is_appended(damage: Any, code: ErrorCode) -> None:
    _, log = new_log()
    data = bytes(batch(2, leader_epoch=1) + batch(2, base_offset=2, leader_epoch=1))
    with pytest.raises(ProtocolError) as error:
        follow(log, damage(data), 2)
    assert (error.value.code, log.log_end_offset, log.leader_epoch) == (code, 0, None)


def test_incomplete_batch_at_the_end_is_dropped() -> None:
    _, log = new_log()
    follow(log, bytes(batch(2) + batch(2, base_offset=2))[:-3])
    assert log.log_end_offset == 2
    follow(log, b"")
    assert log.log_end_offset == 2


def test_response_larger_than_a_segment_is_split() -> None:
    _, log = new_log(CONFIG)
    follow(log, bytes(b"".join(batch(base_offset=base, value=b"%d" % base * 50) for base in range(20))))
    assert len(log.segments) > 2
    assert all(segment.size <= CONFIG.segment_bytes for segment in log.segments)
    assert len(values(log, upto=20)) == 20


def test_segment_begins_where_the_one_before_ends_although_the_leader_has_compacted_the_next_records() -> None:
    """Recovery takes a hole between two segments for a lost segment."""
    log = new_log(config := LogConfig(segment_bytes=600, compact=True))[1]
    leader = new_log(LogConfig())[1]
    while len(log.segments) < 3:
        for _ in range(3):
            last = append(leader, batch())
        follow(log, everything(leader, last.first_offset))
    ends = [segment.next_offset() for segment in log.segments]
    assert [segment.base_offset for segment in log.segments] == [0, *ends[:-1]]
    log, gap = new_log(config)[1], 2**31  # the largest offset in a segment is 2**31 - 1 after the first
    follow(log, build_batch([Record(0, NOW, b"k", b"x" * 400)], base_offset=0, leader_epoch=0))
    follow(log, build_batch([Record(0, NOW, b"k", b"x" * 400)], base_offset=gap + 5, leader_epoch=0))
    assert [segment.base_offset for segment in log.segments] == [0, 6]


def test_segment_after_a_truncation_into_a_compacted_gap_begins_where_the_one_before_ends() -> None:
    disk, log = new_log(config := LogConfig(segment_bytes=250, compact=True))
    for offset in (0, 1, 9):
        follow(log, batch(base_offset=offset, leader_epoch=0))
    log.truncate_to(5, NOW)
    for offset in range(5, 9):
        follow(log, batch(base_offset=offset, leader_epoch=1, value=b"%d" % offset * 100))
    assert len(log.segments) > 2
    disk.kill()
    again = open_log(disk, config, holes=Holes.DROP)
    assert everything(again) == everything(log)


def test_truncation_ends_at_the_start_of_a_batch() -> None:
    _, log = new_log()
    follow(log, bytes(batch(3) + batch(4, base_offset=3)))
    log.truncate_to(5, NOW)
    assert log.log_end_offset == 3


def test_truncation_and_the_end_of_a_term_end_verifications() -> None:
    _, log = new_log()
    append(log, batch(2))
    for end in (lambda: log.truncate_to(1, NOW), log.void_verifications):
        guard = log.start_verification(7, 0, 0, transaction_version=2, now_ms=NOW)
        end()
        with pytest.raises(ProtocolError) as error:
            append(log, of_producer(7, 0, txn=True), guard=guard)
        assert error.value.code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("records", [0, 5])
def test_full_truncation_starts_at_the_leaders_log_start(records: int) -> None:
    disk, log = new_log(CONFIG)
    for sequence in range(records):
        append(log, of_producer(1, sequence, value=b"x" * 200))
    restart_at(log, 100, NOW)
    found = (log.log_start_offset, log.log_end_offset, log.high_watermark, log.leader_epoch, len(log.producer_entries))
    assert found == (100, 100, 100, None, 0)
    follow(log, bytes(batch(2, base_offset=100, leader_epoch=4)), 4)
    assert (log.log_end_offset, log.leader_epoch, log.epoch_at(100)) == (102, 4, 4)
    disk.kill()
    again = open_log(disk, CONFIG, log_start_offset=100)
    assert (again.log_start_offset, again.log_end_offset, again.leader_epoch) == (100, 102, 4)


def test_epochs_are_those_of_the_batches_that_a_crash_has_left() -> None:
    """A crash of the machine may undo a truncation, and keep the epoch file that was written after it."""
    disk, log = new_log()
    follow(log, bytes(batch(leader_epoch=0) + batch(5, base_offset=1, leader_epoch=1)))
    log.flush()
    log.truncate_to(1, NOW)
    follow(log, bytes(batch(5, base_offset=1, leader_epoch=3)))
    epochs = next(path for path in disk.files if path.endswith("leader-epoch-checkpoint"))
    disk.sync(epochs)
    disk.crash(lambda low, _high: low)
    again: Log = open_log(disk, recovery_point=log.recovery_point)
    assert (again.log_end_offset, again.leader_epoch) == (6, 1)


def test_an_empty_response_of_a_new_replica_creates_no_file() -> None:
    disk = CrashDisk()
    log = open_log(disk)
    follow(log, b"")
    assert not log.has_files


@pytest.mark.parametrize("own", [9, 10])
def test_log_begins_at_the_start_of_the_batch_that_the_leaders_log_start_is_in(own: int) -> None:
    """The leader's log starts at 10, inside a batch. The follower is empty, or has another leader's record at 9."""
    _, log = new_log()
    restart_at(log, own, NOW)
    if own == 9:
        follow(log, batch(base_offset=9, leader_epoch=2))
    corrupt = batch(4, base_offset=9, leader_epoch=4)
    corrupt[-1] ^= 1
    with pytest.raises(ProtocolError):
        follow(log, corrupt)
    assert log.log_end_offset == 10
    follow(log, batch(4, base_offset=9, leader_epoch=4))
    assert (log.log_start_offset, log.log_end_offset, log.leader_epoch) == (own, 13, 4)
    assert log.log_start_offset <= log.high_watermark
    assert [header.partition_leader_epoch for header, _ in iter_batches(everything(log))] == [4]


def test_transaction_is_unstable_after_a_restart_until_its_marker_is_committed() -> None:
    """A producer snapshot after the marker does not contain the transaction."""
    disk, log = new_log()
    append(log, of_producer(1, 0, 3, txn=True))
    end_txn(log, 1, commit=False)
    append(log, batch())
    log.close()
    again = open_log(disk, clean=True, recovery_point=5, high_watermark=3)
    assert (again.high_watermark, again.last_stable_offset) == (3, 0)
    again.advance_high_watermark(4)
    assert again.last_stable_offset == 4
    assert open_log(disk, clean=True, recovery_point=5, high_watermark=99).high_watermark == 5


def test_transaction_is_unstable_after_a_truncation_until_its_marker_is_committed() -> None:
    _, log = new_log()
    log.append_as_leader(of_producer(1, 0, 3, txn=True), leader_epoch=0, now_ms=NOW)
    log.advance_high_watermark(2)
    marker = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, "transaction_version": 0}
    log.append_control(False, leader_epoch=0, now_ms=NOW, **marker)
    log.roll(NOW)
    log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)
    log.truncate_to(4, NOW)
    log.advance_high_watermark(3)
    assert log.last_stable_offset == 0
