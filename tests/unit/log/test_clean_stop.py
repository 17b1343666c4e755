"""Reopen a log after a clean stop, with files that are not as they were at the stop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.log.recovery import Holes, LostRecordsError
from support.crashdisk import CrashDisk
from support.logs import FOLDER, NOW, append, batch, new_log, of_producer, open_log, values

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)


def reopen(disk: CrashDisk, **options: object) -> Log:
    disk.kill()
    log = open_log(disk, SMALL, NOW, clean=True, **options)
    log.advance_high_watermark(log.log_end_offset)
    return log


def name(offset: int, suffix: str = ".log") -> str:
    return f"{FOLDER}/{offset:020d}{suffix}"


def filled() -> tuple[CrashDisk, Log]:
    disk, log = new_log(SMALL)
    for sequence in range(40):
        append(log, of_producer(1, sequence, value=b"%d" % sequence), leader_epoch=sequence // 10)
    return disk, log


def active_file(disk: CrashDisk, log: Log) -> bytearray:
    return disk.files[name(list(log.segments)[-1].base_offset)].data


@pytest.mark.parametrize("cut", [1, 30, 61, 90])
@pytest.mark.parametrize("indexed", [True, False])
def test_incomplete_last_batch_is_removed_after_a_clean_stop(cut: int, indexed: bool) -> None:
    disk, log = filled()
    log.close()
    active = list(log.segments)[-1].base_offset
    if not indexed:
        disk.remove(name(active, ".index"))
    del active_file(disk, log)[-cut:]
    again = reopen(disk)
    assert again.log_end_offset in (38, 39)
    append(again, batch(value=b"new"))
    assert values(again)[-1] == b"new"


def test_damaged_last_batch_is_removed_after_a_clean_stop() -> None:
    disk, log = filled()
    log.close()
    active_file(disk, log)[-1] ^= 1
    assert reopen(disk).log_end_offset == 39


def test_unchanged_files_are_not_read_after_a_clean_stop() -> None:
    disk, log = filled()
    log.close()
    disk.files[name(0)].data[-1] ^= 1  # recovery would notice it
    again = reopen(disk, at_stop=log.clean_end())
    assert (again.log_end_offset, again.recovery_point) == (40, 40)


def lose_first_segment(disk: CrashDisk, bases: list[int]) -> None:
    disk.remove(name(bases[0]))


def lose_middle_segment(disk: CrashDisk, bases: list[int]) -> None:
    disk.remove(name(bases[1]))


def halve_middle_segment(disk: CrashDisk, bases: list[int]) -> None:
    data = disk.files[name(bases[1])].data
    del data[len(data) // 2 :]


def lose_active_segment(disk: CrashDisk, bases: list[int]) -> None:
    disk.remove(name(bases[-1]))


def cut_at_a_batch(disk: CrashDisk, bases: list[int]) -> None:
    data = disk.files[name(bases[-1])].data
    del data[int.from_bytes(data[8:12], "big") + 12 :]


def lose_all_segments(disk: CrashDisk, bases: list[int]) -> None:
    for base in bases:
        disk.remove(name(base))


@pytest.mark.parametrize(
    "damage",
    [
        lose_first_segment,
        lose_middle_segment,
        halve_middle_segment,
        lose_active_segment,
        cut_at_a_batch,
        lose_all_segments,
    ],
)
def test_changed_files_are_recovered_after_a_clean_stop(damage: Callable[[CrashDisk, list[int]], None]) -> None:
    """The caller sees from the end of the log, or from an error, that records are missing."""
    disk, log = filled()
    log.close()
    damage(disk, [segment.base_offset for segment in log.segments])
    try:
        again = reopen(disk, at_stop=log.clean_end(), holes=Holes.REFUSE)
    except LostRecordsError:
        return
    assert again.log_end_offset < 40
    end = again.log_end_offset
    append(again, batch(value=b"new"))
    assert values(again) == [b"%d" % number for number in range(end)] + [b"new"]


def test_files_that_are_newer_than_the_mark_of_a_clean_stop_keep_their_records() -> None:
    disk, log = filled()
    log.close()
    stopped = log.clean_end()
    log = reopen(disk)
    for sequence in range(40, 50):
        append(log, of_producer(1, sequence, value=b"%d" % sequence))
    assert values(reopen(disk, at_stop=stopped)) == [b"%d" % number for number in range(50)]
