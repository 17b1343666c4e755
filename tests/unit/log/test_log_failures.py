"""One partition's log on failing disks, and on the real one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from oncelog.log.config import LogConfig
from oncelog.log.disk import OsDisk
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.checked_patch import in_this_thread
from support.logs import (
    FOLDER,
    NOW,
    append,
    batch,
    end_txn,
    follow,
    new_log,
    of_producer,
    open_at,
    open_log,
    restart_at,
    values,
)

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        call()
    return caught.value.code


def test_failed_write_changes_nothing() -> None:
    disk, log = new_log()
    append(log, of_producer(1, 0))
    for torn in (0, 1, 60, 75, 1000):
        disk.fail_at, disk.torn_bytes = disk.operations + 1, torn
        assert code_of(lambda: append(log, of_producer(1, 1, 20, txn=True))) == ErrorCode.KAFKA_STORAGE_ERROR
        assert (log.log_end_offset, log.last_stable_offset, len(log.producers())) == (1, 1, 1)
        assert disk.size(f"{FOLDER}/{0:020d}.log") == log.size_bytes
    append(log, of_producer(1, 1))
    assert values(log) == [b"v"] * 2


def test_log_that_may_end_in_half_a_batch_goes_offline() -> None:
    disk, log = new_log()
    append(log, of_producer(1, 0))
    disk.broken, disk.torn_bytes = True, 30
    assert code_of(lambda: append(log, of_producer(1, 1))) == ErrorCode.KAFKA_STORAGE_ERROR
    disk.kill()
    with pytest.raises(ProtocolError, match="offline"):
        append(log, of_producer(1, 1))
    log = open_log(disk)
    append(log, of_producer(1, 1))
    assert values(log) == [b"v"] * 2


def test_log_survives_a_shortage_of_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk(max_open=1)
    log = open_at(disk, f"{tmp_path}/t-0", "t", 0, LogConfig(), NOW)
    append(log, of_producer(1, 0))
    other = disk.open(f"{tmp_path}/other", create=True)  # evicts the log's file
    other.close()

    def refused(*arguments: Any) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as shortage:
        shortage.setattr(os, "open", in_this_thread(os.open, refused))
        assert code_of(lambda: append(log, of_producer(1, 1))) == ErrorCode.KAFKA_STORAGE_ERROR
        assert code_of(lambda: end_txn(log, 2, commit=True)) == ErrorCode.KAFKA_STORAGE_ERROR
    append(log, of_producer(1, 1))
    assert values(log) == [b"v"] * 2
    log.close()


def test_every_step_of_the_first_append_and_of_a_roll_may_fail() -> None:
    for step in range(1, 40):
        disk, log = new_log(SMALL)
        disk.fail_at = step
        failures = []
        for sequence in range(40):
            try:
                append(log, of_producer(1, sequence))
            except ProtocolError as error:
                failures.append(error.code)
                append(log, of_producer(1, sequence))
        assert failures == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert values(log) == [b"v"] * 40
        assert len(values(open_log(disk, SMALL), upto=40)) == 40


def test_failed_append_on_a_real_disk(tmp_path: object) -> None:
    disk = OsDisk(max_open=2)
    log = open_at(disk, f"{tmp_path}/t-0", "t", 0, SMALL, NOW)
    for sequence in range(40):
        append(log, of_producer(1, sequence, value=b"%d" % sequence))
    assert disk.open_files <= 2
    assert values(log) == [b"%d" % number for number in range(40)]
    log.close()
    assert disk.open_files == 0
    log = open_at(disk, f"{tmp_path}/t-0", "t", 0, SMALL, NOW, clean=True)
    log.advance_high_watermark(log.log_end_offset)
    assert append(log, of_producer(1, 39, value=b"39")).duplicate
    assert len(values(log)) == 40
    log.close()


def test_epoch_that_could_not_be_written_is_written_by_the_next_append() -> None:
    disk, log = new_log()
    append(log, batch())
    disk.fail_at = disk.operations + 1
    assert code_of(lambda: append(log, batch(), leader_epoch=1)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.leader_epoch == 0
    append(log, batch(), leader_epoch=1)
    assert disk.read_file(f"{FOLDER}/leader-epoch-checkpoint") == b"0\n2\n0 0\n1 1\n"


def test_epoch_whose_first_batch_could_not_be_written_has_not_started() -> None:
    disk, log = new_log()
    append(log, batch())
    disk.fail_at = disk.operations + 2
    assert code_of(lambda: append(log, batch(), leader_epoch=1)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert disk.read_file(f"{FOLDER}/leader-epoch-checkpoint") == b"0\n2\n0 0\n1 1\n"
    assert (log.leader_epoch, log.end_offset_for_epoch(0)) == (0, (0, 1))
    disk.kill()
    assert open_log(disk).leader_epoch == 0
    append(log, batch(), leader_epoch=0)
    assert disk.read_file(f"{FOLDER}/leader-epoch-checkpoint") == b"0\n1\n0 0\n"


def test_restart_that_is_killed_leaves_no_epoch_after_the_log_end() -> None:
    """Otherwise, a follower names an epoch in its Fetches of which it has no records, and agrees with no leader."""
    killed = 0
    for step in count(1):
        disk, log = new_log(SMALL)
        for epoch in range(4):
            follow(log, batch(10, base_offset=10 * epoch, leader_epoch=epoch), epoch)
        disk.fail_at = disk.operations + step
        try:
            restart_at(log, 60, NOW)
        except ProtocolError:
            killed += 1
        else:
            break
        disk.kill()
        log = open_log(disk, SMALL)
        latest = -1 if log.leader_epoch is None else log.leader_epoch
        assert latest == log.epoch_at(log.log_end_offset - 1), f"killed at operation {step}"
    assert killed >= 3
