"""`read_node` reads a store's file beside a broker, and copies of it, and writes nothing beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from oncelog.cluster.store import Create, Set
from oncelog.cluster.store_reader import read_node
from oncelog.cluster.store_sqlite import SqliteStore


@pytest.mark.parametrize("suffixes", [("", "-wal"), ("", "-wal", "-shm")], ids=["without the index", "with all files"])
def test_copy_of_a_running_store_is_read_and_gets_no_file(tmp_path: Path, suffixes: tuple[str, ...]) -> None:
    path, copy = tmp_path / "metadata.sqlite", tmp_path / "copy"
    copy.mkdir()
    store = SqliteStore(str(path))
    try:
        store.multi([Create("/a", b"old")])
        store.multi([Set("/a", b"new")])
        for suffix in suffixes:
            shutil.copyfile(f"{path}{suffix}", copy / f"metadata.sqlite{suffix}")
    finally:
        store.close()
    before = {each.name: each.stat().st_size for each in copy.iterdir()}
    node = read_node(str(copy / "metadata.sqlite"), "/a")
    assert node is not None
    assert node.data == b"new"
    assert {each.name: each.stat().st_size for each in copy.iterdir()} == before


def test_closed_store_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    store = SqliteStore(str(path))
    store.multi([Create("/a", b"x")])
    store.close()
    before = sorted(each.name for each in tmp_path.iterdir())
    node = read_node(str(path), "/a")
    assert node is not None
    assert node.data == b"x"
    assert read_node(str(path), "/b") is None
    assert sorted(each.name for each in tmp_path.iterdir()) == before
