"""One contract, held by every tree."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog.cluster import tree_sqlite
from oncelog.cluster.tree import (
    BadVersionError,
    Check,
    Create,
    Delete,
    EphemeralParentError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    Set,
    Tree,
    UnavailableError,
    ensure,
)
from oncelog.cluster.tree_memory import MemoryTree
from oncelog.cluster.tree_sqlite import SqliteTree

OpenTree = Callable[[], Tree]


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def tree(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Tree]:
    made: Tree = MemoryTree(clock) if request.param == "memory" else SqliteTree(str(tmp_path / "tree.db"), now_ms=clock)
    yield made
    made.close()


def test_nodes_hold_data_and_a_version(tree: Tree) -> None:
    tree.create("/a", b"one")
    assert tree.get("/a") == (b"one", 0, None)
    assert tree.set("/a", b"two", 0) == 1
    assert tree.set("/a", b"three") == 2
    assert tree.get("/a") == (b"three", 2, None)
    assert tree.exists("/a")
    tree.delete("/a", 2)
    assert not tree.exists("/a")
    with pytest.raises(NoNodeError):
        tree.get("/a")


def test_refusals(tree: Tree) -> None:
    tree.create("/a", b"one")
    with pytest.raises(NodeExistsError):
        tree.create("/a", b"two")
    with pytest.raises(NoNodeError) as caught:
        tree.create("/b/c")
    assert caught.value.path == "/b"
    for refused in (lambda: tree.set("/a", b"x", 1), lambda: tree.delete("/a", 1)):
        with pytest.raises(BadVersionError):
            refused()
    for refused in (
        lambda: tree.set("/b", b"x"),
        lambda: tree.delete("/b"),
        lambda: tree.children("/b"),
        lambda: tree.multi([Check("/b")]),
    ):
        with pytest.raises(NoNodeError):
            refused()
    tree.create("/a/b")
    for path in ("/a", "/"):
        with pytest.raises(NotEmptyError):
            tree.delete(path)
    assert tree.get("/a") == (b"one", 0, None)


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b"])
def test_malformed_paths(tree: Tree, path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        tree.create(path)


def test_children_are_names_in_order(tree: Tree) -> None:
    ensure(tree, "/brokers/ids")
    ensure(tree, "/brokers/topics/t")
    assert tree.children("/") == ["brokers"]
    assert tree.children("/brokers") == ["ids", "topics"]
    assert tree.children("/brokers/ids") == []
    for name in ("9", "10", "1"):
        tree.create(f"/brokers/ids/{name}")
    assert tree.children("/brokers/ids") == ["1", "10", "9"]
    tree.delete("/brokers/ids/10")
    assert tree.children("/brokers/ids") == ["1", "9"]


def test_a_node_made_anew_starts_at_version_0(tree: Tree) -> None:
    tree.create("/a")
    tree.set("/a", b"x")
    tree.delete("/a")
    tree.create("/a")
    assert tree.get("/a").version == 0


def test_multi_is_all_or_nothing(tree: Tree) -> None:
    tree.create("/epoch", b"1")
    tree.create("/gone", b"old")
    tree.multi([Check("/epoch", 0), Create("/new"), Create("/new/b", b"n"), Delete("/gone"), Set("/epoch", b"2", 0)])
    assert tree.get("/new/b").data == b"n"
    assert tree.get("/epoch") == (b"2", 1, None)
    with pytest.raises(BadVersionError):
        tree.multi([Create("/other"), Delete("/new/b"), Set("/new", b"x"), Check("/epoch", 0)])
    assert tree.children("/") == ["epoch", "new"]
    assert tree.get("/new") == (b"", 0, None)
    assert tree.children("/new") == ["b"]


def test_ephemeral_nodes_end_with_their_session(tree: Tree, clock: Clock) -> None:
    session = tree.open_session("broker-1", 100)
    tree.create("/one", session=session)
    with pytest.raises(EphemeralParentError):
        tree.create("/one/below")
    clock.ms += 99
    tree.renew(session)
    clock.ms += 99
    tree.poll()
    assert tree.get("/one").session == session
    clock.ms += 1
    tree.poll()
    with pytest.raises(NoNodeError):
        tree.get("/one")
    for refused in (
        lambda: tree.renew(session),
        lambda: tree.create("/one", session=session),
        lambda: tree.multi([Create("/two")], session=session),
    ):
        with pytest.raises(SessionExpiredError):
            refused()
    assert tree.children("/") == []
    tree.close_session(session)


def test_a_write_finds_overdue_sessions_without_a_poll(tree: Tree, clock: Clock) -> None:
    session = tree.open_session("broker-1", 100)
    tree.create("/controller", b"1", session=session)
    clock.ms += 100
    tree.create("/controller", b"2")
    assert tree.get("/controller") == (b"2", 0, None)


def test_a_new_session_of_the_same_owner_fences_the_old_one(tree: Tree) -> None:
    zombie = tree.open_session("broker-1", 1000)
    tree.create("/one", b"zombie", session=zombie)
    session = tree.open_session("broker-1", 1000)
    assert session != zombie
    tree.create("/one", b"successor", session=session)
    with pytest.raises(SessionExpiredError):
        tree.multi([Set("/one", b"zombie")], session=zombie)
    assert tree.get("/one").data == b"successor"


def test_closing_a_session_leaves_others_alone(tree: Tree) -> None:
    first, second = tree.open_session("a", 1000), tree.open_session("b", 1000)
    tree.create("/a", session=first)
    tree.create("/b", session=second)
    tree.close_session(first)
    assert tree.children("/") == ["b"]


def test_watches_see_data_children_birth_and_death(tree: Tree) -> None:
    seen: list[str] = []
    cancel = tree.watch("/a", seen.append)
    tree.poll()
    assert seen == []
    expected = 0
    for change in (
        lambda: tree.create("/a"),
        lambda: tree.set("/a", b"x"),
        lambda: tree.create("/a/b"),
        lambda: tree.delete("/a/b"),
        lambda: tree.delete("/a"),
    ):
        change()
        expected += 1
        tree.poll()
        tree.poll()
        assert seen == ["/a"] * expected
    tree.create("/other")
    tree.poll()
    assert len(seen) == expected
    tree.create("/a")
    tree.delete("/a")
    tree.create("/a")
    cancel()
    tree.poll()
    assert len(seen) == expected


def test_a_grandchild_is_not_watched_but_a_rebirth_is(tree: Tree) -> None:
    tree.create("/a")
    tree.create("/a/b")
    seen: list[str] = []
    tree.watch("/a", seen.append)
    tree.watch("/a/b", seen.append)
    tree.create("/a/b/c")
    tree.delete("/a/b/c")
    tree.poll()
    assert seen == ["/a/b"]
    tree.delete("/a/b")
    tree.create("/a/b")
    tree.poll()
    assert sorted(seen) == ["/a", "/a/b", "/a/b"]


def test_a_watch_sees_a_session_end(tree: Tree, clock: Clock) -> None:
    session = tree.open_session("broker-1", 100)
    tree.create("/one", session=session)
    seen: list[str] = []
    tree.watch("/one", seen.append)
    clock.ms += 100
    tree.poll()
    assert seen == ["/one"]


# -- what only a file can do ---------------------------------------------------------------------------------


def test_sqlite_keeps_what_it_was_told(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    tree = SqliteTree(path)
    tree.create("/a", b"one")
    tree.set("/a", b"two")
    tree.close()
    again = SqliteTree(path)
    assert again.get("/a") == (b"two", 1, None)
    again.close()


def test_sqlite_sessions_of_before_a_reboot_are_over(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "tree.db"), Clock()
    tree = SqliteTree(path, now_ms=clock)
    tree.create("/one", session=tree.open_session("broker-1", 1000))
    clock.ms = 5
    tree.poll()
    assert tree.children("/") == []
    tree.close()


def test_sqlite_watches_see_another_connection(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    mine, other = SqliteTree(path), SqliteTree(path)
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
    tree = SqliteTree(path)
    for _ in range(times):
        while True:
            node = tree.get("/counter")
            try:
                tree.set("/counter", str(int(node.data) + 1).encode(), node.version)
            except BadVersionError:
                continue
            break
    tree.close()


def test_sqlite_compare_and_set_over_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    context = multiprocessing.get_context("spawn")
    starters = [context.Process(target=SqliteTree, args=(path,)) for _ in range(3)]
    for process in starters:  # three that make the file at once
        process.start()
    for process in starters:
        process.join()
    assert [process.exitcode for process in starters] == [0, 0, 0]
    tree = SqliteTree(path)
    tree.create("/counter", b"0")
    processes = [context.Process(target=_count_up, args=(path, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert tree.get("/counter") == (b"60", 60, None)
    tree.close()


def test_sqlite_waits_for_a_process_that_creates_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "tree.db")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            other.execute("ROLLBACK")

    monkeypatch.setattr("oncelog.cluster.tree_sqlite.time.sleep", pause)
    tree = SqliteTree(path)
    assert len(pauses) == 3
    tree.create("/n")
    tree.close()
    other.close()


def test_sqlite_waits_for_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "tree.db")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(tree_sqlite, "BUSY_TIMEOUT_S", 0.05)
    with pytest.raises(UnavailableError, match=r"tree\.db: database is locked"):
        SqliteTree(path)
    other.close()


def test_sqlite_from_several_threads(tmp_path: Path) -> None:
    tree = SqliteTree(str(tmp_path / "tree.db"))
    threads = [threading.Thread(target=tree.create, args=(f"/n{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree.children("/") == sorted(f"n{number}" for number in range(8))
    tree.close()


def test_sqlite_that_is_full_changes_nothing_and_says_so(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    tree = SqliteTree(path)
    tree._connection.execute("PRAGMA max_page_count = 20")
    with pytest.raises(UnavailableError, match="full"):
        tree.multi([Create("/a"), Create("/b", bytes(1_000_000))])
    assert tree.children("/") == []
    tree.create("/a")
    assert tree.exists("/a")
    tree.close()
