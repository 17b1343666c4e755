"""Segments beyond the retention time or size."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.log.config import LogConfig
from oncelog.log.disk import OsDisk
from oncelog.log.guarded_disk import GuardedDisk
from oncelog.log.log import Log
from oncelog.log.retention import SEGMENTS_AT_ONCE, applying_retention
from oncelog.log.steps import at_once
from support.logs import NOW, append, apply_retention, batch, new_log, of_producer, open_at, values


def filled(**settings: object) -> Log:
    """Create four segments of ten batches, one batch per ms."""
    _, log = new_log(LogConfig(**settings))  # type: ignore[arg-type]
    for number in range(40):
        if number % 10 == 0:
            log.roll(NOW)
        append(log, of_producer(1, number, timestamp=NOW + number))
    return log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


@pytest.mark.parametrize(
    ("age", "left"), [(100, [0, 10, 20, 30]), (109, [0, 10, 20, 30]), (110, [10, 20, 30]), (129, [20, 30]), (139, [30])]
)
def test_segments_are_deleted_by_their_youngest_batch(age: int, left: list[int]) -> None:
    log = filled(retention_ms=100)
    assert apply_retention(log, NOW + age) == 4 - len(left)
    assert (bases(log), log.log_start_offset) == (left, left[0])
    assert len(values(log)) == 40 - left[0]


def test_active_segment_is_deleted_too_and_sequences_continue() -> None:
    log = filled(retention_ms=100)
    assert apply_retention(log, NOW + 140) == 4
    assert (bases(log), log.log_start_offset, log.log_end_offset) == ([40], 40, 40)
    assert apply_retention(log, NOW + 200) == 0
    assert append(log, of_producer(1, 40)).first_offset == 40


def test_segments_over_the_size_limit_are_deleted() -> None:
    size = filled().size_bytes // 4
    log = filled(retention_ms=-1, retention_bytes=2 * size)
    assert apply_retention(log, NOW) == 2
    assert bases(log) == [20, 30]
    log = filled(retention_ms=-1, retention_bytes=2 * size + 1)
    assert apply_retention(log, NOW) == 1


def test_many_segments_are_deleted_in_steps() -> None:
    count = 2 * SEGMENTS_AT_ONCE + 10
    _, log = new_log(LogConfig(segment_bytes=100, retention_ms=1000))
    for _ in range(count):
        append(log, batch(timestamp=NOW))
    steps = applying_retention(log, NOW + 5000)
    starts = []
    while next(steps, None) is None and log.log_start_offset not in starts:
        starts.append(log.log_start_offset)
    assert starts == [SEGMENTS_AT_ONCE, 2 * SEGMENTS_AT_ONCE, count]
    assert at_once(applying_retention(log, NOW + 5000)) == count
    deleted = [log.delete_old_segments(count, SEGMENTS_AT_ONCE) for _ in range(4)]
    assert deleted == [SEGMENTS_AT_ONCE, SEGMENTS_AT_ONCE, 10, 0]
    assert bases(log) == [count]


def test_segments_after_the_checkpointed_log_start_stay() -> None:
    """If the machine crashes before the checkpoint has the new start, recovery takes the missing files for a loss."""
    log = filled(retention_ms=100)
    assert at_once(applying_retention(log, NOW + 129)) == 2
    assert log.log_start_offset == 20
    assert log.delete_old_segments(10) == 1
    assert bases(log) == [10, 20, 30]
    assert log.delete_old_segments(40) == 1
    assert bases(log) == [20, 30]


def test_retention_of_a_closed_log_touches_no_file(tmp_path: Path) -> None:
    disk = GuardedDisk(OsDisk(), str(tmp_path), lambda error: None)
    folder, config = f"{tmp_path}/t-0", LogConfig(segment_bytes=100, retention_ms=1000)
    log = open_at(disk, folder, "t", 0, config, NOW)
    for _ in range(SEGMENTS_AT_ONCE + 10):
        append(log, batch(timestamp=NOW))
    log.close()
    log = open_at(disk, folder, "t", 0, config, NOW, clean=True)  # it loads the indexes on demand
    log.advance_high_watermark(log.log_end_offset)
    next(applying_retention(log, NOW + 5000))
    assert log.log_start_offset == SEGMENTS_AT_ONCE
    log.discard()
    disk.rename(folder, f"{folder}-delete")
    assert apply_retention(log, NOW + 5000) == 0
    assert disk.failure is None


def test_uncommitted_segments_are_kept() -> None:
    _, log = new_log(LogConfig(retention_ms=1))
    log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)
    assert apply_retention(log, NOW + 100) == 0


@pytest.mark.parametrize("settings", [{"delete": False, "compact": True}, {"retention_ms": -1}])
def test_unlimited_retention_keeps_all_segments(settings: dict[str, object]) -> None:
    log = filled(**settings)
    assert apply_retention(log, NOW + 10**12) == 0


def test_batches_without_a_timestamp_are_as_old_as_their_segment() -> None:
    _, log = new_log(LogConfig(retention_ms=100))
    append(log, batch(timestamp=-1))
    assert apply_retention(log, NOW + 100) == 0
    assert apply_retention(log, NOW + 101) == 1
