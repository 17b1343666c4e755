"""The versioned tree in an SQLite file, for the brokers of one machine. Each `multi` is one transaction.

A write is durable when it returns: with synchronous=FULL, SQLite syncs the write-ahead log at each commit. Otherwise an
allocated id or epoch could be lost in a power failure, and be allocated again. Each write ends the sessions of dead and
paused processes first, so that a zombie cannot write. `cluster/leases` shows which processes those are; their own store
never ends their sessions, so a broker that is alone survives a pause.

A process may hang in its transaction for any time. Meanwhile, other processes write nothing, but they read through a
second connection, and renew their sessions without SQLite.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from oncelog.cluster.leases import Leases
from oncelog.cluster.store import (
    Create,
    Delete,
    MetadataStore,
    Node,
    NoNodeError,
    Operation,
    OutcomeUnknownError,
    Row,
    SessionExpiredError,
    SessionHeldError,
    UnavailableError,
    Watches,
    apply,
    parent_of,
)
from oncelog.cluster.wakes import Wakes
from oncelog.log.disk import full_disk, is_full

T = TypeVar("T")

WRITE_WAIT_S = 10.0
"""The longest time that a write waits for others. Clients wait longer for a response, 30 s, so they get the error."""
OPEN_WAIT_S = 60.0
"""The longest time that opening waits for other processes that open the same file. A disk may need a second for each
sync."""
YIELD_S = 0.12
"""A store whose commit takes longer than this pauses for this time before its next one.

SQLite checks at least every 100 ms whether the write lock is free. On a slow disk, other processes would otherwise
never find it free while this one has more to write.
"""
_POLL_WAIT_S = 0.1
"""The longest time that a `poll` waits for other writers before it ends sessions. The next `poll` tries again."""
_READ_WAIT_S = 1.0
"""The longest time that a read waits: only while another process recovers the write-ahead log after a crash."""
_CHECK_WAIT_S = 0.1
"""The longest time that `renew` waits for the reads of other threads."""
PATHS_A_QUERY = 500
"""The maximum number of nodes that one query reads."""
_RETRY_S = 0.01
"""The pause before the next attempt to read, or to open the file."""
_MODE = 0o600
"""The mode of a new file. SQLite gives it to the other files, too. They have the credentials of users."""
_WRITE_LOCK = "120"
"""The byte of the `-shm` file that a writer locks: WAL_WRITE_LOCK, see SQLite's `walformat.html`."""

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
"""Only older versions of oncelog read `ttl_ms` and `expires_ms`. `expires_ms` is 0, so they end each session of this
version."""


class NewerFormatError(UnavailableError):
    """The file was written in a newer format. The message says what to do."""


class StoreLockedError(UnavailableError):
    """Another transaction has held the write lock for too long."""


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

    def nodes(self, paths: Sequence[str]) -> dict[str, Node]:
        """Return those nodes of the paths that exist."""
        marks = ", ".join("?" * len(paths))
        query = f"SELECT path, data, version, session FROM node WHERE path IN ({marks})"
        return {path: Node(*rest) for path, *rest in self._connection.execute(query, paths)}

    def put(self, path: str, row: Row) -> None:
        parent = None if path == "/" else parent_of(path)
        self._connection.execute(
            "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?)",
            (path, parent, *row.node, row.changed, row.children_changed),
        )

    def remove(self, path: str) -> None:
        self._connection.execute("DELETE FROM node WHERE path = ?", (path,))

    def names(self, path: str) -> list[str]:
        # SQLite's index has the order. To sort many names here would block all threads of the process.
        found = self._connection.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
        return [child.rpartition("/")[2] for (child,) in found]


