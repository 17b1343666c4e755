"""The versioned tree in an SQLite file, for the brokers of one machine. Each `multi` is one transaction.

A write is durable when it returns: with synchronous=FULL, SQLite syncs the write-ahead log at each commit. Otherwise an
allocated id or epoch could be lost in a power failure, and be allocated again. Each write ends the sessions of dead and
paused processes first, so that a zombie cannot write. `cluster/leases` shows which processes those are; their own store
never ends their sessions, so a broker that is alone survives a pause.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from oncelog.cluster.leases import Leases
from oncelog.cluster.store import (
    ANY,
    Create,
    Delete,
    Node,
    NoNodeError,
    Operation,
    OutcomeUnknownError,
    Row,
    SessionExpiredError,
    SessionHeldError,
    Set,
    UnavailableError,
    Watches,
    apply,
    parent_of,
)

BUSY_TIMEOUT_S = 30.0
"""The longest time that a write waits for the transaction of another process."""
_RETRY_S = 0.01
"""The pause before the next attempt to switch on the write-ahead log."""

FORMAT = 1
"""`user_version` of the file. Increase it if older versions of oncelog cannot read the files of this version."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY, parent TEXT, data BLOB NOT NULL, version INTEGER NOT NULL, session INTEGER,
    changed INTEGER NOT NULL, children_changed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS node_parent ON node (parent);
