"""Recovery of logs that lack segments, or whose compaction was interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.log.recovery import Holes, LostRecordsError
from support.crashdisk import CrashDisk
from support.logs import (
    FOLDER,
    NOW,
    append,
    new_log,
    of_producer,
    values,
)
from support.reopened_logs import filled, name, reopen


def rolled(config: LogConfig) -> tuple[CrashDisk, Log]:
    """Return a log of four segments with ten records each."""
    disk, log = new_log(config)
    for sequence in range(40):
        if sequence and sequence % 10 == 0:
            log.roll(NOW)
        append(log, of_producer(1, sequence))
    return disk, log


def compacted(disk: CrashDisk, log: Log) -> tuple[str, str]:
    """Return the names of the first segment's log and of the merged one that replaces it and the second."""
    first, second = list(log.segments)[:2]
    merged = bytes(disk.files[first.path].data + disk.files[second.path].data)
    disk.atomic_write(f"{first.path}.swap", merged)
    return first.path, second.path


@pytest.mark.parametrize(
    ("lost", "options", "left"),
    [
        (1, {}, (0, 0)),
        (3, {"log_start_offset": 2}, (2, 2)),
        (1, {"log_start_offset": 10}, (10, 40)),
        (1, {"recovery_point": 10}, (0, 0)),
        (1, {"clean": True}, (10, 40)),
        (1, {"holes": Holes.KEEP}, (10, 40)),
        (1, {"holes": Holes.REFUSE}, None),
    ],
)
def test_log_without_its_first_segments(lost: int, options: dict[str, Any], left: tuple[int, int] | None) -> None:
    """A crash of the machine, or a person, may remove files. A log that continues after a hole looks complete."""
    disk, log = rolled(LogConfig())
    for segment in list(log.segments)[:lost]:
        disk.remove(name(segment.base_offset))
    options = {"holes": Holes.DROP, **options}
    if left is None:
        before = [path for path in disk.files if path.endswith(".log")]
        with pytest.raises(LostRecordsError, match="lost the records from offset 0 to 9"):
            reopen(disk, **options)
        assert [path for path in disk.files if path.endswith(".log")] == before
        return
    log = reopen(disk, **options)
    assert (log.log_start_offset, log.log_end_offset) == left
    append(log, of_producer(1, left[1]))
    assert (log.log_start_offset, log.log_end_offset) == (left[0], left[1] + 1)


@pytest.mark.parametrize(("holes", "end"), [(Holes.DROP, 10), (Holes.REFUSE, None), (Holes.KEEP, 40)])
def test_compacted_log_with_a_lost_segment(holes: Holes, end: int | None) -> None:
    """A log that Kafka has compacted may have holes. It can only be imported, so it has no other replicas."""
    disk, log = rolled(LogConfig(compact=True, delete=False))
    disk.remove(name(10))
    if end is None:
        with pytest.raises(LostRecordsError, match="lost the records from offset 10 to 19"):
            reopen(disk, log.config, holes=holes)
    else:
        assert reopen(disk, log.config, holes=holes).log_end_offset == end


@pytest.mark.parametrize("marked", [True, False])
def test_interrupted_swap_is_completed(marked: bool) -> None:
    disk, log = filled()
    before = values(log)
    log.close()
    first, second = compacted(disk, log)
    if marked:
        disk.rename(second, f"{second}.deleted")
    log = reopen(disk, clean=True)
    assert values(log) == before
    assert not disk.exists(second)
    assert disk.exists(first)
    assert not [path for path in disk.files if path.endswith((".swap", ".deleted"))]


def test_incomplete_swap_is_reverted() -> None:
    disk, log = filled()
    before = values(log)
    log.close()
    first, second = compacted(disk, log)
    disk.atomic_write(f"{FOLDER}/{0:020d}.log.cleaned", b"half")
    disk.files[f"{first}.swap"].data.clear()
    log = reopen(disk, clean=True)
    assert values(log) == before
    assert disk.exists(second)
    assert not [path for path in disk.files if path.endswith((".swap", ".cleaned"))]


@pytest.mark.parametrize("compact", [False, True])
def test_only_a_compacted_log_may_have_gaps(compact: bool) -> None:
    disk, log = filled()
    bases = [segment.base_offset for segment in log.segments]
    disk.files[name(bases[1])].data.clear()
    log = reopen(disk, LogConfig(segment_bytes=600, compact=compact))
    assert log.log_end_offset == (40 if compact else bases[1])
    assert disk.exists(name(bases[2])) is compact