class SqliteStore(MetadataStore):
    """A `MetadataStore` in the file `path`, for all threads and processes of this machine. `now_ms` is for tests."""

    def __init__(self, path: str, *, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._path = path
        self._now_ms = now_ms
        self._leases = Leases(path, now_ms())
        self.announcements: Wakes | None = None
        self._sessions: dict[int, tuple[str, int]] = {}
        """The owner and the `ttl_ms` of each session that this store has opened."""
        self._watches = Watches()
        self._seen_version = -1
        self._blocked_since: float | None = None
        """Since when `poll` has not been able to end a session."""
        self._writing = threading.Lock()
        self._yield_until = 0.0
        """The monotonic time before which this store leaves the write lock to other processes."""
        self._connection = _connect(path, _RETRY_S)
        try:
            self._prepare_file()
        except BaseException:
            self._connection.close()
            raise
        self._rows = _SqliteRows(self._connection)
        self._reading = threading.Lock()
        """Never wait for a writer while you hold this lock."""
        self._reader = _connect(path, 0)
        self._read_rows = _SqliteRows(self._reader)

    def _prepare_file(self) -> None:
        """Switch on the write-ahead log, and create the tables in a new file.

        Raises NewerFormatError. Raises UnavailableError if the file is not a database of SQLite, or if another
        connection holds it for `OPEN_WAIT_S`. Each attempt first checks whether another process has created the tables
        meanwhile: on a slow disk, the write lock may never be free for long while brokers start. SQLite itself does not
        wait for the switch, because that could deadlock.
        """
        deadline = time.monotonic() + OPEN_WAIT_S
        while True:
            try:
                found = self._connection.execute("PRAGMA user_version").fetchone()[0]
                if found > FORMAT:
                    raise NewerFormatError(
                        f"{self._path} was written by a newer oncelog (format {found}; this one reads up to {FORMAT}). "
                        "Start that version, or use another directory"
                    )
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=FULL")
                if found < FORMAT:
                    self._connection.executescript(
                        f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;"
                    )
                return
            except sqlite3.Error as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    raise UnavailableError(f"{self._path}: {self._text(error)}") from error
            time.sleep(_RETRY_S)

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """See `MetadataStore.get_many`."""
        found: dict[str, Node] = {}
        for first in range(0, len(paths), PATHS_A_QUERY):
            found.update(self._read(partial(self._read_rows.nodes, paths[first : first + PATHS_A_QUERY])))
        return [found.get(path) for path in paths]

    def children(self, path: str) -> list[str]:
        """Return the sorted names of the node's children. Raises NoNodeError."""
        names = self._read(lambda: self._read_rows.names(path))
        if not names and not self.exists(path):
            raise NoNodeError(path)
        return names

    def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
        """Carry out all operations or none, in one transaction. See `MetadataStore.multi`."""
        with self._transaction():
            for owner in {op.session for op in operations if isinstance(op, Create)} | {session}:
                if owner is not None:
                    self._find_session(self._connection, owner)
            change = self._next_change()
            for operation in operations:
                apply(self._rows, operation, change)

    def open_session(self, owner: str, ttl_ms: int) -> int:
        """Open a session, and return its number.

        Raises SessionHeldError if another store has opened the owner's last session, and is not closed yet.
        """
        with self._transaction():
            if self.announcements is None:
                self.announcements = Wakes()
                self._leases.port = self.announcements.port
            if not self._leases.take(owner):
                raise SessionHeldError(owner)
            self._leases.extend(owner, self._now_ms() + ttl_ms)
            earlier = self._connection.execute("SELECT id FROM session WHERE owner = ?", (owner,)).fetchone()
            if earlier is not None:
                self._end_session(earlier[0])
            cursor = self._connection.execute(
                "INSERT INTO session (owner, ttl_ms, expires_ms) VALUES (?, ?, 0)", (owner, ttl_ms)
            )
        assert cursor.lastrowid is not None
        others = {number: mine for number, mine in self._sessions.items() if mine[0] != owner}
        self._sessions = others | {cursor.lastrowid: (owner, ttl_ms)}
        return cursor.lastrowid

    def renew(self, session: int) -> None:
        """Extend the lease of a session, without a sync. Raises SessionExpiredError, perhaps only at the next call."""
        owner, ttl_ms = self._sessions.get(session, ("", 0))
        try:
            extended = self._leases.extend(owner, self._now_ms() + ttl_ms)
        except OSError as error:
            raise UnavailableError(self._text(error)) from error
        if not extended:
            raise SessionExpiredError(session)
        if self._reading.acquire(timeout=_CHECK_WAIT_S):
            try:
                self._find_session(self._reader, session)
            except sqlite3.Error:  # the lease is extended, and the next renewal checks again
                pass
            finally:
                self._reading.release()

    def close_session(self, session: int) -> None:
        """End a session and delete its ephemeral nodes. A session that has ended already is ignored.

        Other processes can open a session of this owner only after `close`, because this process may still write to
        the owner's files.
        """
        with self._transaction():
            self._end_session(session)

    def watch(self, path: str, callback: Callable[[str], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        return self._read(lambda: self._watches.add(path, callback, self._read_rows.find(path)))

    def poll(self) -> None:
        """End expired sessions, then call the callbacks of nodes that this or another process has changed."""
        blocked = self._end_overdue()
        for callback, path in self._read(self._changed):
            callback(path)
        if blocked is not None:
            raise blocked

    def _end_overdue(self) -> UnavailableError | None:
        """End the sessions that are over. Return an error if a writer has prevented this for `WRITE_WAIT_S`."""
        if not self._read(lambda: self._overdue(self._reader)):
            self._blocked_since = None
            return None
        begun = time.monotonic()
        try:
            with self._transaction(_POLL_WAIT_S):
                self._blocked_since = None
        except StoreLockedError as error:
            if self._blocked_since is None:
                self._blocked_since = begun
            return error if begun - self._blocked_since >= WRITE_WAIT_S else None
        return None

    def _changed(self) -> list[tuple[Callable[[str], None], str]]:
        version = self._version()
        if version == self._seen_version:
            return []
        calls = self._watches.changed(self._read_rows.find)
        self._seen_version = version
        return calls

    def is_quiet(self) -> bool:
        """See `MetadataStore.is_quiet`. A reader of the write-ahead log waits for no writer."""
        if not self._reading.acquire(blocking=False):
            return False
        try:
            return self._version() == self._seen_version and not self._overdue(self._reader)
        except (sqlite3.Error, OSError):  # `poll` reports it
            return False
        finally:
            self._reading.release()

    def close(self) -> None:
        """Close the files. Other stores end the sessions of this one, as if its process had died."""
        with self._writing, self._reading:
            if self.announcements is not None:
                self.announcements.close()
            self._reader.close()
            self._connection.close()
            self._leases.close()

    def _read(self, work: Callable[[], T]) -> T:
        """Return the result of a read through `_reader`. Raises UnavailableError if SQLite or a lease file fails."""
        deadline = time.monotonic() + _READ_WAIT_S
        while True:
            with self._reading:
                try:
                    return work()
                except (sqlite3.Error, OSError) as error:
                    if not _is_busy(error) or time.monotonic() >= deadline:
                        raise UnavailableError(self._text(error)) from error
            time.sleep(_RETRY_S)

    # -- inside a transaction --------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, wait_s: float | None = None) -> Iterator[None]:
        """Make the changes of the body in one transaction. Wait for other transactions, for `WRITE_WAIT_S` at most."""
        wait_s = WRITE_WAIT_S if wait_s is None else wait_s
        deadline = time.monotonic() + wait_s
        if not self._writing.acquire(timeout=wait_s):
            raise self._locked()
        try:
            time.sleep(max(0.0, min(self._yield_until - time.monotonic(), wait_s / 2)))
            self._begin(deadline - time.monotonic())
            try:
                for session in self._overdue(self._connection):
                    self._end_session(session)
                yield
                self._commit()
            except (sqlite3.Error, OSError) as error:  # for example, a full disk
                self._roll_back()
                raise UnavailableError(self._text(error)) from error
            except BaseException:
                self._roll_back()
                raise
        finally:
            self._writing.release()

    def _text(self, error: Exception) -> str:
        """Return what has failed. On a full disk, name it, and say what to delete."""
        return full_disk([os.path.dirname(self._path)]) if is_full(error) else str(error)

    def _commit(self) -> None:
        wakes = self.announcements
        owners = [] if wakes is None else self._connection.execute("SELECT owner FROM session").fetchall()
        begun = time.monotonic()
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise OutcomeUnknownError(self._text(error)) from error
        ended = time.monotonic()
        if ended - begun > YIELD_S:
            self._yield_until = ended + YIELD_S
        if wakes is not None:
            with suppress(OSError):  # of a lease file: the write is done, and the others poll
                wakes.send(self._leases.ports(owner for (owner,) in owners))

    def _begin(self, wait_s: float) -> None:
        try:
            if self._connection.in_transaction:  # an earlier ROLLBACK failed
                self._connection.execute("ROLLBACK")
            self._connection.execute(f"PRAGMA busy_timeout = {max(0, int(wait_s * 1000))}")
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._locked() if _is_busy(error) else UnavailableError(self._text(error)) from error

    def _locked(self) -> StoreLockedError:
        holder = _lock_holder(self._path)
        who = "another process" if holder is None else f"process {holder}"
        advice = "If it hangs, resume it with SIGCONT, or kill it"
        return StoreLockedError(f"{self._path}: {who} holds the write lock. {advice}")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # after some errors, SQLite has already rolled back
            with suppress(sqlite3.Error):  # the caller raises the first error, and `_begin` repeats the ROLLBACK
                self._connection.execute("ROLLBACK")

    def _version(self) -> int:
        """Return a number that changes with each write of other connections, also of `_connection`."""
        version: int = self._reader.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _overdue(self, connection: sqlite3.Connection) -> list[int]:
        sessions = connection.execute("SELECT id, owner FROM session").fetchall()
        over = self._leases.over([owner for _, owner in sessions], self._now_ms())
        return [session for session, owner in sessions if owner in over]

    def _find_session(self, connection: sqlite3.Connection, session: int) -> None:
        """Raise SessionExpiredError if this is no session of this store, or if it has ended."""
        found = connection.execute("SELECT owner FROM session WHERE id = ?", (session,)).fetchone()
        if found is None or not self._leases.holds(found[0]):
            raise SessionExpiredError(session)

    def _end_session(self, session: int) -> None:
        """End a session, unless it has ended before."""
        if not self._connection.execute("DELETE FROM session WHERE id = ?", (session,)).rowcount:
            return
        mine = self._connection.execute("SELECT path FROM node WHERE session = ?", (session,)).fetchall()
        if mine:
            change = self._next_change()
            for (path,) in mine:
                apply(self._rows, Delete(path), change)

    def _next_change(self) -> int:
        self._connection.execute("UPDATE change SET number = number + 1")
        number: int = self._connection.execute("SELECT number FROM change").fetchone()[0]
        return number


def _connect(path: str, timeout_s: float) -> sqlite3.Connection:
    with suppress(OSError):  # it exists, or SQLite says what is wrong
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
    try:
        return sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise UnavailableError(f"{path}: {error}") from error
    except OSError as error:
        raise UnavailableError(f"{path}: {error.strerror}") from error


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _lock_holder(path: str) -> int | None:
    """Return the process that holds the write lock of the file, or None if the system does not show it.

    F_GETLK would need a second descriptor of the file, and closing that would release all locks that SQLite holds.
    """
    try:
        file = str(os.stat(f"{path}-shm").st_ino)
        with open("/proc/locks", encoding="ascii") as locks:
            # Each line: number, POSIX, ADVISORY, WRITE, process, device:inode, first byte, last byte.
            for _, kind, _, mode, process, inode, *span in map(str.split, locks):
                if (kind, mode, span) == ("POSIX", "WRITE", [_WRITE_LOCK] * 2) and inode.rpartition(":")[2] == file:
                    return int(process)
    except (OSError, ValueError):
        pass
    return None
