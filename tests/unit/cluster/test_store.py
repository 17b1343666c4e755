"""One contract for every tree."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster import store_sqlite as tree_sqlite
from oncelog.cluster.leases import PAUSE_MS
from oncelog.cluster.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    EphemeralParentError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
    SessionExpiredError,
    SessionHeldError,
    Set,
    UnavailableError,
    ensure,
)
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.store_sqlite import SqliteStore

OpenTree = Callable[[], MetadataStore]


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[MetadataStore]:
    made: MetadataStore = (
        MemoryStore(clock) if request.param == "memory" else SqliteStore(str(tmp_path / "tree.db"), now_ms=clock)
    )
    yield made
    made.close()


@pytest.fixture
def observer(store: MetadataStore, tmp_path: Path, clock: Clock) -> Iterator[MetadataStore]:
    """The tree as another process sees it."""
    made = store if isinstance(store, MemoryStore) else SqliteStore(str(tmp_path / "tree.db"), now_ms=clock)
    yield made
    made.close()


def test_nodes_hold_data_and_a_version(store: MetadataStore) -> None:
    store.create("/a", b"one")
    assert store.get("/a") == (b"one", 0, None)
    assert store.set("/a", b"two", 0) == 1
    assert store.set("/a", b"three") == 2
    assert store.get("/a") == (b"three", 2, None)
    assert store.exists("/a")
    store.delete("/a", 2)
    assert not store.exists("/a")
    with pytest.raises(NoNodeError):
        store.get("/a")


def test_refusals(store: MetadataStore) -> None:
    store.create("/a", b"one")
    with pytest.raises(NodeExistsError):
        store.create("/a", b"two")
    with pytest.raises(NoNodeError) as caught:
        store.create("/b/c")
    assert caught.value.path == "/b"
    for refused in (lambda: store.set("/a", b"x", 1), lambda: store.delete("/a", 1)):
        with pytest.raises(BadVersionError):
            refused()
    for refused in (
        lambda: store.set("/b", b"x"),
        lambda: store.delete("/b"),
        lambda: store.children("/b"),
        lambda: store.multi([Check("/b")]),
    ):
        with pytest.raises(NoNodeError):
            refused()
    store.create("/a/b")
    for path in ("/a", "/"):
        with pytest.raises(NotEmptyError):
            store.delete(path)
    assert store.get("/a") == (b"one", 0, None)


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b"])
def test_malformed_paths(store: MetadataStore, path: str) -> None:
    with pytest.raises(ValueError, match="invalid path"):
        store.create(path)


def test_children_are_names_in_order(store: MetadataStore) -> None:
    ensure(store, "/brokers/ids")
    ensure(store, "/brokers/topics/t")
    assert store.children("/") == ["brokers"]
    assert store.children("/brokers") == ["ids", "topics"]
    assert store.children("/brokers/ids") == []
    for name in ("9", "10", "1"):
        store.create(f"/brokers/ids/{name}")
    assert store.children("/brokers/ids") == ["1", "10", "9"]
    store.delete("/brokers/ids/10")
    assert store.children("/brokers/ids") == ["1", "9"]


def test_recreated_node_starts_at_version_0(store: MetadataStore) -> None:
    store.create("/a")
    store.set("/a", b"x")
    store.delete("/a")
    store.create("/a")
    assert store.get("/a").version == 0


def test_multi_is_all_or_nothing(store: MetadataStore) -> None:
    store.create("/epoch", b"1")
    store.create("/gone", b"old")
    store.multi([Check("/epoch", 0), Create("/new"), Create("/new/b", b"n"), Delete("/gone"), Set("/epoch", b"2", 0)])
    assert store.get("/new/b").data == b"n"
    assert store.get("/epoch") == (b"2", 1, None)
    with pytest.raises(BadVersionError):
        store.multi([Create("/other"), Delete("/new/b"), Set("/new", b"x"), Check("/epoch", 0)])
    assert store.children("/") == ["epoch", "new"]
    assert store.get("/new") == (b"", 0, None)
    assert store.children("/new") == ["b"]


def test_ephemeral_nodes_end_with_their_session(store: MetadataStore, observer: MetadataStore, clock: Clock) -> None:
    session = store.open_session("broker-1", 100)
    store.create("/one", session=session)
    with pytest.raises(EphemeralParentError):
        store.create("/one/below")
    clock.ms += 99
    store.renew(session)
    clock.ms += 99
    observer.poll()
    assert store.get("/one").session == session
    clock.ms += 1
    observer.poll()
    with pytest.raises(NoNodeError):
        store.get("/one")
    for refused in (
        lambda: store.renew(session),
        lambda: store.create("/one", session=session),
        lambda: store.multi([Create("/two")], session=session),
    ):
        with pytest.raises(SessionExpiredError):
            refused()
    assert store.children("/") == []
    store.close_session(session)


def test_write_detects_expired_sessions_without_a_poll(
    store: MetadataStore, observer: MetadataStore, clock: Clock
) -> None:
    session = store.open_session("broker-1", 100)
    store.create("/controller", b"1", session=session)
    clock.ms += 100
    observer.create("/controller", b"2")
    assert store.get("/controller") == (b"2", 0, None)


def test_new_session_of_the_same_owner_fences_the_old_one(store: MetadataStore) -> None:
    zombie = store.open_session("broker-1", 1000)
    store.create("/one", b"zombie", session=zombie)
    session = store.open_session("broker-1", 1000)
    assert session != zombie
    store.create("/one", b"successor", session=session)
    with pytest.raises(SessionExpiredError):
        store.multi([Set("/one", b"zombie")], session=zombie)
    assert store.get("/one").data == b"successor"


def test_closing_a_session_leaves_others_alone(store: MetadataStore) -> None:
    first, second = store.open_session("a", 1000), store.open_session("b", 1000)
    store.create("/a", session=first)
    store.create("/b", session=second)
    store.close_session(first)
    assert store.children("/") == ["b"]


def test_watches_see_changes_of_data_and_children_creation_and_deletion(store: MetadataStore) -> None:
    seen: list[str] = []
    cancel = store.watch("/a", seen.append)
    store.poll()
    assert seen == []
    expected = 0
    for change in (
        lambda: store.create("/a"),
        lambda: store.set("/a", b"x"),
        lambda: store.create("/a/b"),
        lambda: store.delete("/a/b"),
        lambda: store.delete("/a"),
    ):
        change()
        expected += 1
        store.poll()
        store.poll()
        assert seen == ["/a"] * expected
    store.create("/other")
    store.poll()
    assert len(seen) == expected
    store.create("/a")
    store.delete("/a")
    store.create("/a")
    cancel()
    store.poll()
    assert len(seen) == expected


def test_watch_ignores_grandchildren_and_sees_a_recreated_node(store: MetadataStore) -> None:
    store.create("/a")
    store.create("/a/b")
    seen: list[str] = []
    store.watch("/a", seen.append)
    store.watch("/a/b", seen.append)
    store.create("/a/b/c")
    store.delete("/a/b/c")
    store.poll()
    assert seen == ["/a/b"]
    store.delete("/a/b")
    store.create("/a/b")
    store.poll()
    assert sorted(seen) == ["/a", "/a/b", "/a/b"]


def test_watch_sees_the_end_of_a_session(store: MetadataStore, observer: MetadataStore, clock: Clock) -> None:
    session = store.open_session("broker-1", 100)
    store.create("/one", session=session)
    seen: list[str] = []
    store.watch("/one", seen.append)
    clock.ms += 100
    observer.poll()
    store.poll()
    assert seen == ["/one"]


# -- persistence --------------------------------------------------------------------------------------------------


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

    monkeypatch.setattr("oncelog.cluster.store_sqlite.time.sleep", pause)
    store = SqliteStore(path)
    assert len(pauses) == 3
    store.create("/n")
    store.close()
    other.close()


def test_sqlite_waits_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "tree.db")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(tree_sqlite, "WRITE_WAIT_S", 0.05)
    with pytest.raises(UnavailableError, match=r"tree\.db: database is locked"):
        SqliteStore(path)
    other.close()


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
