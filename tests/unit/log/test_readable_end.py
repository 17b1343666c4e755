"""The end of the records that a consumer can read, in logs that end with markers, aborted records or nothing."""

from __future__ import annotations

import pytest

from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.log.steps import at_once
from support.logs import NOW, append, batch, new_log, of_producer, open_log


def end(log: Log, *, committed: bool) -> int:
    return at_once(log.readable_end(committed=committed))


def both(log: Log) -> tuple[int, int]:
    """Return the ends for read_uncommitted and read_committed."""
    return end(log, committed=False), end(log, committed=True)


def marker(log: Log, producer_id: int, *, commit: bool) -> None:
    log.append_control(
        commit,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        leader_epoch=0,
        now_ms=NOW,
        transaction_version=0,
    )
    log.advance_high_watermark(log.log_end_offset)


def test_empty_log() -> None:
    _, log = new_log()
    assert both(log) == (0, 0)


def test_records_without_transactions_end_at_the_high_watermark() -> None:
    _, log = new_log()
    append(log, batch(3))
    assert both(log) == (3, 3)
    log.append_as_leader(batch(2), leader_epoch=0, now_ms=NOW)
    assert both(log) == (3, 3), "records that are not committed count"


def test_markers_at_the_end_do_not_count() -> None:
    _, log = new_log()
    append(log, of_producer(1, 0, 3, txn=True))
    marker(log, 1, commit=True)
    assert (log.last_stable_offset, *both(log)) == (4, 3, 3)
    append(log, batch())
    assert both(log) == (5, 5), "a marker between records counts"


def test_open_transaction_ends_what_is_committed() -> None:
    _, log = new_log()
    append(log, batch(2))
    append(log, of_producer(1, 0, 3, txn=True))
    marker(log, 1, commit=True)
    append(log, of_producer(2, 0, 4, txn=True))
    append(log, batch())
    assert (log.last_stable_offset, *both(log)) == (6, 11, 5)


def test_end_may_be_in_an_older_segment() -> None:
    _, log = new_log(LogConfig(segment_bytes=300))
    append(log, batch())
    append(log, of_producer(1, 0, 2, txn=True))
    marker(log, 1, commit=False)
    append(log, of_producer(2, 0, 1, txn=True))
    while len(log.segments) < 2:
        append(log, batch())
    assert log.last_stable_offset == 4 < log.segments.active.base_offset
    assert both(log) == (log.log_end_offset, 1)


def test_aborted_records_at_the_end_count_only_for_read_uncommitted() -> None:
    _, log = new_log()
    append(log, batch(2))
    append(log, of_producer(1, 0, 3, txn=True))
    marker(log, 1, commit=False)
    assert both(log) == (5, 2)


def test_records_between_those_of_an_aborted_transaction_count() -> None:
    _, log = new_log()
    append(log, of_producer(1, 0, 1, txn=True))
    append(log, of_producer(2, 0, 1, txn=True))
    append(log, of_producer(1, 1, 1, txn=True))
    marker(log, 2, commit=True)
    marker(log, 1, commit=False)
    assert both(log) == (3, 2)
    append(log, of_producer(1, 2, 1, txn=True))
    marker(log, 1, commit=True)
    assert both(log) == (6, 6), "the next transaction of the same producer is committed"


@pytest.mark.parametrize("count", [10, 500])
def test_log_that_has_nothing_but_markers_and_aborted_records(count: int) -> None:
    _, log = new_log(LogConfig(segment_bytes=2000, index_interval_bytes=100))
    for number in range(count):
        append(log, of_producer(number, 0, txn=True))
        marker(log, number, commit=False)
    assert len(log.segments) > count // 20
    readable = end(log, committed=True)
    assert readable == 0 if count == 10 else 0 < readable < log.log_end_offset, "the search is bounded"
    assert end(log, committed=False) == log.log_end_offset - 1


def test_search_goes_through_segments() -> None:
    _, log = new_log(LogConfig(segment_bytes=1000, index_interval_bytes=100))
    append(log, batch(7))
    for number in range(40):
        append(log, of_producer(number, 0, txn=True))
        marker(log, number, commit=False)
    assert len(log.segments) > 3
    assert both(log) == (log.log_end_offset - 1, 7)


def test_result_is_remembered_until_the_log_grows() -> None:
    _, log = new_log(LogConfig(index_interval_bytes=100))
    append(log, batch(2))
    for number in range(10):
        append(log, of_producer(number, 0, txn=True))
        marker(log, number, commit=False)
    assert len(list(log.readable_end(committed=True))) > 3
    assert list(log.readable_end(committed=True)) == [], "there is no second search"
    assert end(log, committed=True) == 2
    append(log, batch())
    assert end(log, committed=True) == 23


def test_result_after_truncation_and_reopening() -> None:
    disk, log = new_log()
    append(log, batch(2))
    append(log, of_producer(1, 0, 2, txn=True))
    marker(log, 1, commit=True)
    append(log, batch())
    assert both(log) == (6, 6)
    log.high_watermark = 4
    log.truncate_to(4, NOW)
    append(log, of_producer(2, 0, 1, txn=True))
    assert both(log) == (5, 2), "the transaction of the first producer is open again"
    log.close()
    again = open_log(disk, high_watermark=5)
    assert both(again) == (5, 2)


def test_truncation_in_a_pause_ends_the_search() -> None:
    _, log = new_log(LogConfig(index_interval_bytes=100))
    for number in range(40):
        append(log, of_producer(number, 0, txn=True))
        marker(log, number, commit=False)
    search = log.readable_end(committed=True)
    next(search)
    log.truncate_to(10, NOW)
    assert at_once(search) == 80
    assert end(log, committed=True) == 0


def test_retention_in_a_pause_ends_the_search() -> None:
    _, log = new_log(LogConfig(segment_bytes=500, index_interval_bytes=100))
    for number in range(40):
        append(log, of_producer(number, 0, txn=True))
        marker(log, number, commit=False)
    search = log.readable_end(committed=True)
    for _ in range(3):
        next(search)
    log.advance_log_start(78)
    at_once(log.finishing_snapshot(78))
    assert log.delete_old_segments(78) > 3
    assert 0 < at_once(search) <= 80
    assert end(log, committed=True) == 78
