"""Reopen a log: after a clean stop, after a killed process, after a power loss, and with damaged files."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from oncelog.log.log import Log
from oncelog.log.snapshot import decode_snapshot
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.crashdisk import CrashDisk
from support.logs import (
    FOLDER,
    NOW,
    append,
    batch,
    delete_old_segments,
    end_txn,
    max_timestamp,
    new_log,
    of_producer,
    offset_for_timestamp,
    open_log,
    values,
)
from support.reopened_logs import SMALL, filled, name, reopen


def fingerprint(log: Log) -> tuple[object, ...]:
    """Return everything that a log reports about itself."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.last_stable_offset,
        log.producers(),
        log.aborted_transactions(0, log.log_end_offset),
        [log.epoch_at(offset) for offset in range(log.log_end_offset)],
        [offset_for_timestamp(log, NOW + step) for step in range(0, 50, 7)],
        max_timestamp(log),
        [(segment.base_offset, segment.size) for segment in log.segments],
        values(log, upto=log.high_watermark),
    )


def busy() -> tuple[CrashDisk, Log]:
    """Return a log with plain, idempotent and transactional batches, and open, committed and aborted transactions."""
    disk, log = new_log(SMALL)
    for step in range(12):
        append(log, batch(value=b"p%d" % step, timestamp=NOW + step), leader_epoch=step // 5)
        append(log, of_producer(1, 2 * step, 2, value=b"i%d" % step), leader_epoch=step // 5)
        append(log, of_producer(2, step, txn=True, value=b"t%d" % step), leader_epoch=step // 5)
        append(log, of_producer(3, step, txn=True, value=b"u%d" % step), leader_epoch=step // 5)
        if step % 3 == 0:
            end_txn(log, 2, commit=step % 2 == 0, leader_epoch=step // 5)
        if step % 4 == 1:
            end_txn(log, 3, commit=False, leader_epoch=step // 5)
    return disk, log


def test_clean_stop_and_start() -> None:
    disk, log = busy()
    before = fingerprint(log)
    log.close()
    assert log.recovery_point == log.log_end_offset
    again = reopen(disk, clean=True)
    assert fingerprint(again) == before
    assert again.recovery_point == again.log_end_offset


def test_clean_start_reads_few_files_and_writes_none() -> None:
    disk, log = filled(200)
    log.close()
    opened: list[str] = []
    read_file, open_file = disk.read_file, disk.open
    disk.read_file = lambda path: opened.append(path) or read_file(path)  # type: ignore[method-assign,func-returns-value]
    disk.open = lambda path, **options: opened.append(path) or open_file(path, **options)  # type: ignore[method-assign,func-returns-value]
    before = disk.operations
    assert reopen(disk, clean=True).log_end_offset == 200
    assert disk.operations == before
    active = list(log.segments)[-1].base_offset
    assert sorted(set(opened)) == sorted(
        [
            f"{FOLDER}/leader-epoch-checkpoint",
            name(active),
            name(active, ".index"),
            name(active, ".timeindex"),
            name(200, ".snapshot"),
        ]
    )


def test_killed_process_loses_nothing() -> None:
    disk, log = busy()
    before = fingerprint(log)
    assert fingerprint(reopen(disk)) == before
    assert fingerprint(reopen(disk)) == before


def test_last_five_batches_of_a_producer_are_recognised_after_a_restart() -> None:
    """A producer may have so many in flight when the broker stops, and all of them may be written."""
    disk, log = filled(6)
    log.close()
    log = reopen(disk, clean=True)
    results = [append(log, of_producer(1, sequence, value=b"%d" % sequence)) for sequence in range(1, 6)]
    assert [(result.first_offset, result.duplicate) for result in results] == [(offset, True) for offset in range(1, 6)]
    with pytest.raises(ProtocolError, match="stale") as caught:
        append(log, of_producer(1, 0, value=b"0"))
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batches_after_the_snapshot_are_recognised_after_a_crash() -> None:
    disk, log = filled(3)
    log = reopen(disk)
    for sequence in range(3):
        assert append(log, of_producer(1, sequence, value=b"%d" % sequence)).first_offset == sequence


def test_sequences_are_recovered_from_the_log_alone() -> None:
    disk, _ = filled()
    for path in [path for path in disk.files if path.endswith(".snapshot")]:
        disk.remove(path)
    log = reopen(disk)
    with pytest.raises(ProtocolError, match="gap"):
        append(log, of_producer(1, 41))
    append(log, of_producer(1, 40))


@pytest.mark.parametrize("cut", [1, 5, 30, 61, 70])
def test_torn_tail_is_truncated(cut: int) -> None:
    disk, log = filled()
    active = list(log.segments)[-1]
    disk.files[name(active.base_offset)].data = disk.files[name(active.base_offset)].data[:-cut]
    log = reopen(disk)
    assert (log.log_end_offset, len(values(log))) == (39, 39)
    append(log, of_producer(1, 39, value=b"39"))
    assert values(log) == [b"%d" % number for number in range(40)]


def test_garbage_after_the_last_batch_is_truncated() -> None:
    disk, log = filled()
    active = list(log.segments)[-1]
    disk.files[name(active.base_offset)].data += b"\x00" * 500
    assert fingerprint(reopen(disk)) == fingerprint(log)


def test_flipped_bit_ends_the_log_there() -> None:
    disk, log = filled()
    bases = [segment.base_offset for segment in log.segments]
    disk.files[name(bases[2])].data[100] ^= 1
    log = reopen(disk)
    assert log.log_end_offset == bases[2] + 1
    assert not disk.exists(name(bases[3]))
    assert [path for path in disk.files if path.endswith(".snapshot")] == [
        name(bases[1], ".snapshot"),
        name(bases[2], ".snapshot"),
        name(bases[2] + 1, ".snapshot"),
    ]
    append(log, of_producer(1, bases[2] + 1))


def test_records_before_the_recovery_point_are_not_read_again() -> None:
    disk, log = filled()
    bases = [segment.base_offset for segment in log.segments]
    offset, paths = log.pending_sync()
    assert offset == bases[-1]
    assert name(bases[0]) in paths
    assert name(bases[-1]) not in paths
    log.mark_synced(offset)
    assert log.pending_sync() == (offset, [])
    disk.files[name(bases[2])].data[100] ^= 1
    assert reopen(disk, recovery_point=offset).log_end_offset == 40
    assert reopen(disk, recovery_point=bases[2]).log_end_offset == bases[2] + 1


def test_batch_out_of_place_ends_the_log() -> None:
    disk, log = filled()
    active = list(log.segments)[-1]
    disk.files[name(active.base_offset)].data += bytes(log.read(0, 100, upto=1, at_least_one=True))
    assert reopen(disk).log_end_offset == 40


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("damage", [None, b"123"])
def test_indexes_are_rebuilt(suffix: str, damage: bytes | None, clean: bool) -> None:
    disk, log = busy()
    before = fingerprint(log)
    log.close()
    for path in [path for path in disk.files if path.endswith(suffix)]:
        if damage is not None:
            disk.atomic_write(path, damage)
        elif suffix != ".txnindex":  # this file exists only if it has entries
            disk.remove(path)
    assert fingerprint(reopen(disk, clean=clean)) == before


def test_index_files_are_the_same_after_recovery() -> None:
    disk, log = busy()
    log.close()
    kinds = (".index", ".timeindex", ".txnindex")
    before = {path: bytes(content.data) for path, content in disk.files.items() if path.endswith(kinds)}
    assert len(before) > 8
    reopen(disk).close()
    after = {path: bytes(content.data) for path, content in disk.files.items() if path.endswith(kinds)}
    assert after == before


def test_older_snapshot_replaces_a_damaged_one() -> None:
    disk, log = busy()
    before = fingerprint(log)
    log.close()
    newest = max(path for path in disk.files if path.endswith(".snapshot"))
    disk.files[newest].data[8] ^= 1
    assert fingerprint(reopen(disk, clean=True)) == before
    disk.files[newest].data[8] ^= 1
    assert fingerprint(reopen(disk, clean=True)) == before


def test_snapshot_newer_than_the_log_is_ignored() -> None:
    disk, log = filled()
    log.close()
    active = list(log.segments)[-1]
    disk.files[name(active.base_offset)].data = disk.files[name(active.base_offset)].data[:-1]
    log = reopen(disk)
    assert not disk.exists(name(40, ".snapshot"))
    assert not append(log, of_producer(1, 39)).duplicate


def test_stray_snapshots_and_leftovers_are_removed() -> None:
    disk, log = filled()
    log.close()
    for stray in (name(3, ".snapshot"), name(3, ".index"), name(0, ".log.deleted"), name(0, ".log.cleaned")):
        disk.atomic_write(stray, b"")
    reopen(disk, clean=True)
    bases = [segment.base_offset for segment in log.segments]
    left = {path for path in disk.files if path.startswith(f"{FOLDER}/0")}
    kept = {name(base, suffix) for base in bases for suffix in (".log", ".index", ".timeindex")}
    assert left == kept | {name(offset, ".snapshot") for offset in [*bases[1:], 40]}


def test_expired_producers_are_not_loaded() -> None:
    disk, log = filled()
    log.close()
    log = reopen(disk, clean=True, now_ms=NOW + 24 * 3600 * 1000)
    assert log.producers() == []


def test_producers_outlive_their_records_after_a_clean_restart() -> None:
    """KIP-360: everything is deleted, and the sequences are still known."""
    disk, log = filled()
    log.roll(NOW)
    log.advance_log_start(40)
    delete_old_segments(log)
    log.close()
    log = reopen(disk, clean=True, log_start_offset=40)
    with pytest.raises(ProtocolError, match="gap"):
        append(log, of_producer(1, 41))
    append(log, of_producer(1, 40))


def test_checkpointed_start_offset_is_kept() -> None:
    disk, log = filled()
    log.advance_log_start(13)
    log.close()
    for clean in (True, False):
        log = reopen(disk, clean=clean, log_start_offset=13)
        assert (log.log_start_offset, len(values(log))) == (13, 27)
        assert log.epoch_at(13) == 1


def test_log_that_ends_before_its_start_is_emptied() -> None:
    disk, log = filled()
    log.close()
    log = reopen(disk, clean=True, log_start_offset=100)
    assert (log.log_start_offset, log.log_end_offset, log.producers()) == (100, 100, [])
    assert append(log, batch()).first_offset == 100
    assert reopen(disk).log_end_offset == 101


def test_leader_epochs_are_recovered_from_the_log() -> None:
    disk, _ = filled()
    disk.remove(f"{FOLDER}/leader-epoch-checkpoint")
    again = reopen(disk)
    assert [again.end_offset_for_epoch(epoch) for epoch in range(4)] == [(0, 10), (1, 20), (2, 30), (3, 40)]


def test_false_clean_mark_is_detected() -> None:
    disk, log = filled()
    log.close()
    active = list(log.segments)[-1]
    disk.files[name(active.base_offset)].data += b"\x00\x01"
    assert reopen(disk, clean=True).log_end_offset == 40


def test_unreadable_folder_is_a_storage_error() -> None:
    disk = CrashDisk()

    def refuse(path: str) -> list[str]:
        raise PermissionError(path)

    disk.listdir = refuse  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="cannot open t-0") as caught:
        open_log(disk, SMALL)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_flushed_records_survive_a_power_loss() -> None:
    disk, log = busy()
    before = fingerprint(log)
    log.flush()
    assert log.recovery_point == log.log_end_offset
    disk.crash(lambda low, high: low)
    snapshots = [path for path in disk.files if path.endswith(".snapshot")]
    assert len(snapshots) == len(log.segments) - 1
    assert all(list(decode_snapshot(disk.read_file(path))) for path in snapshots)
    assert fingerprint(reopen(disk, recovery_point=log.recovery_point)) == before


@pytest.mark.parametrize("seed", range(30))
def test_power_loss_leaves_a_prefix(seed: int) -> None:
    choose: Callable[[int, int], int] = random.Random(seed).randint
    disk, log = new_log(SMALL)
    for sequence in range(40):
        append(log, of_producer(1, sequence, value=b"%d" % sequence))
        if sequence == 20:
            log.flush()
    disk.crash(choose)
    again = reopen(disk, recovery_point=log.recovery_point)
    end = again.log_end_offset
    assert 21 <= end <= 40
    assert values(again) == [b"%d" % number for number in range(end)]
    append(again, of_producer(1, end))


def test_state_without_any_snapshot_is_recovered_from_the_log() -> None:
    disk, log = busy()
    before = fingerprint(log)
    log.close()
    for path in [path for path in disk.files if path.endswith(".snapshot")]:
        disk.remove(path)
    assert fingerprint(reopen(disk, clean=True)) == before


def test_epochs_of_lost_batches_are_dropped() -> None:
    disk, log = filled()
    bases = [segment.base_offset for segment in log.segments]
    kept = next(base for base in bases if base > 10)
    for base in bases:
        if base >= kept:
            disk.remove(name(base))
    log = reopen(disk)
    assert log.log_end_offset == kept
    assert log.leader_epoch == (kept - 1) // 10
    assert log.end_offset_for_epoch(3) == (-1, -1)


def test_truncation_is_synced_by_a_clean_stop() -> None:
    """The next start reads no batch, so a power failure must not bring truncated records back."""
    disk, log = filled()
    log.flush()
    log.truncate_to(log.segments.active.base_offset + 1, NOW)
    end = log.log_end_offset
    log.close()
    disk.crash(lambda low, _: low)
    assert open_log(disk, SMALL, clean=True).log_end_offset == end


def test_open_transactions_are_loaded_in_the_order_of_their_start() -> None:
    disk, log = new_log(SMALL)
    append(log, of_producer(1, 0, txn=True))
    append(log, of_producer(2, 0, txn=True))
    end_txn(log, 1, commit=True)
    append(log, of_producer(1, 1, txn=True))
    log.close()
    log = reopen(disk, clean=True)
    assert log.last_stable_offset == 1
    end_txn(log, 2, commit=True)
    assert log.last_stable_offset == 3


def test_largest_timestamp_survives_a_clean_stop() -> None:
    disk, log = new_log(SMALL)
    for step in (1, 9):
        append(log, batch(timestamp=NOW + step))
    log.close()
    assert max_timestamp(reopen(disk, clean=True)) == (NOW + 9, 1, 0)


def test_index_that_points_past_the_log_is_rebuilt() -> None:
    disk, log = filled()
    log.close()
    active = log.segments.active
    disk.files[active.path].data = disk.files[active.path].data[: active.position_of(active.base_offset + 1)]
    log = reopen(disk, clean=True)
    assert log.log_end_offset == active.base_offset + 1
    assert len(values(log)) == log.log_end_offset


def test_empty_folder_gets_no_snapshot() -> None:
    disk, log = filled(1)
    disk.files[name(0)].data.clear()
    log = reopen(disk)
    assert (log.log_end_offset, [path for path in disk.files if path.endswith(".snapshot")]) == (0, [])
