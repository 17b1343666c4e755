"""Files that show whether the holder of a session lives, next to the SQLite file of the tree.

The holder locks the file of its owner's name with flock(2). The kernel drops the lock when the process dies, so other
brokers notice a death at once, with or without a supervisor. The file contains the end of the lease, which matters only
if the process is paused, and the holder's port for wakes (`wakes.py`). It is never synced: after the machine's restart
no process holds a lock.

A store that was paused itself ignores the ends of leases for a moment. Otherwise, if all brokers were paused, the first
one to continue would end the sessions of the others.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable
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
        self._held: dict[str, int] = {}
        self._holding = threading.Lock()
        """A write to a file of `_held` may wait for the disk, so `_seen` has another lock."""
        self._seen: dict[str, int] = {}
        self._seeing = threading.Lock()
        self._looked_ms = now_ms
        self._trusted_ms = now_ms
        """The time from which the ends of leases count."""

    def take(self, owner: str) -> bool:
        """Lock the file of an owner until `close` or the end of the process. Return False if another holder lives."""
        if owner in self._held:
            return True
        fd = os.open(self._file(owner), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_RETRY_S)
            if _lock(fd, fcntl.LOCK_EX):
                with self._holding:
                    self._held[owner] = fd
                return True
        os.close(fd)
        return False

    def extend(self, owner: str, end_ms: int) -> bool:
        """Store the end of a lease, and `port`. Waits for no other process.

        Return False if this process does not hold the lease.
        """
        with self._holding:  # otherwise, `close` could close the file, and the kernel reuse its number
            fd = self._held.get(owner)
            if fd is not None:
                os.pwrite(fd, end_ms.to_bytes(END_BYTES, "big") + self.port.to_bytes(PORT_BYTES, "big"), 0)
            return fd is not None

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
        fd = self._open(owner)
        return 0 if fd is None else int.from_bytes(os.pread(fd, PORT_BYTES, END_BYTES), "big")

    def _open(self, owner: str) -> int | None:
        """Return the descriptor for reading an owner's file, or None if there is no file."""
        fd = self._seen.get(owner)
        if fd is None:
            try:
                fd = self._seen[owner] = os.open(self._file(owner), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        return fd

    def _is_over(self, owner: str, now_ms: int, trusted: bool) -> bool:
        fd = self._open(owner)
        if fd is None:
            return True
        if _lock(fd, fcntl.LOCK_SH):
            fcntl.flock(fd, fcntl.LOCK_UN)
            return True
        return trusted and int.from_bytes(os.pread(fd, END_BYTES, 0), "big") <= now_ms

    def close(self) -> None:
        """Release all leases, and close all files."""
        for lock, files in ((self._holding, self._held), (self._seeing, self._seen)):
            with lock:
                for fd in files.values():
                    os.close(fd)
                files.clear()

    def _file(self, owner: str) -> str:
        return f"{self._path}-lease-{quote(owner, safe='')}"


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
