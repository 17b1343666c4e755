"""Interrupted rounds of compaction: appends, truncation, a broken disk, death."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from oncelog.log.cleaning.clean import Cleaning, CleaningAbortedError
from oncelog.log.cleaning.plan import make_plan
from oncelog.log.cleaning.reading import CHUNK, READ, SegmentReader
from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.cleaning import COMPACT, LEFTOVERS, clean, committed, filled, put, rows, run_steps
from support.crashdisk import CrashDisk
from support.logs import FOLDER, NOW, apply_retention, delete_old_segments, end_txn, new_log, open_log, restart_at
from support.tracebacks import depth

STEPS = 41
"""Of a round over twenty batches, except the last three: by then, the log is no longer needed."""


@pytest.mark.parametrize("number", range(STEPS))
def test_change_of_the_log_ends_the_round(number: int) -> None:
    disk, log = filled(count=20)
    cleaning = Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=100)
    work = cleaning.run()
    run_steps(work, number)
    log.advance_log_start(log.segments.active.base_offset)
    delete_old_segments(log)
    with pytest.raises(CleaningAbortedError):
        run_steps(work)
    assert not [name for name in disk.listdir(FOLDER) if name.endswith(LEFTOVERS)]
    assert rows(log) == [row for row in rows(open_log(disk, COMPACT)) if row[0] >= log.log_start_offset]


@pytest.mark.parametrize("number", range(STEPS))
def test_truncation_inside_a_segment_ends_the_round(number: int) -> None:
    """The segment remains part of the log. A copy of it would contain records after the end of the log."""
    disk, log = filled(count=20)
    cleaning = Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=100)
    work = cleaning.run()
    run_steps(work, number)
    log.truncate_to(1, NOW)
    assert cleaning.is_void
    with pytest.raises((CleaningAbortedError, ProtocolError)):
        run_steps(work)
    put(log, (b"new", b"new"))
    assert not [name for name in disk.listdir(FOLDER) if name.endswith(LEFTOVERS)]
    assert rows(log)[-1] == (1, b"new", b"new")
    assert len(rows(log)) <= 2
    assert rows(open_log(disk, COMPACT)) == rows(log)


@pytest.mark.parametrize("restart", [True, False])
def test_crash_after_a_truncation_does_not_complete_the_compaction(restart: bool) -> None:
    """The next start would put the compacted segment, with the diverged records, in place of the truncated one."""
    disk, log = filled(count=20)
    work = Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=100).run()
    while not any(name.endswith(".swap") for name in disk.listdir(FOLDER)):
        next(work).run()
    if restart:
        restart_at(log, 50, NOW)
    else:
        log.truncate_to(1, NOW)
    put(log, (b"new", b"new"))
    disk.kill()
    again = open_log(disk, COMPACT)
    assert again.log_end_offset == log.log_end_offset
    assert rows(again)[-1][1:] == (b"new", b"new")


def test_segment_deleted_between_two_chunks_is_not_restored() -> None:
    """The segment is deleted at each step of a round over segments that are read in several chunks."""
    config = replace(COMPACT, segment_bytes=4 * CHUNK)
    for number in itertools.count():
        disk, log = new_log(config)
        for each in range(80):
            put(log, (b"%d" % (each % 7), bytes(3000)))
        work = Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=100).run()
        run_steps(work, number)
        first = log.segments.active.base_offset
        log.advance_log_start(first)
        delete_old_segments(log)
        whole = True
        try:
            run_steps(work)
        except CleaningAbortedError:
            whole = False
        assert [name for name in disk.listdir(FOLDER) if name.endswith(".log")] == [f"{first:020d}.log"], number
        if whole:
            break
    assert number > 8  # several chunks of each segment


def test_closed_log_ends_the_round() -> None:
    disk, log = filled()
    work = Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=100).run()
    next(work).run()
    log.close()
    with pytest.raises(CleaningAbortedError):
        run_steps(work)


def test_cancelled_round_leaves_no_files() -> None:
    disk, log = filled()
    work = Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=100).run()
    while not any(name.endswith(".cleaned") for name in disk.listdir(FOLDER)):
        next(work).run()
    work.close()
    assert not [name for name in disk.listdir(FOLDER) if name.endswith(LEFTOVERS)]


def test_cancelled_round_on_a_broken_disk_raises_nothing() -> None:
    """The next start removes the leftovers. The caller that cancels the round must not get this error."""
    disk, log = filled()
    work = Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=100).run()
    while not any(name.endswith(".cleaned") for name in disk.listdir(FOLDER)):
        next(work).run()
    disk.broken = True
    work.close()
    disk.kill()
    assert any(name.endswith(".cleaned") for name in disk.listdir(FOLDER))
    again = open_log(disk, COMPACT)
    assert not [name for name in disk.listdir(FOLDER) if name.endswith(LEFTOVERS)]
    assert rows(again) == rows(log)


class ColdDisk(CrashDisk):
    """Record the reads of parts of a file that a worker thread should read."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[int] = []

    def read_part(self, path: str, size: int, pos: int) -> bytes:
        self.parts.append(size)
        return super().read_part(path, size, pos)


