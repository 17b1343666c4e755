"""Errors of a broker's process before it starts."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.broker.folder_locks import FolderLock, StartError, check_apart
from oncelog.broker.resources import share_descriptors
from oncelog.cluster.changes import cannot_write
from oncelog.cluster.store import StoreError
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.log.disk import full_disk, is_full

Paths = Callable[[Path], list[Path]]

REFUSED: dict[str, tuple[str, Paths]] = {
    "the same twice": ("more than once", lambda root: [root / "a", root / "b", root / "a"]),
    "the same by another name": ("more than once", lambda root: [root / "a", root / "b" / ".." / "a"]),
    "the same by a link": ("more than once", lambda root: [root / "a", root / "link"]),
    "one in another": ("which is inside", lambda root: [root / "a", root / "a" / "inner"]),
    "the outer one last": ("which is inside", lambda root: [root / "a" / "t-0", root / "b", root / "a"]),
    "one in another by a link": ("which is inside", lambda root: [root / "link" / "inner", root / "a"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_overlapping_log_directories_are_rejected(tmp_path: Path, case: str) -> None:
    message, paths = REFUSED[case]
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(StartError, match=message):
        check_apart([str(path) for path in paths(tmp_path)])


def test_broker_does_not_start_with_overlapping_log_directories(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path / 'a'},{tmp_path / 'a' / 'inner'}\n")
    command = [sys.executable, "-m", "oncelog", "broker", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("oncelog: log.dirs names ")
    assert list(tmp_path.iterdir()) == [config]  # rejected before anything was created


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["data", "data2"], ["a/b", "a/c"]])
def test_separate_log_directories_are_accepted(tmp_path: Path, names: list[str]) -> None:
    check_apart([str(tmp_path / name) for name in names])


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 1 << 20])
def test_connections_leave_descriptors_for_the_logs(limit: int) -> None:
    logs, clients = share_descriptors(limit)
    assert logs > 0
    assert clients > 0
    assert logs + clients < limit


def test_root_directory_contains_all_others(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="which is inside"):
        check_apart([str(tmp_path), "/"])


LOCK = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print(1)"
"""Apache Kafka's use of the file `.lock` in each log directory."""


def test_lock_keeps_apache_kafka_out_and_vice_versa(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-c", f"{LOCK}; sys.stdin.read()", str(tmp_path / ".lock")]
    lock = FolderLock(str(tmp_path))
    with pytest.raises(StartError, match=f"in use by process {os.getpid()}"):
        FolderLock(str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    assert done.stderr.strip().endswith("Resource temporarily unavailable"), "the second attempt freed nothing"
    lock.release()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as kafka:
        assert kafka.stdout is not None
        assert kafka.stdout.readline() == b"1\n"
        with pytest.raises(StartError, match="in use by Apache Kafka"):
            FolderLock(str(tmp_path))
        kafka.communicate(timeout=60)
    FolderLock(str(tmp_path), 60.0).release()


def test_start_on_a_full_disk_names_the_directory_and_its_free_bytes(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "metadata.sqlite"))
    store._connection.execute("PRAGMA max_page_count = 1")  # as on a full disk
    with pytest.raises(StoreError) as failed:
        store.create("/a", bytes(100_000))
    store.close()
    refused = cannot_write("metadata", failed.value)
    refused.__cause__ = failed.value
    for error in (failed.value, refused, OSError(errno.ENOSPC, "No space left on device")):
        assert is_full(error)
    assert not is_full(OSError(errno.EIO, "Input/output error"))
    said = full_disk([str(tmp_path / "missing"), str(tmp_path)])
    for sentence in (str(failed.value), said):
        assert re.fullmatch(
            rf"the file system of {tmp_path} is full: \d+ bytes are free\. "
            r"Delete files there .*`oncelog topic delete` and `delete-records` free more",
            sentence,
        )
