"""A log of many segments is opened in short steps: each of them uses few files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from oncelog.log.config import LogConfig
from oncelog.log.disk import OsDisk
from oncelog.log.log import Log
from oncelog.log.recovery import FILE_CHECKED
from oncelog.log.steps import BATCHES_A_STEP
from support.crashdisk import CrashDisk
from support.hooked_disk import hooked, ignore
from support.logs import FOLDER, NOW, append, end_txn, of_producer, open_at, values

SMALL = LogConfig(segment_bytes=150)
SEGMENTS = 400
FILES_A_STEP = 2 * BATCHES_A_STEP // FILE_CHECKED


@hooked
class CountingDisk(CrashDisk):
    """Count the uses of files."""

    used = 0
    after = staticmethod(ignore)

    def before(self, kind: str, path: str) -> None:
        self.used += kind in ("open", "size", "read whole", "replace", "rename", "remove file")


def filled() -> CountingDisk:
    """Return a log with a segment for each batch, and an aborted transaction in many of them."""
    disk = CountingDisk()
    log = open_at(disk, FOLDER, "t", 0, SMALL, NOW)
    for sequence in range(SEGMENTS // 2):
        append(log, of_producer(1, sequence, txn=True, value=b"v" * 50))
        end_txn(log, 1, commit=False)
    assert len(log.segments) >= SEGMENTS
    log.close()
    return disk


def unlink_later(paths: Sequence[str], delay_ms: int) -> None:
    """Leave the files to a worker thread."""


def opened(disk: CountingDisk, **options: object) -> tuple[Log, int, int]:
    """Open the log in steps. Return it, the number of steps, and the most uses of files in one of them."""
    disk.kill()
    work = Log.opening(disk, FOLDER, "t", 0, SMALL, NOW, unlink=unlink_later, **options)  # type: ignore[arg-type]
    steps, most = 0, 0
    while True:
        steps += 1
        disk.used = 0
        try:
            next(work)
        except StopIteration as done:
            log: Log = done.value
            log.advance_high_watermark(log.log_end_offset)
            return log, steps, max(most, disk.used)
        most = max(most, disk.used)


def damage_the_first(disk: CountingDisk) -> None:
    disk.files[f"{FOLDER}/{0:020d}.log"].data[-1] ^= 1


def lose_the_segments(disk: CountingDisk) -> None:
    """Leave indexes and snapshots without a segment, except for the newest."""
    logs = sorted(path for path in disk.files if path.endswith(".log"))
    for path in logs[:-1]:
        del disk.files[path]


def lose_the_snapshots(disk: CountingDisk) -> None:
    for path in [path for path in disk.files if path.endswith(".snapshot")]:
        del disk.files[path]


@pytest.mark.parametrize(
    ("before", "options"),
    [
        (None, {"clean": True}),
        (None, {"recovery_point": SEGMENTS}),
        (None, {}),
        (None, {"log_start_offset": 10_000}),
        (damage_the_first, {}),
        (lose_the_segments, {"clean": True}),
        (lose_the_snapshots, {"clean": True}),
    ],
)
def test_many_segments_are_opened_in_steps_that_use_few_files(
    before: Callable[[CountingDisk], None] | None, options: dict[str, object]
) -> None:
    disk = filled()
    if before is not None:
        before(disk)
    _, steps, most = opened(disk, **options)
    assert steps > 4
    assert most <= FILES_A_STEP


def test_many_producers_are_loaded_in_steps() -> None:
    disk = CountingDisk()
    log = open_at(disk, FOLDER, "t", 0, LogConfig(), NOW)
    for producer in range(5 * BATCHES_A_STEP):
        append(log, of_producer(producer, 0))
    log.close()
    log, steps, _ = opened(disk, clean=True)
    assert len(log.producers()) == 5 * BATCHES_A_STEP
    assert steps > 5


def test_recovery_that_stops_while_it_removes_files_after_damage_is_repeated() -> None:
    """The log of a compacted topic may have gaps, so the next start must find the damage again."""
    compact = LogConfig(segment_bytes=150, compact=True, delete=False)
    disk = filled()
    damage_the_first(disk)
    stops = 0
    while True:
        disk.kill()
        work = Log.opening(disk, FOLDER, "t", 0, compact, NOW)
        before = sum(path.endswith(".log") for path in disk.files)
        try:
            while sum(path.endswith(".log") for path in disk.files) == before:
                next(work)
        except StopIteration as done:
            log: Log = done.value
            break
        work.close()
        stops += 1
    assert stops > 4
    assert values(log) == []
    assert log.log_end_offset == 0


def test_recovery_closed_during_a_pause_holds_no_file(tmp_path: Path) -> None:
    disk = OsDisk()
    folder = f"{tmp_path}/t-0"
    log = open_at(disk, folder, "t", 0, LogConfig(), NOW)
    for sequence in range(2 * BATCHES_A_STEP):
        append(log, of_producer(1, sequence))
    log.discard()
    assert disk.open_files == 0
    work = Log.opening(disk, folder, "t", 0, LogConfig(), NOW)
    next(work)
    next(work)
    assert disk.open_files
    work.close()
    assert disk.open_files == 0