def test_cold_segments_are_read_only_by_slow_steps() -> None:
    """These steps read in portions; a larger batch is read as a whole."""
    disk = ColdDisk()
    log = open_log(disk, replace(COMPACT, segment_bytes=8 * READ))
    for turn in range(200):
        put(log, (b"k%d" % turn, bytes(3 * READ if turn == 100 else 3000)))
    log.roll(NOW)
    before = rows(log)
    slow = 0
    for step in Cleaning(make_plan(log, None, NOW), disk, NOW, max_keys=1000).run():
        found = len(disk.parts)
        step.run()
        assert step.slow or len(disk.parts) == found
        slow += len(disk.parts) > found
    assert slow >= 2 * (600_000 // READ)
    assert max(disk.parts) > 3 * READ
    assert sorted(disk.parts)[-3] <= READ
    assert rows(log) == before


def test_segment_with_a_missing_file_is_not_empty() -> None:
    disk, log = filled()
    del disk.files[next(iter(log.segments)).path]
    with pytest.raises(FileNotFoundError):
        clean(log, disk)


def test_reader_keeps_no_frames_of_a_missing_file() -> None:
    disk, log = filled()
    segment = next(iter(log.segments))
    del disk.files[segment.path]
    reader = SegmentReader(disk, segment, 0)
    reader.fill()
    depths = [depth(lambda: next(reader.chunks()), FileNotFoundError) for _ in range(2)]
    assert depths[0] == depths[1]


@pytest.mark.parametrize("position", [66, 80])
def test_damaged_batch_gets_no_new_checksum(position: int) -> None:
    """The value of the first batch, or the size of the second, is damaged."""
    disk, log = filled()
    content = disk.files[next(iter(log.segments)).path]
    content.data[position] ^= 1
    with pytest.raises(ProtocolError) as caught:
        clean(log, disk)
    assert caught.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert not [name for name in disk.listdir(FOLDER) if name.endswith(LEFTOVERS)]


def with_an_aborted_transaction() -> tuple[CrashDisk, Log]:
    """Write an aborted transaction. Its empty batch is kept because of the producer's sequence."""
    disk, log = filled()
    put(log, (b"k0", b"aborted"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end_txn(log, 1, commit=False)
    put(log, (b"k1", b"last"))
    log.roll(NOW)
    log.flush()
    return disk, log


def changes_of_a_round() -> int:
    disk, log = with_an_aborted_transaction()
    before = disk.operations
    clean(log, disk)
    return disk.operations - before


@pytest.mark.parametrize("cut", ["kill", "crash, all is there", "crash, the least is there"])
def test_process_may_die_at_any_change_of_the_disk(cut: str) -> None:
    for number in range(1, changes_of_a_round() + 1):
        disk, log = with_an_aborted_transaction()
        before, expected = rows(log), committed(log)
        aborted = log.aborted_transactions(0, log.log_end_offset)
        assert aborted
        disk.fail_at = disk.operations + number
        with pytest.raises((OSError, ProtocolError)):
            clean(log, disk)
        if cut == "kill":
            disk.kill()
        else:
            disk.crash(lambda low, high: high if cut == "crash, all is there" else low)
        again = open_log(disk, COMPACT, recovery_point=log.recovery_point)
        again.advance_high_watermark(again.log_end_offset)
        assert again.log_end_offset == 15, number
        assert set(rows(again)) <= set(before)
        assert committed(again) == expected
        assert again.aborted_transactions(0, 15) == aborted, number
        assert not [name for name in disk.listdir(FOLDER) if name.endswith(LEFTOVERS)]
        clean(again, disk)
        assert len(rows(again)) == 3
        assert again.aborted_transactions(0, 15) == aborted


def test_retention_skips_segments_emptied_by_compaction() -> None:
    config = LogConfig(segment_bytes=300, compact=True, delete=True, retention_ms=1000)
    disk, log = filled(config, count=20)
    clean(log, disk)
    assert apply_retention(log, NOW + 500) == 0
    assert apply_retention(log, NOW + 5000) > 0
    assert log.log_start_offset == log.log_end_offset
