"""The tree in a file: persistence, sessions of other processes, locks, and full or failing disks."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from oncelog.cluster import store_sqlite as tree_sqlite
from oncelog.cluster.leases import PAUSE_MS
from oncelog.cluster.store import (
    BadVersionError,
    Create,
    OutcomeUnknownError,
    SessionExpiredError,
    SessionHeldError,
    UnavailableError,
)
from oncelog.cluster.store_sqlite import SqliteStore
from support.broker_sets import Clock
from support.checked_patch import in_this_thread


def test_sqlite_persists_nodes(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    store = SqliteStore(path)
    store.create("/a", b"one")
    store.set("/a", b"two")
    store.close()
    again = SqliteStore(path)
    assert again.get("/a") == (b"two", 1, None)
    again.close()


def test_sqlite_ends_sessions_of_before_a_reboot(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "tree.db"), Clock()
    store = SqliteStore(path, now_ms=clock)
    store.create("/one", session=store.open_session("broker-1", 1000))
    store.close()
    clock.ms = 5
    again = SqliteStore(path, now_ms=clock)
    again.poll()
    assert again.children("/") == []
    again.close()


def _hold_a_session(path: str, ready: Any) -> None:
    store = SqliteStore(path)
    store.create("/one", session=store.open_session("broker-1", 3_600_000))
    ready.send(True)
    ready.poll(600)


@contextmanager
def _holder(path: str) -> Iterator[Any]:
    """Yield a process that has a session and the ephemeral node /one."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold_a_session, args=(path, theirs))
    process.start()
    assert ours.recv()
    yield process
    process.kill()
    process.join()


def test_sqlite_session_of_a_killed_process_ends_at_once(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "tree.db"))
    with _holder(str(tmp_path / "tree.db")) as process:
        store.poll()
        assert store.children("/") == ["one"]
        process.kill()
        process.join()
        store.poll()
        assert store.children("/") == []
    store.close()


def test_sqlite_restarted_process_gets_the_session_of_the_killed_one(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "tree.db"))
    with _holder(str(tmp_path / "tree.db")) as process:
        with pytest.raises(SessionHeldError, match="broker-1"):
            store.open_session("broker-1", 1000)
        assert store.children("/") == ["one"]
        process.kill()
        process.join()
        store.open_session("broker-1", 1000)
        assert store.children("/") == []
    store.close()


def test_sqlite_session_of_a_paused_process_ends_with_its_lease(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "tree.db"), Clock()
    paused, other = SqliteStore(path, now_ms=clock), SqliteStore(path, now_ms=clock)
    session = paused.open_session("broker-1", 1000)
    clock.ms += 1000
    paused.renew(session)  # it was alone, so no other process has ended its session
    clock.ms += 1000
    other.poll()
    with pytest.raises(SessionExpiredError):
        paused.renew(session)
    with pytest.raises(SessionHeldError):  # the process lives
        other.open_session("broker-1", 1000)
    paused.renew(paused.open_session("broker-1", 1000))
    paused.close()
    other.close()


def test_sqlite_store_that_was_paused_gives_others_time_to_renew(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "tree.db"), Clock()
    first, second, third = (SqliteStore(path, now_ms=clock) for _ in range(3))
    sessions = [store.open_session(name, 1000) for store, name in ((first, "broker-1"), (second, "broker-2"))]
    clock.ms += PAUSE_MS + 1
    third.poll()
    first.renew(sessions[0])
    clock.ms += 999
    third.poll()
    first.renew(sessions[0])
    second.renew(sessions[1])
    clock.ms += 1001
    third.poll()  # it trusts the leases again
    for store, session in ((first, sessions[0]), (second, sessions[1])):
        with pytest.raises(SessionExpiredError):
            store.renew(session)
    for store in (first, second, third):
        store.close()


def test_sqlite_store_that_looks_seldom_ends_sessions_of_paused_processes(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "tree.db"), Clock()
    paused, slow = SqliteStore(path, now_ms=clock), SqliteStore(path, now_ms=clock)
    session = paused.open_session("broker-1", 1000)
    for _ in range(2):
        clock.ms += PAUSE_MS + 1
        slow.poll()
    with pytest.raises(SessionExpiredError):
        paused.renew(session)
    paused.close()
    slow.close()


def _replace(file: Path) -> None:
    """Put another file with the same content in the place of this one, as a restored backup does."""
    other = file.with_name("copy")
    other.write_bytes(file.read_bytes())
    other.rename(file)


DAMAGES: list[Callable[[Path], None]] = [Path.unlink, _replace, lambda file: os.truncate(file, 0)]


