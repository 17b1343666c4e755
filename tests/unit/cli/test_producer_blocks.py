"""`oncelog producer blocks`: the newest block of producer ids, beside a running broker and after it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path

import pytest

from support.command_line import run
from support.servers import OncelogCluster
from support.wire import Wire

NODE = '{"version":1,"broker":1,"block_start":"%d","block_end":"%d"}'


def blocks(data: Path) -> str:
    status, stdout, stderr = run("producer", "blocks", "--data", data)
    assert (status, stderr) == (0, "")
    return stdout


def contents(data: Path) -> dict[str, bytes]:
    return {entry.name: Path(entry.path).read_bytes() for entry in os.scandir(data) if entry.is_file()}


def test_newest_block_while_the_broker_runs_and_after_it(tmp_path: Path) -> None:
    cluster = OncelogCluster(tmp_path)
    try:
        shown = blocks(cluster.data).splitlines()
        assert shown[0].split() == ["OWNER", "FIRST", "ID", "LAST", "ID", "NEXT", "BLOCK"]
        assert shown[1].split() == ["1", "0", "999", "1000"]
        assert shown[3] == f"/latest_producer_id_block: {NODE % (0, 999)}"
        with Wire(cluster.bootstrap) as wire:
            assert wire.session().producer_id == 0
    finally:
        cluster.stop()
    before = contents(cluster.data)
    assert blocks(cluster.data).splitlines()[1].split() == ["1", "0", "999", "1000"]
    assert contents(cluster.data) == before, "the command writes no file"
    again = OncelogCluster(tmp_path)
    try:
        status, stdout, stderr = run("producer", "blocks", "--data", again.data, "--format", "json")
        assert (status, stderr) == (0, "")
        assert json.loads(stdout) == {
            "owner": 1,
            "first_id": 1000,
            "last_id": 1999,
            "next_block": 2000,
            "node": "/latest_producer_id_block",
            "data": json.loads(NODE % (1000, 1999)),
        }
    finally:
        again.process.kill()  # the write-ahead log stays
    assert blocks(again.data).splitlines()[1].split() == ["1", "1000", "1999", "2000"]


def test_folder_without_metadata(tmp_path: Path) -> None:
    status, stdout, stderr = run("producer", "blocks", "--data", tmp_path)
    assert (status, stdout) == (1, "")
    assert stderr.startswith(f"oncelog: {tmp_path / 'metadata.sqlite'} does not exist; name the data directory")
    assert not list(tmp_path.iterdir())


def test_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"no database" * 100)
    status, _, stderr = run("producer", "blocks", "--data", tmp_path)
    assert (status, stderr) == (1, f"oncelog: {tmp_path / 'metadata.sqlite'}: file is not a database\n")


def test_file_of_a_newer_version(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 99")
    status, _, stderr = run("producer", "blocks", "--data", tmp_path)
    assert (status, "was written by a newer oncelog (format 99; this one reads up to 1)" in stderr) == (1, True), stderr


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff", "'utf-8' codec can't decode"),
        (b"{", "Expecting property name"),
        (b'{"version":1,"broker":1e400,"block_start":"0","block_end":"9"}', "cannot convert float infinity"),
        (NODE.encode("utf-16"), "'utf-8' codec can't decode"),
        ("text", "no attribute 'decode'"),
        (7, "no attribute 'decode'"),
    ],
)
def test_damaged_node_is_named_with_its_file(tmp_path: Path, data: object, why: str) -> None:
    metadata = tmp_path / "metadata.sqlite"
    with contextlib.closing(sqlite3.connect(metadata)) as connection, connection:
        connection.execute("CREATE TABLE node (path TEXT PRIMARY KEY, data BLOB, version INTEGER, session INTEGER)")
        connection.execute("INSERT INTO node VALUES ('/latest_producer_id_block', ?, 0, NULL)", (data,))
    status, stdout, stderr = run("producer", "blocks", "--data", tmp_path)
    assert (status, stdout) == (1, "")
    assert stderr.startswith(f"oncelog: {metadata}: the node /latest_producer_id_block is damaged: ")
    assert why in stderr


def test_pipe_instead_of_the_file(tmp_path: Path) -> None:
    """Opening a pipe would wait for ever."""
    os.mkfifo(tmp_path / "metadata.sqlite")
    status, _, stderr = run("producer", "blocks", "--data", tmp_path)
    assert (status, "does not exist; name the data directory" in stderr) == (1, True)
