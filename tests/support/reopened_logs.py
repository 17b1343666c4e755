"""Logs of small segments, whose process is killed and which are opened again."""

from __future__ import annotations

from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from support.crashdisk import CrashDisk
from support.logs import FOLDER, NOW, append, new_log, of_producer, open_log

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)


def reopen(disk: CrashDisk, config: LogConfig = SMALL, *, now_ms: int = NOW, **options: object) -> Log:
    disk.kill()
    log = open_log(disk, config, now_ms, **options)
    log.advance_high_watermark(log.log_end_offset)
    return log


def name(offset: int, suffix: str = ".log") -> str:
    return f"{FOLDER}/{offset:020d}{suffix}"


def filled(count: int = 40) -> tuple[CrashDisk, Log]:
    disk, log = new_log(SMALL)
    for sequence in range(count):
        append(log, of_producer(1, sequence, value=b"%d" % sequence), leader_epoch=sequence // 10)
    return disk, log
