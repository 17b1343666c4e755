"""Batches and logs for tests of the log package."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.replica import Flush, Replica
from oncelog.log.config import LogConfig
from oncelog.log.disk import Disk
from oncelog.log.log import Log
from oncelog.log.retention import applying_retention
from oncelog.log.steps import BATCHES_A_STEP, Pace, at_once
from oncelog.log.timestamps import first_since, last_of
from oncelog.protocol.records import Record, build_batch, decode_records, iter_batches
from support.crashdisk import CrashDisk

FOLDER = "data/t-0"
NOW = 1_700_000_000_000


def open_at(
    disk: Disk, directory: str, topic: str, partition: int, config: LogConfig, now_ms: int, **options: Any
) -> Log:
    """Do the work of `Log.opening` without a pause."""
    return at_once(Log.opening(disk, directory, topic, partition, config, now_ms, **options))


def open_log(disk: Any, config: LogConfig | None = None, now_ms: int = NOW, **options: Any) -> Log:
    return open_at(disk, FOLDER, "t", 0, config or LogConfig(), now_ms, **options)


def new_log(config: LogConfig | None = None) -> tuple[CrashDisk, Log]:
    disk = CrashDisk()
    return disk, open_log(disk, config)


def batch(count: int = 1, *, value: bytes = b"v", timestamp: int = NOW, **options: Any) -> bytearray:
    return build_batch([Record(0, timestamp, b"k", value)] * count, **options)


def of_producer(
    producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, txn: bool = False, **options: Any
) -> bytearray:
    return batch(
        count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=txn,
        **options,
    )


def append(log: Log, records: bytearray, **options: Any) -> Any:
    result = log.append_as_leader(records, **{"leader_epoch": 0, "now_ms": NOW, **options})
    log.advance_high_watermark(log.log_end_offset)
    return result


def append_as_follower(log: Log, records: memoryview | bytearray | bytes, *, leader_epoch: int, now_ms: int) -> int:
    """Do the work of `Log.appending_as_follower` without a pause."""
    pace = Pace(BATCHES_A_STEP)
    return at_once(log.appending_as_follower(records, leader_epoch=leader_epoch, now_ms=now_ms, pace=pace))


def apply_retention(log: Log, now_ms: int) -> int:
    """Drop old segments without a pause. Return their number."""
    at_once(applying_retention(log, now_ms))
    return delete_old_segments(log)


def delete_old_segments(log: Log) -> int:
    """Delete the segments before the log start without a pause, as retention does. Return their number."""
    at_once(log.finishing_snapshot(log.log_start_offset))
    return log.delete_old_segments(log.log_start_offset)


def restart_at(log: Log, offset: int, now_ms: int) -> None:
    """Do the work of `Log.restarting` without a pause."""
    at_once(log.restarting(offset, now_ms))


def follow(log: Log, records: bytes | bytearray, leader_epoch: int = 9) -> None:
    append_as_follower(log, records, leader_epoch=leader_epoch, now_ms=NOW)
    log.advance_high_watermark(log.log_end_offset)


def end_txn(log: Log, producer_id: int, *, commit: bool, epoch: int = 0, version: int = 0, **options: Any) -> Any:
    result = log.append_control(
        commit,
        producer_id=producer_id,
        producer_epoch=epoch,
        **{
            "coordinator_epoch": 0,
            "leader_epoch": 0,
            "now_ms": NOW,
            "transaction_version": version,
            **options,
        },
    )
    log.advance_high_watermark(log.log_end_offset)
    return result


def values(log: Log, *, upto: int | None = None, start: int | None = None, max_bytes: int = 1 << 20) -> list[bytes]:
    """Return the values of the data records that a consumer reads from ``start`` up to ``upto``."""
    offset = log.log_start_offset if start is None else start
    end = log.high_watermark if upto is None else upto
    found: list[bytes] = []
    while offset < end:
        data = log.read(offset, max_bytes, upto=end, at_least_one=True)
        assert data, f"nothing at {offset} before {end}"
        for header, view in iter_batches(data):
            if not header.is_control:
                found += [row.value or b"" for row in decode_records(view) if row.offset >= offset]
            offset = header.next_offset
    return found


def offset_for_timestamp(log: Log, timestamp: int) -> tuple[int, int, int] | None:
    """Return (timestamp, offset, leader epoch) of the first record that is not older."""
    start = 0
    while (step := log.search_timestamp(timestamp, start)) is not None:
        if step.batch and (found := first_since(step.batch, timestamp, max(start, log.log_start_offset))):
            return *found, step.epoch
        start = step.next_offset
    return None


def max_timestamp(log: Log) -> tuple[int, int, int] | None:
    """Return (timestamp, offset, leader epoch) of the first record with the largest timestamp."""
    step = log.batch_of_max_timestamp()
    found = None if step is None else last_of(step.batch)
    return None if step is None or found is None else (*found, step.epoch)


def leading_replica(topic: str, log: Log, *, epoch: int = 0, flush: Flush | None = None) -> Replica:
    """Return the only replica of a partition, which leads."""
    replica = Replica(topic, 0, UUID(int=1), log, flush=flush)
    replica.lead(1, [1], PartitionState(1, epoch, (1,), 0))
    return replica
