"""A store announces its writes to the stores of other processes."""

from __future__ import annotations

import select
import socket
from pathlib import Path

import pytest

from oncelog.cluster import wakes as wakes_module
from oncelog.cluster.leases import END_BYTES
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.cluster.wakes import Wakes

WITHIN_S = 60.0


def is_woken(store: SqliteStore, wait_s: float = WITHIN_S) -> bool:
    """Wait until the store has a wake, and return whether it has one."""
    assert store.announcements is not None
    return bool(select.select([store.announcements.descriptor], [], [], wait_s)[0])


def drain(store: SqliteStore) -> None:
    assert store.announcements is not None
    store.announcements.drain()


def opened(path: Path, owner: str) -> SqliteStore:
    store = SqliteStore(str(path / "tree.db"))
    store.open_session(owner, 3_600_000)
    return store


def test_write_wakes_all_stores_with_a_session(tmp_path: Path) -> None:
    first, second = opened(tmp_path, "broker-1"), opened(tmp_path, "broker-2")
    for store in (first, second):
        drain(store)
        store.poll()
        assert not is_woken(store, 0)
    first.create("/a")
    assert is_woken(second)
    assert not second.is_quiet(), "the change is visible when the wake arrives"
    assert is_woken(first)
    drain(second)
    second.poll()
    assert second.is_quiet()
    assert not is_woken(second, 0)
    first.close()
    second.close()


def test_many_writes_are_one_wake(tmp_path: Path) -> None:
    first, second = opened(tmp_path, "broker-1"), opened(tmp_path, "broker-2")
    for number in range(50):
        first.create(f"/{number}")
    assert is_woken(second)
    drain(second)
    assert not is_woken(second, 0)
    first.close()
    second.close()


def test_write_to_a_store_whose_buffer_is_full_does_not_wait(tmp_path: Path) -> None:
    first, second = opened(tmp_path, "broker-1"), opened(tmp_path, "broker-2")
    wakes = Wakes()
    port = int.from_bytes((tmp_path / "tree.db-lease-broker-2").read_bytes()[END_BYTES:], "big")
    for _ in range(100_000):
        wakes.send([port])
    first.create("/a")
    assert is_woken(second)
    second.poll()
    assert second.children("/") == ["a"]
    wakes.close()
    first.close()
    second.close()


def test_store_without_a_session_has_no_port(tmp_path: Path) -> None:
    store, other = SqliteStore(str(tmp_path / "tree.db")), opened(tmp_path, "broker-1")
    assert store.announcements is None
    store.create("/a")
    assert other.get("/a").data == b""
    store.close()
    other.close()


def test_lease_of_an_older_version_has_no_port(tmp_path: Path) -> None:
    first, second = opened(tmp_path, "broker-1"), opened(tmp_path, "broker-2")
    lease = tmp_path / "tree.db-lease-broker-2"
    lease.write_bytes(lease.read_bytes()[:END_BYTES])
    drain(first)
    drain(second)
    second.poll()
    first.create("/a")
    assert is_woken(first)
    assert not is_woken(second, 0)
    assert not second.is_quiet()
    first.close()
    second.close()


@pytest.mark.parametrize("lacks", ["loopback", "IPv4"])
def test_store_of_a_system_without_loopback_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    if lacks == "IPv4":
        monkeypatch.setattr(socket, "AF_INET", 9999)  # an address family of no kernel
    else:
        monkeypatch.setattr(wakes_module, "HOST", "192.0.2.1")  # an address of no machine
    first, second = opened(tmp_path, "broker-1"), opened(tmp_path, "broker-2")
    assert first.announcements is not None
    assert (first.announcements.descriptor, first.announcements.port) == (None, 0)
    first.create("/a")
    assert not second.is_quiet()
    second.poll()
    assert second.children("/") == ["a"]
    first.close()
    second.close()