CREATE INDEX IF NOT EXISTS node_session ON node (session) WHERE session IS NOT NULL;
CREATE TABLE IF NOT EXISTS session (
    id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL UNIQUE, ttl_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS change (number INTEGER NOT NULL);
INSERT INTO change SELECT 0 WHERE NOT EXISTS (SELECT * FROM change);
INSERT OR IGNORE INTO node VALUES ('/', NULL, x'', 0, NULL, 0, 0);
"""
"""Only older versions of oncelog use `expires_ms`. It is 0, so they end each session of this version."""


class NewerFormatError(Exception):
    """The file was written in a newer format. The message says what to do."""


def monotonic_ms() -> int:
    """Return the milliseconds since the machine's start, the same in each process."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000


class _SqliteRows:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def find(self, path: str) -> Row | None:
        found = self._connection.execute(
            "SELECT data, version, session, changed, children_changed FROM node WHERE path = ?", (path,)
        ).fetchone()
        if found is None:
            return None
        data, version, session, changed, children_changed = found
        return Row(Node(data, version, session), changed, children_changed)

    def put(self, path: str, row: Row) -> None:
        parent = None if path == "/" else parent_of(path)
        self._connection.execute(
            "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?)",
            (path, parent, *row.node, row.changed, row.children_changed),
        )

    def remove(self, path: str) -> None:
        self._connection.execute("DELETE FROM node WHERE path = ?", (path,))

    def names(self, path: str) -> list[str]:
        found = self._connection.execute("SELECT path FROM node WHERE parent = ?", (path,))
        return sorted(child.rpartition("/")[2] for (child,) in found)


class SqliteStore:
    """A `MetadataStore` in the file `path`, for all threads and processes of this machine. `now_ms` is for tests."""

    def __init__(self, path: str, *, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._leases = Leases(path)
        self._watches = Watches()
        self._dirty = False
        self._seen_version = -1
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._rows = _SqliteRows(self._connection)
        found = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if found > FORMAT:
            self._connection.close()
            raise NewerFormatError(
                f"{path} was written by a newer oncelog (format {found}; this one reads up to {FORMAT}). Start that "
                "version, or use another directory"
            )
        self._switch_on_write_ahead_log(path)
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")

    def _switch_on_write_ahead_log(self, path: str) -> None:
        """Set the journal mode. Raises UnavailableError if another connection holds the file for too long.

        If another connection is about to write, SQLite returns "database is locked" at once here, because waiting could
        deadlock. This happens to brokers that open a new file at the same time.
        """
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() >= deadline:
                    self._connection.close()
                    raise UnavailableError(f"{path}: {error}") from error
            time.sleep(_RETRY_S)

    def get(self, path: str) -> Node:
        """Return the node. Raises NoNodeError."""
        with self._reading():
            row = self._rows.find(path)
        if row is None:
            raise NoNodeError(path)
        return row.node

    def exists(self, path: str) -> bool:
        """Return whether the node exists."""
        with self._reading():
            return self._rows.find(path) is not None

    def children(self, path: str) -> list[str]:
        """Return the sorted names of the node's children. Raises NoNodeError."""
        with self._reading():
            names = self._rows.names(path)
            if not names and self._rows.find(path) is None:
                raise NoNodeError(path)
            return names

    def create(self, path: str, data: bytes = b"", *, session: int | None = None) -> None:
        """Create one node. Raises the errors of `Create`."""
        self.multi([Create(path, data, session)])

    def set(self, path: str, data: bytes, version: int = ANY) -> int:
        """Replace the data of one node, and return its new version. Raises the errors of `Set`."""
        with self._lock, self._transaction():
            apply(self._rows, Set(path, data, version), self._next_change())
            row = self._rows.find(path)
            assert row is not None
        return row.node.version

    def delete(self, path: str, version: int = ANY) -> None:
        """Delete one node. Raises the errors of `Delete`."""
        self.multi([Delete(path, version)])

    def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
        """Carry out all operations or none, in one transaction. See `MetadataStore.multi`."""
        with self._lock, self._transaction():
            for owner in {op.session for op in operations if isinstance(op, Create)} | {session}:
                if owner is not None:
                    self._find_session(owner)
            change = self._next_change()
            for operation in operations:
                apply(self._rows, operation, change)

    def open_session(self, owner: str, ttl_ms: int) -> int:
        """Open a session, and return its number. Raises SessionHeldError if another living process has the owner's."""
        with self._reading():
            if not self._leases.take(owner):
                raise SessionHeldError(owner)
            self._leases.extend(owner, self._now_ms() + ttl_ms)
            with self._transaction():
                earlier = self._connection.execute("SELECT id FROM session WHERE owner = ?", (owner,)).fetchone()
                if earlier is not None:
                    self._end_session(earlier[0])
                cursor = self._connection.execute(
                    "INSERT INTO session (owner, ttl_ms, expires_ms) VALUES (?, ?, 0)", (owner, ttl_ms)
                )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def renew(self, session: int) -> None:
        """Extend the lease of a session, without a sync. Raises SessionExpiredError, if not now, then the next time."""
        with self._reading():
            owner, ttl_ms = self._find_session(session)
            self._leases.extend(owner, self._now_ms() + ttl_ms)
            self._find_session(session)

    def close_session(self, session: int) -> None:
        """End a session and delete its ephemeral nodes. A session that has ended already is ignored."""
        with self._lock:
            with self._transaction():
                owner = self._end_session(session)
            if owner is not None:
                self._leases.release(owner)

    def watch(self, path: str, callback: Callable[[str], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        with self._lock:
            return self._watches.add(path, callback, self._rows.find(path))

    def poll(self) -> None:
        """End expired sessions, then call the callbacks of nodes that this or another process has changed."""
        with self._reading():
            if self._overdue():
                with self._transaction():
                    pass
            version = self._version()
            if version == self._seen_version and not self._dirty:
                return
            calls = self._watches.changed(self._rows.find)
            self._seen_version, self._dirty = version, False
        for callback, path in calls:
            callback(path)

    def is_quiet(self) -> bool:
        """See `MetadataStore.is_quiet`. A reader of the write-ahead log waits for no writer."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return not self._dirty and self._version() == self._seen_version and not self._overdue()
        except (sqlite3.Error, OSError):  # `poll` reports it
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the files. Other stores end the sessions of this one, as if its process had died."""
        with self._lock:
            self._connection.close()
            self._leases.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Hold the lock for the body. Raises UnavailableError if SQLite or a lease file fails."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError) as error:
                raise UnavailableError(str(error)) from error

    # -- inside a transaction --------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise UnavailableError(str(error)) from error
        try:
            for session in self._overdue():
                self._end_session(session)
            yield
            try:
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise OutcomeUnknownError(str(error)) from error
        except (sqlite3.Error, OSError) as error:  # for example, a full disk
            self._roll_back()
            raise UnavailableError(str(error)) from error
        except BaseException:
            self._roll_back()
            raise
        self._dirty = True

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # after some errors, SQLite has already rolled back
            self._connection.execute("ROLLBACK")

    def _version(self) -> int:
        """Return a number that changes with each write of another connection."""
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _overdue(self) -> list[int]:
        now_ms = self._now_ms()
        return [
            session
            for session, owner in self._connection.execute("SELECT id, owner FROM session").fetchall()
            if not self._leases.holds(owner) and self._leases.is_over(owner, now_ms)
        ]

    def _find_session(self, session: int) -> tuple[str, int]:
        """Return the owner and the `ttl_ms` of a session of this store. Raises SessionExpiredError."""
        found = self._connection.execute("SELECT owner, ttl_ms FROM session WHERE id = ?", (session,)).fetchone()
        if found is None or not self._leases.holds(found[0]):
            raise SessionExpiredError(str(session))
        return found[0], found[1]

    def _end_session(self, session: int) -> str | None:
        """End a session. Return its owner, or None if it has ended before."""
        found = self._connection.execute("SELECT owner FROM session WHERE id = ?", (session,)).fetchone()
        if found is None:
            return None
        self._connection.execute("DELETE FROM session WHERE id = ?", (session,))
        mine = self._connection.execute("SELECT path FROM node WHERE session = ?", (session,)).fetchall()
        if mine:
            change = self._next_change()
            for (path,) in mine:
                apply(self._rows, Delete(path), change)
        return str(found[0])

    def _next_change(self) -> int:
        self._connection.execute("UPDATE change SET number = number + 1")
        number: int = self._connection.execute("SELECT number FROM change").fetchone()[0]
        return number