@pytest.mark.parametrize("damage", DAMAGES, ids=["deleted", "replaced", "truncated"])
def test_sqlite_session_survives_damage_of_its_lease_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path, clock = str(tmp_path / "tree.db"), Clock()
    holder, other = SqliteStore(path, now_ms=clock), SqliteStore(path, now_ms=clock)
    session = holder.open_session("broker-1", 1000)
    other.poll()
    damage(tmp_path / "tree.db-lease-broker-1")
    for _ in range(5):
        other.poll()
        clock.ms += 500
        holder.renew(session)
    late = SqliteStore(path, now_ms=clock)
    late.poll()
    holder.renew(session)
    clock.ms += 1000
    other.poll()  # the lease ends as before
    with pytest.raises(SessionExpiredError):
        holder.renew(session)
    with pytest.raises(SessionHeldError):
        late.open_session("broker-1", 1000)
    for store in (holder, other, late):
        store.close()


@pytest.mark.parametrize("damage", DAMAGES, ids=["deleted", "replaced", "truncated"])
def test_sqlite_session_after_damage_of_an_old_lease_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path, clock = str(tmp_path / "tree.db"), Clock()
    earlier, other = SqliteStore(path, now_ms=clock), SqliteStore(path, now_ms=clock)
    earlier.open_session("broker-1", 1000)
    other.poll()  # it keeps the lease file open
    earlier.close()
    other.poll()
    damage(tmp_path / "tree.db-lease-broker-1")
    again = SqliteStore(path, now_ms=clock)
    session = again.open_session("broker-1", 1000)
    for _ in range(3):
        other.poll()
        clock.ms += 500
        again.renew(session)
    again.close()
    other.poll()
    session = other.open_session("broker-1", 1000)
    other.renew(session)
    other.close()


def test_sqlite_process_that_holds_a_deleted_lease_file_cannot_end_the_session_of_the_new_holder(
    tmp_path: Path,
) -> None:
    path, clock = str(tmp_path / "tree.db"), Clock()
    hanging, again, other = (SqliteStore(path, now_ms=clock) for _ in range(3))
    old = hanging.open_session("broker-1", 1000)
    other.poll()
    (tmp_path / "tree.db-lease-broker-1").unlink()
    session = again.open_session("broker-1", 1000)
    for _ in range(5):
        clock.ms += 500
        again.renew(session)
        other.poll()
    with pytest.raises(SessionExpiredError):
        hanging.renew(old)
    with pytest.raises(SessionHeldError):
        hanging.open_session("broker-1", 1000)
    again.renew(session)
    for store in (hanging, again, other):
        store.close()


