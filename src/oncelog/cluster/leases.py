"""Files that show whether the holder of a session lives, next to the SQLite file of the tree.

The holder locks the file of its owner's name with flock(2). The kernel drops the lock when the process dies, so other
brokers notice a death at once, with or without a supervisor. The file contains the end of the lease, which matters only
if the process is paused. It is never synced: after the machine's restart no process holds a lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from urllib.parse import quote

_ATTEMPTS = 20
_RETRY_S = 0.005
"""Another store locks the file for some microseconds when it looks whether the holder lives."""


class Leases:
    """The leases of one tree: those that this process holds, and those that it looks at. All methods block."""

    def __init__(self, path: str) -> None:
        """`path` is the path of the tree's SQLite file."""
        self._path = path
        self._held: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def take(self, owner: str) -> bool:
        """Lock the file of an owner until `release` or the end of the process. Return False if another holder lives."""
        if owner in self._held:
            return True
        fd = os.open(self._file(owner), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_RETRY_S)
            if _lock(fd, fcntl.LOCK_EX):
                self._held[owner] = fd
                return True
        os.close(fd)
        return False

    def extend(self, owner: str, end_ms: int) -> None:
        """Store the end of a held lease."""
        os.pwrite(self._held[owner], end_ms.to_bytes(8, "big"), 0)

    def holds(self, owner: str) -> bool:
        """Return whether this process holds the lease."""
        return owner in self._held

    def is_over(self, owner: str, now_ms: int) -> bool:
        """Return whether another process's lease has ended, or the process has died."""
        fd = self._seen.get(owner)
        if fd is None:
            try:
                fd = self._seen[owner] = os.open(self._file(owner), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return True
        if _lock(fd, fcntl.LOCK_SH):
            fcntl.flock(fd, fcntl.LOCK_UN)
            return True
        return int.from_bytes(os.pread(fd, 8, 0), "big") <= now_ms

    def release(self, owner: str) -> None:
        """Unlock the file of an owner, if this process holds it."""
        fd = self._held.pop(owner, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Release all leases, and close all files."""
        for fd in (*self._held.values(), *self._seen.values()):
            os.close(fd)
        self._held.clear()
        self._seen.clear()

    def _file(self, owner: str) -> str:
        return f"{self._path}-lease-{quote(owner, safe='')}"


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
