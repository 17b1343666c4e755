"""Producers and transactions of one partition's log, and its transaction index."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from oncelog.log.config import LogConfig
from oncelog.log.log import Origin
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import build_control_batch
from support.logs import FOLDER, NOW, append, batch, end_txn, follow, new_log, of_producer, open_log


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        call()
    return caught.value.code


# --- producers ---


def test_retry_gets_its_original_offset_and_timestamp() -> None:
    disk, log = new_log()
    append(log, of_producer(1, 0, 3, timestamp=NOW - 5))
    append(log, batch())
    append(log, of_producer(1, 3, 2))
    before = disk.operations
    result = append(log, of_producer(1, 0, 3, timestamp=NOW - 5))
    assert (result.first_offset, result.last_offset, result.append_time_ms, result.duplicate) == (0, 2, NOW - 5, True)
    assert (log.log_end_offset, disk.operations, log.statistics.duplicate_batches) == (6, before, 1)


def test_gaps_and_stale_sequences_are_counted_separately() -> None:
    _, log = new_log()
    for sequence in range(7):
        append(log, of_producer(1, sequence))
    for sequence in (8, 9, 0):
        assert code_of(lambda: append(log, of_producer(1, sequence))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # noqa: B023
    assert (log.statistics.sequence_gaps, log.statistics.stale_sequences) == (2, 1)
    assert log.log_end_offset == 7


def test_producers_are_described() -> None:
    _, log = new_log()
    append(log, of_producer(1, 0, 3, epoch=2, txn=True))
    (info,) = log.producers()
    assert tuple(info) == (1, 2, 2, NOW, -1, 0, ((2, 2, 2, NOW),))
    assert log.has_open_transaction(1, 2)
    assert not log.has_open_transaction(1, 3)
    assert code_of(lambda: log.has_open_transaction(1, 1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    end_txn(log, 1, epoch=2, commit=True)
    assert log.expire_producers(NOW + 24 * 3600 * 1000) == 1


# --- transactions ---


def test_last_stable_offset_waits_for_the_first_open_transaction() -> None:
    _, log = new_log()
    append(log, batch())
    append(log, of_producer(1, 0, 2, txn=True))
    append(log, of_producer(2, 0, txn=True))
    append(log, batch())
    assert log.last_stable_offset == 1
    end_txn(log, 2, commit=True)
    assert log.last_stable_offset == 1
    end_txn(log, 1, commit=False)
    assert log.last_stable_offset == log.log_end_offset == 7


def test_marker_above_the_high_watermark_holds_the_last_stable_offset() -> None:
    _, log = new_log()
    append(log, of_producer(1, 0, txn=True))
    log.append_control(
        True, producer_id=1, producer_epoch=0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW, transaction_version=0
    )
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 2


def test_aborted_transactions_of_a_range() -> None:
    _, log = new_log(LogConfig(segment_bytes=400))
    for producer_id in (1, 2, 3):
        append(log, of_producer(producer_id, 0, 2, txn=True))
    end_txn(log, 2, commit=False)
    for _ in range(10):
        append(log, batch())
    end_txn(log, 1, commit=True)
    end_txn(log, 3, commit=False)
    assert len(log.segments) > 3
    assert log.aborted_transactions(0, log.log_end_offset) == [(2, 2), (3, 4)]
    assert log.aborted_transactions(0, 4) == [(2, 2)]
    assert log.aborted_transactions(7, log.log_end_offset) == [(3, 4)]
    assert log.aborted_transactions(0, 2) == []


def test_transactional_batch_needs_a_transaction_that_the_coordinator_knows() -> None:
    """KAFKA-14402."""
    _, log = new_log()
    late = of_producer(1, 0, txn=True)
    assert code_of(lambda: append(log, late, verified=False)) == ErrorCode.INVALID_TXN_STATE
    append(log, of_producer(1, 0, txn=True))
    append(log, of_producer(1, 1, txn=True), verified=False)
    end_txn(log, 1, commit=False)
    assert code_of(lambda: append(log, of_producer(1, 2, txn=True), verified=False)) == ErrorCode.INVALID_TXN_STATE
    assert log.last_stable_offset == log.log_end_offset


def test_guard_is_invalid_after_a_marker() -> None:
    _, log = new_log()
    guard = log.start_verification(1, 0, 0, transaction_version=0, now_ms=NOW)
    end_txn(log, 1, commit=False)
    assert code_of(lambda: append(log, of_producer(1, 0, txn=True), guard=guard)) == ErrorCode.INVALID_TXN_STATE
    guard = log.start_verification(1, 0, 0, transaction_version=0, now_ms=NOW)
    append(log, of_producer(1, 0, txn=True), guard=guard)
    assert log.start_verification(1, 0, 1, transaction_version=0, now_ms=NOW) is None


def test_rejected_verifications_do_not_accumulate() -> None:
    _, log = new_log()
    tracemalloc.start()
    try:
        for producer_id in range(100_000):  # the coordinator rejects each of these producers
            last = log.start_verification(producer_id, 0, 0, transaction_version=0, now_ms=NOW)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5_000_000
    append(log, of_producer(99_999, 0, txn=True), guard=last)


def test_stale_epoch_is_reported_before_the_missing_transaction() -> None:
    """KAFKA-19690."""
    _, log = new_log()
    append(log, of_producer(1, 0, txn=True, epoch=3))
    end_txn(log, 1, commit=False, epoch=4, version=2)
    late = of_producer(1, 1, txn=True, epoch=3)
    assert code_of(lambda: append(log, late, verified=False)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_late_marker_is_rejected_and_nothing_is_written() -> None:
    """KIP-1228."""
    _, log = new_log()
    append(log, of_producer(1, 0, txn=True, epoch=3))
    end_txn(log, 1, commit=True, epoch=4, version=2)
    append(log, of_producer(1, 0, txn=True, epoch=4))
    end = log.log_end_offset
    assert code_of(lambda: end_txn(log, 1, commit=False, epoch=4, version=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (log.log_end_offset, log.last_stable_offset) == (end, end - 1)


def test_coordinators_batches_have_no_sequence() -> None:
    _, log = new_log()
    records = batch(2, producer_id=1, producer_epoch=5, transactional=True)
    append(log, records, origin=Origin.COORDINATOR)
    two = batch(1, producer_id=1, producer_epoch=5, transactional=True) + batch(1)
    assert append(log, two, origin=Origin.COORDINATOR).last_offset == 3
    assert log.last_stable_offset == 0


def test_markers_in_one_replicated_append_are_indexed_in_their_order() -> None:
    _, log = new_log()
    append(log, of_producer(1, 0, txn=True))
    append(log, of_producer(2, 0, txn=True))
    markers = [
        build_control_batch(
            False,
            producer_id=pid,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=NOW,
            base_offset=offset,
            leader_epoch=0,
        )
        for pid, offset in ((2, 3), (1, 4))
    ]
    records = of_producer(1, 1, txn=True, base_offset=2, leader_epoch=0) + markers[0] + markers[1]
    follow(log, records)
    entries = log.segments.active.txn_index.entries
    assert [(entry.producer_id, entry.last_offset, entry.last_stable_offset) for entry in entries] == [
        (2, 3, 0),
        (1, 4, 5),
    ]
    assert log.last_stable_offset == 5


def test_last_stable_offset_is_not_before_the_start() -> None:
    _, log = new_log()
    append(log, of_producer(1, 0, txn=True))
    append(log, batch(3))
    log.advance_log_start(2)
    assert log.last_stable_offset == 2


def test_file_of_aborted_transactions_grows_with_each_flush() -> None:
    disk, log = new_log()
    for sequence in range(3):
        append(log, of_producer(1, sequence, txn=True))
        end_txn(log, 1, commit=False)
        log.flush()
        assert disk.size(f"{FOLDER}/{0:020d}.txnindex") == 34 * (sequence + 1)
    before = log.aborted_transactions(0, 6)
    log = open_log(disk)
    assert log.aborted_transactions(0, 6) == before == [(1, 0), (1, 2), (1, 4)]