def test_sqlite_lease_of_a_deleted_tree_is_not_created_in_the_next_one(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    store = SqliteStore(path)
    session = store.open_session("broker-1", 1000)
    for file in tmp_path.iterdir():
        file.unlink()
    new = SqliteStore(path)
    with suppress(SessionExpiredError, UnavailableError):
        store.renew(session)
    new.open_session("broker-1", 1000)
    store.close()
    new.close()


def test_sqlite_renewal_syncs_nothing_and_wakes_no_watcher(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    store, other = SqliteStore(path), SqliteStore(path)
    session = store.open_session("broker-1", 1000)
    other.poll()
    log = tmp_path / "tree.db-wal"
    before = log.stat()
    version = other._connection.execute("PRAGMA data_version").fetchone()
    for _ in range(10):
        store.renew(session)
        other.poll()
    assert (log.stat().st_size, log.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert other._connection.execute("PRAGMA data_version").fetchone() == version
    store.close()
    other.close()


def test_sqlite_watches_see_another_connection(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    mine, other = SqliteStore(path), SqliteStore(path)
    seen: list[str] = []
    mine.watch("/a", seen.append)
    mine.poll()
    other.create("/a")
    mine.poll()
    mine.poll()
    assert seen == ["/a"]
    mine.close()
    other.close()


def _count_up(path: str, times: int) -> None:
    store = SqliteStore(path)
    for _ in range(times):
        while True:
            node = store.get("/counter")
            try:
                store.set("/counter", str(int(node.data) + 1).encode(), node.version)
            except BadVersionError:
                continue
            break
    store.close()


def test_sqlite_compare_and_set_across_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    context = multiprocessing.get_context("spawn")
    starters = [context.Process(target=SqliteStore, args=(path,)) for _ in range(3)]
    for process in starters:  # three that create the file concurrently
        process.start()
    for process in starters:
        process.join()
    assert [process.exitcode for process in starters] == [0, 0, 0]
    store = SqliteStore(path)
    store.create("/counter", b"0")
    processes = [context.Process(target=_count_up, args=(path, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert store.get("/counter") == (b"60", 60, None)
    store.close()


def test_sqlite_waits_for_a_process_that_creates_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "tree.db")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            other.execute("ROLLBACK")

    monkeypatch.setattr(time, "sleep", in_this_thread(time.sleep, pause))
    store = SqliteStore(path)
    assert len(pauses) == 3
    store.create("/n")
    store.close()
    other.close()


def test_sqlite_waits_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "tree.db")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(tree_sqlite, "OPEN_WAIT_S", 0.05)
    with pytest.raises(UnavailableError, match=r"tree\.db: database is locked"):
        SqliteStore(path)
    other.close()


def test_a_store_opens_although_others_write_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, one of three brokers that started on a slow disk failed: "database is locked"."""
    path = str(tmp_path / "tree.db")
    SqliteStore(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA user_version = 0")
    other.execute("BEGIN IMMEDIATE")
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:  # as if another broker had created the tables, and continued to write
            other.execute(f"PRAGMA user_version = {tree_sqlite.FORMAT}")
            other.execute("COMMIT")
            other.execute("BEGIN IMMEDIATE")

    monkeypatch.setattr(time, "sleep", in_this_thread(time.sleep, pause))
    store = SqliteStore(path)
    assert store.children("/") == []
    assert len(pauses) == 3
    other.close()
    store.close()


class _SlowDisk:
    """A connection whose commits take long, as on a disk with slow syncs."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement == "COMMIT":
            time.sleep(0.3)
        return self._connection.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def _write_all_the_time(path: str, ready: Any) -> None:
    store = SqliteStore(path)
    store._connection = cast("sqlite3.Connection", _SlowDisk(store._connection))
    store._rows = tree_sqlite._SqliteRows(store._connection)
    ready.send(True)
    while not ready.poll():
        store.set("/", b"")


def test_a_busy_writer_on_a_slow_disk_lets_others_write(tmp_path: Path) -> None:
    """Before, the others found no moment in which the lock was free, and failed after ten seconds."""
    path = str(tmp_path / "tree.db")
    store = SqliteStore(path)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    writer = context.Process(target=_write_all_the_time, args=(path, there))
    writer.start()
    try:
        assert here.recv()
        for number in range(3):
            store.create(f"/{number}")
        here.send(True)
        writer.join()
        assert writer.exitcode == 0
    finally:
        writer.kill()
        store.close()


def test_sqlite_from_several_threads(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "tree.db"))
    threads = [threading.Thread(target=store.create, args=(f"/n{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.children("/") == sorted(f"n{number}" for number in range(8))
    store.close()


def test_full_sqlite_store_changes_nothing_and_raises(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    store = SqliteStore(path)
    store._connection.execute("PRAGMA max_page_count = 20")
    with pytest.raises(UnavailableError, match="full"):
        store.multi([Create("/a"), Create("/b", bytes(1_000_000))])
    assert store.children("/") == []
    store.create("/a")
    assert store.exists("/a")
    store.close()


class _FailingConnection:
    """A connection on which some statements fail. `failures` maps a statement to the number of its failures."""

    def __init__(self, connection: sqlite3.Connection, failures: dict[str, int]) -> None:
        self._connection = connection
        self._failures = failures

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        if self._failures.get(statement, 0):
            self._failures[statement] -= 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return self._connection.execute(statement, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_failed_rollback_raises_a_store_error_and_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(str(tmp_path / "tree.db"))
    failing = _FailingConnection(store._connection, {"COMMIT": 1, "ROLLBACK": 2})
    monkeypatch.setattr(store, "_connection", failing)
    with pytest.raises(OutcomeUnknownError, match="disk I/O error"):
        store.create("/a")
    with pytest.raises(UnavailableError, match="disk I/O error"):
        store.create("/b")
    store.create("/c")
    assert store.children("/") == ["c"]
    store.close()


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    """They have the credentials of users, from which passwords can be guessed."""
    before = os.umask(0)
    try:
        store = SqliteStore(str(tmp_path / "tree.db"))
        try:
            store.create("/a", b"secret")
            modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.glob("tree.db*")}
        finally:
            store.close()
    finally:
        os.umask(before)
    assert {name for name, mode in modes.items() if mode} <= {name for name in modes if "lease" in name}
    assert {"tree.db", "tree.db-wal"} <= modes.keys()
