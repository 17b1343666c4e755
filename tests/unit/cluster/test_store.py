"""One contract for every tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
    SessionExpiredError,
    Set,
    ensure,
    read_children,
)
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.store_sqlite import SqliteStore
from support.broker_sets import Clock


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
    store.set("/a", b"two", 0)
    assert store.get("/a") == (b"two", 1, None)
    store.set("/a", b"three")
    assert store.get("/a") == (b"three", 2, None)
    assert store.exists("/a")
    store.delete("/a", 2)
    assert not store.exists("/a")
    with pytest.raises(NoNodeError):
        store.get("/a")


def test_many_nodes_are_read_in_the_order_of_their_paths(store: MetadataStore) -> None:
    written = [f"/a/{number}" for number in range(1200)]
    store.multi([Create("/a"), *(Create(path, path.encode()) for path in written)])
    paths = ["/none", *reversed(written), "/a/1", "/none"]
    assert store.get_many(paths) == [None if path == "/none" else (path.encode(), 0, None) for path in paths]
    assert store.get_many([]) == []
    assert list(read_children(store, "/a")) == sorted(map(str, range(1200)))


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
