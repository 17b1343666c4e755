"""Files that show whether the holder of a session lives, next to the SQLite file of the tree.

The holder locks the file of its owner's name with flock(2). The kernel drops the lock when the process dies, so other
brokers notice a death at once, with or without a supervisor. The file contains the end of the lease, which matters only
if the process is paused, and the holder's port for wakes (`wakes.py`). It is never synced: after the machine's restart
no process holds a lock.

Someone may delete, replace or truncate the file. The holder finds this when it extends the lease, and creates the file
again. Until then, the other stores keep the descriptor of the earlier file.

A store that was paused itself ignores the ends of leases for a moment. Otherwise, if all brokers were paused, the first
one to continue would end the sessions of the others.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import quote

PAUSE_MS = 2000
"""If a store has not read the leases for longer than this, its process may have been paused. It then ignores expired
leases for the same time.

Brokers read the leases at least once a second. A broker that reads them less often trusts only every second read.
"""
END_BYTES = 8
PORT_BYTES = 2
"""The file has the end of the lease, then the port. Files of older versions have no port."""
_ATTEMPTS = 20
_RETRY_S = 0.005
"""Another store locks the file for some microseconds when it checks whether the holder lives."""


class Leases:
    """The leases of one metadata store, held by this process or by others. Thread-safe."""

    def __init__(self, path: str, now_ms: int) -> None:
        """`path` is the path of the tree's SQLite file."""
        self._path = path
        self.port = 0
        """The port for wakes of this process, or 0. `extend` stores it."""
        self._tree: os.stat_result | None = None
        """The SQLite file of the first `take`. If it is deleted, `extend` creates no lease file for the next one."""
        self._held: dict[str, int] = {}
        self._holding = threading.Lock()
        """A write to a file of `_held` may wait for the disk, so `_seen` has another lock."""
        self._seen: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        """The last end that was read. It counts while the file is too short, because someone has truncated it."""
        self._seeing = threading.Lock()
        self._looked_ms = now_ms
        self._trusted_ms = now_ms
        """The time from which the ends of leases count."""

    def take(self, owner: str) -> bool:
        """Lock the file of an owner until `close` or the end of the process. Return False if another holder lives."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_RETRY_S)
            with self._holding:
                if self._take(owner):
                    return True
        with self._holding:
            self._drop(owner)  # another process has locked a newer file of that name
        return False

    def _take(self, owner: str) -> bool:
        """Lock the file that has the owner's name now. Release an earlier file only afterwards."""
        path, held, tree = self._file(owner), self._held.get(owner), os.stat(self._path)
        if self._tree is None:
            self._tree = tree
        if not os.path.samestat(self._tree, tree):
            return False
        if held is not None and _is_at(path, held):
            return True
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _lock(fd, fcntl.LOCK_EX) or not _is_at(path, fd):
            os.close(fd)
            return False
        if held is not None:
            os.pwrite(fd, os.pread(held, END_BYTES + PORT_BYTES, 0), 0)
        self._drop(owner)
        self._held[owner] = fd
        return True

    def _drop(self, owner: str) -> None:
        fd = self._held.pop(owner, None)
        if fd is not None:
            os.close(fd)

    def extend(self, owner: str, end_ms: int) -> bool:
        """Store the end of a lease, and `port`. Waits for no other process. Create the file again if it was deleted.

        Return False if this process does not hold the lease.
        """
        with self._holding:  # otherwise, `close` could close the file, and the kernel reuse its number
            if owner not in self._held:
                return False
            with suppress(OSError):  # other stores still see the lock of the earlier file
                self._take(owner)
            os.pwrite(self._held[owner], end_ms.to_bytes(END_BYTES, "big") + self.port.to_bytes(PORT_BYTES, "big"), 0)
            return True

    def holds(self, owner: str) -> bool:
        """Return whether this process holds the lease."""
        return owner in self._held

    def over(self, owners: Iterable[str], now_ms: int) -> set[str]:
        """Return the owners whose process has died, or whose lease has ended. Leases of this process never end."""
        with self._seeing:
            if now_ms - max(self._looked_ms, self._trusted_ms) > PAUSE_MS:
                self._trusted_ms = now_ms + PAUSE_MS
            self._looked_ms = now_ms
            trusted = now_ms >= self._trusted_ms
            return {owner for owner in owners if not self.holds(owner) and self._is_over(owner, now_ms, trusted)}

    def ports(self, owners: Iterable[str]) -> list[int]:
        """Return the port for wakes of each owner, also of this process. An owner without a port has 0."""
        with self._seeing:
            return [self.port if self.holds(owner) else self._port_of(owner) for owner in owners]

    def _port_of(self, owner: str) -> int:
        fd = self._seen.get(owner)
        if fd is None:
            fd = self._open(owner)
        return 0 if fd is None else int.from_bytes(os.pread(fd, PORT_BYTES, END_BYTES), "big")

    def _open(self, owner: str) -> int | None:
        """Return the descriptor for reading the file that has the owner's name now, or None if there is no file."""
        path, seen = self._file(owner), self._seen.get(owner)
        if seen is not None and _is_at(path, seen):
            return seen
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        if seen is not None:
            os.close(seen)
        self._seen[owner] = fd
        return fd

    def _is_over(self, owner: str, now_ms: int, trusted: bool) -> bool:
        """Return whether the lease is over in the file of the last look, and in the file that has the name now.

        These are two files after someone has deleted or replaced the first one. The holder locks the second one before
        it releases the first one.
        """
        seen = self._seen.get(owner)
        if seen is not None and self._lives(owner, seen, now_ms, trusted):
            return False
        fd = self._open(owner)
        return fd is None or fd == seen or not self._lives(owner, fd, now_ms, trusted)

    def _lives(self, owner: str, fd: int, now_ms: int, trusted: bool) -> bool:
        if _lock(fd, fcntl.LOCK_SH):
            fcntl.flock(fd, fcntl.LOCK_UN)
            return False
        end = os.pread(fd, END_BYTES, 0)
        if len(end) == END_BYTES:
            self._ends[owner] = int.from_bytes(end, "big")
        return not trusted or self._ends.get(owner, now_ms + 1) > now_ms

    def close(self) -> None:
        """Release all leases, and close all files."""
        for lock, files in ((self._holding, self._held), (self._seeing, self._seen)):
            with lock:
                for fd in files.values():
                    os.close(fd)
                files.clear()

    def _file(self, owner: str) -> str:
        return f"{self._path}-lease-{quote(owner, safe='')}"


def _is_at(path: str, fd: int) -> bool:
    """Return whether the open file still has this path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
