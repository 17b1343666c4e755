"""A truncation pauses every few ms, and its pauses show no half-built state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.log.steps import BATCHES_A_STEP, Steps, at_once
from oncelog.log.truncation import SEGMENTS_A_STEP
from oncelog.protocol.errors import ProtocolError
from support.crashdisk import CrashDisk, CrashFile
from support.logs import (
    NOW,
    append,
    append_as_follower,
    batch,
    delete_old_segments,
    end_txn,
    new_log,
    of_producer,
    open_log,
    restart_at,
)

SMALL = LogConfig(segment_bytes=150)
BATCHES = 5 * BATCHES_A_STEP


class ReadingDisk(CrashDisk):
    """Count the bytes that are read from segments, and the files that are renamed."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0
        self.renames = 0

    def open(self, path: str, *, create: bool = False) -> CrashFile:
        file = super().open(path, create=create)
        original = file.pread

        def counted(size: int, position: int) -> bytes:
            data = original(size, position)
            self.bytes_read += len(data)
            return data

        file.pread = counted  # type: ignore[method-assign]
        return file

    def rename(self, source: str, target: str) -> None:
        self.renames += 1
        super().rename(source, target)


def filled(config: LogConfig | None = None, batches: int = BATCHES) -> tuple[ReadingDisk, Log]:
    """Return a log in one segment, in which producer 2 has an open transaction since offset 1."""
    disk = ReadingDisk()
    log = open_log(disk, config)
    append(log, of_producer(1, 0))
    append(log, of_producer(2, 0, txn=True))
    for sequence in range(1, batches - 2):
        append(log, of_producer(1, sequence))
    append(log, batch())
    return disk, log


def most(steps: Steps[object], cost: Callable[[], int]) -> tuple[int, int]:
    """Run all steps. Return their number, and the largest cost of one."""
    found = []
    before = cost()
    for _ in steps:
        found.append(cost() - before)
        before = cost()
    found.append(cost() - before)
    return len(found), max(found)


def test_truncation_reads_few_batches_a_step() -> None:
    disk, log = filled()
    size = log.size_bytes // BATCHES
    steps, read = most(log.truncating(BATCHES - 1, NOW), lambda: disk.bytes_read)
    assert steps >= 5
    assert read <= 2 * BATCHES_A_STEP * size + 8192
    assert log.producer_entries[1].last_sequence == BATCHES - 3


def test_batches_with_equal_timestamps_are_not_read_again_for_the_time_index() -> None:
    disk, log = filled(LogConfig(index_interval_bytes=1000))
    disk.bytes_read = 0
    next(log.truncating(BATCHES - 1, NOW))
    assert disk.bytes_read <= BATCHES_A_STEP * log.size_bytes // BATCHES + 4 * 8192
    assert log.segments.active.last_timestamp() == (NOW, 0)


@pytest.mark.parametrize("restart", [True, False])
def test_truncation_drops_few_segments_a_step(restart: bool) -> None:
    disk, log = filled(SMALL, 20 * SEGMENTS_A_STEP)
    assert len(log.segments) > 8 * SEGMENTS_A_STEP
    work = log.restarting(10_000, NOW) if restart else log.truncating(2, NOW)
    steps, renamed = most(work, lambda: disk.renames)
    assert steps > 8
    assert renamed <= 6 * SEGMENTS_A_STEP
    assert (log.log_end_offset, len(log.segments)) == ((10_000, 1) if restart else (2, 2))
    if not restart:
        assert (log.producer_entries[1].last_sequence, log.last_stable_offset) == (0, 1)


def test_readers_see_no_half_built_state() -> None:
    """Until the end, the producers are those before the truncation, and no record counts as stable."""
    _, log = filled()
    end_txn(log, 2, commit=True)
    assert log.last_stable_offset == log.log_end_offset
    before = log.producers()
    for _ in log.truncating(BATCHES - 1, NOW):
        assert log.is_stale
        assert log.log_end_offset == log.high_watermark == BATCHES - 1
        assert log.producers() == before
        assert log.last_stable_offset == 0
    assert not log.is_stale
    assert log.last_stable_offset == 1


@pytest.mark.parametrize("close", [True, False])
def test_interrupted_truncation_is_complete_after_a_restart(close: bool) -> None:
    disk, log = filled()
    work = log.truncating(BATCHES - 1, NOW)
    next(work)
    work.close()
    if close:
        log.close()
    else:
        disk.kill()
    again = open_log(disk, clean=close, high_watermark=BATCHES - 1)
    assert (again.log_end_offset, again.last_stable_offset) == (BATCHES - 1, 1)
    assert again.producer_entries[1].last_sequence == BATCHES - 3


def test_interrupted_rebuild_can_be_repeated() -> None:
    _, log = filled()
    work = log.truncating(BATCHES - 1, NOW)
    next(work)
    work.close()
    log.roll(NOW)  # retention may do this
    for _ in log.rebuilding(NOW):
        pass
    assert not log.is_stale
    assert log.producer_entries[1].last_sequence == BATCHES - 3


def test_append_that_has_truncated_the_log_needs_no_other_rebuild() -> None:
    """The append itself has rebuilt the producers, and has added those of its batches."""
    disk, log = filled()
    records = batch(3, base_offset=BATCHES - 2, leader_epoch=0, producer_id=7, producer_epoch=0, base_sequence=0)
    truncations, disk.bytes_read = log.truncations, 0
    append_as_follower(log, records, leader_epoch=0, now_ms=NOW)
    assert (log.truncations, log.log_end_offset) == (truncations + 1, BATCHES + 1)
    assert not log.is_stale
    assert disk.bytes_read > 0  # the append has read the log once
    before, disk.bytes_read = dict(log.producer_entries), 0
    at_once(log.rebuilding(NOW))
    assert disk.bytes_read == 0
    assert before.keys() == {1, 2, 7}
    assert log.producer_entries.keys() == before.keys()
    assert all(log.producer_entries[producer] is entry for producer, entry in before.items())
    assert log.producer_entries[7].last_sequence == 2
    log.advance_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 1


def test_closed_log_ends_the_truncation() -> None:
    _, log = filled()
    work = log.truncating(BATCHES - 1, NOW)
    next(work)
    log.discard()
    with pytest.raises(ProtocolError, match="closed"):
        next(work)


def test_segments_deleted_in_a_pause_do_not_matter() -> None:
    """The rebuild begins with the oldest segment, because a snapshot after the high watermark cannot be used."""
    _, log = filled(LogConfig(segment_bytes=20_000))
    log.high_watermark = 0
    work = log.truncating(BATCHES - 1, NOW)
    next(work)
    log.high_watermark = BATCHES - 1
    log.advance_log_start(log.segments.active.base_offset)
    assert delete_old_segments(log) > 3
    for _ in work:
        pass
    assert log.producer_entries[1].last_sequence == BATCHES - 3


def test_truncations_are_counted() -> None:
    _, log = new_log()
    append(log, batch(2))
    assert not log.truncate_to(2, NOW)
    assert log.truncations == 0
    log.truncate_to(0, NOW)
    restart_at(log, 5, NOW)
    assert log.truncations == 2


def test_log_without_files_keeps_the_offset_of_its_restart() -> None:
    """Otherwise, a follower without records forgets where its leader's log starts, and reuses offsets if it leads."""
    disk = CrashDisk()
    log = open_log(disk)
    assert not log.has_files
    restart_at(log, 6, NOW)
    disk.kill()
    again = open_log(disk)
    assert (again.log_start_offset, again.log_end_offset) == (6, 6)
