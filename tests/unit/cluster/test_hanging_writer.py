"""A process hangs inside a transaction of the shared metadata file, with real processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster import store_sqlite
from oncelog.cluster.store import SessionExpiredError, UnavailableError
from oncelog.cluster.store_sqlite import SqliteStore
from support.processes import wait_until

TTL_MS = 2000
HEARTBEAT_S = 0.2


def hold_the_write_lock(path: str, link: Any) -> None:
    """Open a session, begin a transaction, and commit it when the test says so."""
    store = SqliteStore(path)
    store.create("/writer", session=store.open_session("writer", TTL_MS))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE node SET data = x'01' WHERE path = '/'")
    link.send(None)
    link.recv()
    connection.execute("COMMIT")
    link.send(None)
    link.recv()


def keep_a_session(path: str, owner: str, link: Any) -> None:
    """Renew a session and poll until the test says so, as a broker does. Report the error that ends it."""
    store = SqliteStore(path)
    session = store.open_session(owner, TTL_MS)
    store.create(f"/{owner}", session=session)
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            try:
                if not store.is_quiet():
                    store.poll()
            except UnavailableError:
                pass
            time.sleep(0.05)

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    link.send(None)
    found = ""
    try:
        while not link.poll(HEARTBEAT_S):
            store.renew(session)
    except SessionExpiredError as error:
        found = repr(error)
    link.recv()
    done.set()
    poller.join()
    link.send(found)


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[int, Any]]:
    """Yield the id of a process that is ready, and the link to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    made = context.Process(target=target, args=(*arguments, theirs))
    made.start()
    try:
        ours.recv()
        assert made.pid is not None
        yield made.pid, ours
    finally:
        made.kill()
        made.join()


def test_sessions_survive_a_writer_that_is_stopped_in_its_transaction(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    store = SqliteStore(path)
    with (
        process(keep_a_session, path, "one") as (_, one),
        process(keep_a_session, path, "two") as (two_pid, _),
        process(keep_a_session, path, "three") as (_, three),
        process(hold_the_write_lock, path) as (writer_pid, writer),
    ):
        os.kill(writer_pid, signal.SIGSTOP)
        time.sleep(3 * TTL_MS / 1000)
        os.kill(two_pid, signal.SIGKILL)
        assert store.children("/") == ["one", "three", "two", "writer"]
        os.kill(writer_pid, signal.SIGCONT)
        writer.send(None)
        wait_until(lambda: not store.exists("/two"), "the session of two ends")
        wait_until(lambda: not store.exists("/writer"), "the session of the writer ends")  # it renews nothing
        for link in (one, three):
            link.send(None)
            assert link.recv() == ""
        assert store.get("/").data == b"\x01"
    store.close()


def test_sessions_survive_a_pause_of_all_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    with (
        process(keep_a_session, path, "one") as (one_pid, one),
        process(keep_a_session, path, "two") as (two_pid, two),
        process(keep_a_session, path, "three") as (three_pid, three),
    ):
        pids = one_pid, two_pid, three_pid
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3 * TTL_MS / 1000)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.2)  # whichever runs first must not end the others
        time.sleep(1)
        for link in (one, two, three):
            link.send(None)
            assert link.recv() == ""


def test_reads_renewals_and_polls_do_not_wait_for_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "tree.db")
    monkeypatch.setattr(store_sqlite, "WRITE_WAIT_S", 2.0)
    store = SqliteStore(path)
    session = store.open_session("mine", 3_600_000)
    errors: list[UnavailableError] = []

    def write() -> None:
        try:
            store.create("/a")
        except UnavailableError as error:
            errors.append(error)

    with process(hold_the_write_lock, path) as (writer_pid, _):
        os.kill(writer_pid, signal.SIGSTOP)
        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        while not errors:
            assert store.exists("/writer")
            assert store.children("/") == ["writer"]
            store.renew(session)
            store.poll()
        for thread in threads:
            thread.join()
        assert len(errors) == 3
        for error in errors:
            assert str(error) == (
                f"{path}: process {writer_pid} holds the write lock. If it hangs, resume it with SIGCONT, or kill it"
            )

        def poll_fails() -> bool:
            try:
                store.poll()
            except UnavailableError as error:
                return f"process {writer_pid} holds the write lock" in str(error)
            return False

        wait_until(poll_fails, "the end of a session is blocked")  # the session of the writer should end, and cannot
        os.kill(writer_pid, signal.SIGKILL)
        wait_until(lambda: not poll_fails() and not store.exists("/writer"), "the session of the writer ends")
        store.create("/a")
    store.close()


def test_store_opens_while_a_writer_hangs(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.db")
    with process(hold_the_write_lock, path) as (writer_pid, _):
        os.kill(writer_pid, signal.SIGSTOP)
        store = SqliteStore(path)
        assert store.children("/") == ["writer"]
        store.close()
