"""Snapshots of many producers are encoded in steps, during the appends after a roll."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.log import snapshot
from oncelog.log.log import Log
from oncelog.log.producer_state import ProducerEntry
from oncelog.log.snapshot import decode_snapshot
from oncelog.log.steps import at_once
from support.crashdisk import CrashDisk
from support.logs import NOW, append, delete_old_segments, new_log, of_producer, open_log


@pytest.fixture
def few_producers_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode larger snapshots in steps of 5 producers, so that the tests need few producers."""
    monkeypatch.setattr("oncelog.log.snapshot.PRODUCERS_AT_ONCE", 5)
    monkeypatch.setattr("oncelog.log.snapshot.PRODUCERS_A_STEP", 5)


def reopen(disk: CrashDisk, **options: Any) -> Log:
    disk.kill()
    return open_log(disk, **options)


def rolled_log() -> tuple[CrashDisk, Log]:
    """Return a log with one batch of each of 22 producers and an empty segment, whose snapshot is unfinished."""
    disk, log = new_log()
    for producer in range(22):
        append(log, of_producer(producer, 0))
    log.roll(NOW)
    return disk, log


def snapshots(disk: CrashDisk) -> list[str]:
    return sorted(path for path in disk.files if path.endswith(".snapshot"))


@pytest.mark.usefixtures("few_producers_a_step")
def test_snapshot_of_many_producers_is_encoded_during_the_next_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the producers as they were at the roll. Encoding 100,000 producers takes 0.2 s."""
    encoded: list[int] = []
    row = snapshot._row

    def counted(entry: ProducerEntry, *rest: Any) -> bytes:
        encoded[-1] += 1
        return row(entry, *rest)

    monkeypatch.setattr(snapshot, "_row", counted)
    disk, log = new_log()
    for producer in range(22):
        append(log, of_producer(producer, 0))
    encoded.append(0)
    log.roll(NOW)
    for producer in (21, 0, 21, 30):
        assert not snapshots(disk)
        encoded.append(0)
        append(log, of_producer(producer, log.producer_entries[producer].last_sequence + 1 if producer < 30 else 0))
    encoded.append(0)
    append(log, of_producer(1, 1))
    assert encoded == [0, 5, 5, 5, 5, 2]
    found = {entry.producer_id: entry.last_sequence for entry in decode_snapshot(disk.read_file(snapshots(disk)[0]))}
    assert found == dict.fromkeys(range(22), 0)
    expected = {**found, 0: 1, 1: 1, 21: 2, 30: 0}
    for opened in (log, reopen(disk)):
        assert {entry.producer_id: entry.last_sequence for entry in opened.producer_entries.values()} == expected


@pytest.mark.usefixtures("few_producers_a_step")
@pytest.mark.parametrize("way", ["kill", "close"])
def test_producers_outlive_their_records_although_their_snapshot_is_unfinished(way: str) -> None:
    disk, log = rolled_log()
    log.advance_log_start(22)
    delete_old_segments(log)
    if way == "close":
        log.close()
    log = reopen(disk, clean=way == "close", log_start_offset=22)
    assert sorted(log.producer_entries) == list(range(22))


@pytest.mark.usefixtures("few_producers_a_step")
@pytest.mark.parametrize("recovery_point", [0, 10, 22, 23])
@pytest.mark.parametrize("log_start", [5, 10, 11, 22, 23])
def test_producers_before_the_log_start_survive_a_kill_while_a_snapshot_is_unfinished(
    log_start: int, recovery_point: int
) -> None:
    """DeleteRecords moves the log start. The segments before it are deleted later, and still have the producers."""
    disk, log = new_log()
    for producer in range(22):
        if producer == 10:
            log.roll(NOW)
        append(log, of_producer(producer, 0))
    assert len(snapshots(disk)) == 1
    log.roll(NOW)
    append(log, of_producer(1, 1))
    assert len(snapshots(disk)) == 1
    log.advance_log_start(log_start)
    again = reopen(disk, log_start_offset=log_start, recovery_point=recovery_point)
    assert again.log_start_offset == log_start
    assert again.producer_entries.keys() == log.producer_entries.keys()
    assert [entry.last_sequence for entry in again.producer_entries.values()].count(1) == 1


@pytest.mark.usefixtures("few_producers_a_step")
def test_snapshot_is_finished_in_steps_before_the_deletion_of_segments() -> None:
    """Encoding 100,000 producers at once would stop the event loop for 0.3 s."""
    disk, log = rolled_log()
    log.advance_log_start(22)
    steps = log.finishing_snapshot(22)
    for _ in range(4):
        next(steps)
        assert snapshots(disk) == []
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert done.value.value[:1] == snapshots(disk)
    assert log.delete_old_segments(22) == 1
    assert len(log.segments) == 1


@pytest.mark.usefixtures("few_producers_a_step")
@pytest.mark.parametrize("log_start", [10, 22, 23])
def test_roll_before_the_deletion_of_segments_loses_no_producers(log_start: int) -> None:
    """The snapshot of the new roll is unfinished, but the one that is already finished has the producers."""
    disk, log = new_log()
    for producer in range(22):
        if producer == 10:
            log.roll(NOW)
        append(log, of_producer(producer, 0))
    log.roll(NOW)
    append(log, of_producer(22, 0))
    if log_start == 23:
        log.roll(NOW)
    log.advance_log_start(log_start)
    at_once(log.finishing_snapshot(log_start))
    append(log, of_producer(30, 0))
    log.roll(NOW)
    assert log.delete_old_segments(log_start) > 0
    again = reopen(disk, log_start_offset=log_start)
    assert sorted(again.producer_entries) == [*range(23), 30]


@pytest.mark.usefixtures("few_producers_a_step")
def test_snapshot_is_not_finished_if_the_log_is_closed_in_a_pause() -> None:
    disk, log = rolled_log()
    log.advance_log_start(22)
    steps = log.finishing_snapshot(22)
    next(steps)
    log.discard()
    before = disk.listdir(log.directory)
    assert at_once(steps) == []
    assert log.delete_old_segments(22) == 0
    assert disk.listdir(log.directory) == before


@pytest.mark.usefixtures("few_producers_a_step")
def test_unfinished_snapshot_is_dropped_by_a_truncation() -> None:
    """It has producers and batches that the log no longer has."""
    disk, log = rolled_log()
    log.truncate_to(10, NOW)
    for sequence in range(1, 20):
        append(log, of_producer(1, sequence))
    assert not any(path.endswith("22.snapshot") for path in disk.files)
    assert sorted(reopen(disk).producer_entries) == list(range(10))


def synced_after_each_append() -> tuple[CrashDisk, Log]:
    """Return a log whose snapshot was finished after the sync of its offset."""
    disk, log = rolled_log()
    for sequence in range(1, 6):
        append(log, of_producer(1, sequence))
        log.flush()
    assert len(snapshots(disk)) == 1
    return disk, log


@pytest.mark.usefixtures("few_producers_a_step")
def test_snapshot_that_is_finished_after_a_sync_of_its_offset_is_synced_too() -> None:
    """Otherwise, a power failure after the deletion of the records would also lose their producers."""
    disk, log = synced_after_each_append()
    log.advance_log_start(22)
    delete_old_segments(log)
    disk.crash(lambda synced, _: synced)
    log = open_log(disk, recovery_point=log.recovery_point, log_start_offset=22)
    assert sorted(log.producer_entries) == list(range(22))


@pytest.mark.usefixtures("few_producers_a_step")
def test_snapshot_that_was_deleted_is_not_synced() -> None:
    """The log would go offline, because a file is missing."""
    disk, log = synced_after_each_append()
    log.truncate_to(10, NOW)
    assert not snapshots(disk)
    append(log, of_producer(30, 0))
    log.flush()
    assert log.recovery_point == 11
