"""Compacted logs, and their remaining records."""

from __future__ import annotations

import itertools

from oncelog.log.cleaning.clean import Cleaning, CleaningResult, CleaningSteps
from oncelog.log.cleaning.plan import make_plan
from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.protocol.records import BatchHeader, Record, build_batch, decode_records, iter_batches
from support.crashdisk import CrashDisk
from support.logs import NOW, append, open_log

COMPACT = LogConfig(segment_bytes=300, index_interval_bytes=100, compact=True, delete=False, delete_retention_ms=1000)
LEFTOVERS = (".cleaned", ".swap", ".deleted")


def put(
    log: Log, *pairs: tuple[bytes, bytes | None], now_ms: int = NOW, timestamp: int = NOW, **options: object
) -> None:
    rows = [Record(0, timestamp, key, value) for key, value in pairs]
    append(log, build_batch(rows, **options), now_ms=now_ms)  # type: ignore[arg-type]


def clean(
    log: Log, disk: CrashDisk, *, checkpoint: int | None = None, now_ms: int = NOW, max_keys: int = 100
) -> CleaningResult:
    cleaning = Cleaning(make_plan(log, checkpoint, now_ms), disk, now_ms, max_keys=max_keys)
    run_steps(cleaning.run())
    return cleaning.result


def run_steps(steps: CleaningSteps, count: int | None = None) -> None:
    """Run the next steps, or all."""
    try:
        for step in itertools.islice(steps, count):
            step.run()
    except BaseException:
        steps.close()
        raise


def batches(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    offset, found = log.log_start_offset, []
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, upto=log.log_end_offset, at_least_one=True)
        assert data
        for header, view in iter_batches(data):
            found.append((header, decode_records(view)))
            offset = header.next_offset
    return found


def rows(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for h, records in batches(log) if not h.is_control for r in records]


class DyingDisk(CrashDisk):
    """A disk that does nothing after the failure: the process is dead."""

    def step(self, path: str) -> None:
        self.broken = self.broken or self.operations + 1 == self.fail_at
        super().step(path)


def filled(config: LogConfig = COMPACT, count: int = 12) -> tuple[CrashDisk, Log]:
    disk = DyingDisk()
    log = open_log(disk, config)
    for turn in range(count):
        put(log, (b"k%d" % (turn % 3), b"%d" % turn), timestamp=NOW + turn)
    return disk, log


def committed(log: Log) -> dict[bytes | None, bytes | None]:
    return {r.key: r.value for h, records in batches(log) if not h.is_transactional for r in records}
