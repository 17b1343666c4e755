"""Lock log directories against other processes, and check that none contains another."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

LOCK_FILE = ".oncelog.lock"
"""Locked with flock(2)."""
KAFKA_LOCK_FILE = ".lock"
"""Locked with fcntl(2), as Kafka does. On Linux, it is independent of flock(2); on other systems, the two conflict."""


class StartError(Exception):
    """The broker cannot start. The message is one sentence."""


class UnusableFolderError(StartError):
    """A directory cannot be created or written."""


class FolderLock:
    """Lock a directory against other oncelog processes and Apache Kafka, until `release` or the end of this process."""

    def __init__(self, folder: str, wait_s: float = 0.0) -> None:
        """Take the lock, and wait up to `wait_s` for another process to release it.

        Raises StartError, which names the other process, if the directory stays locked. Raises UnusableFolderError if
        the directory cannot be created or written.
        """
        self._folder = folder
        self._fds: list[int] = []
        try:
            os.makedirs(folder, exist_ok=True)
            self._take(wait_s)
        except OSError as error:
            self.release()
            raise UnusableFolderError(f"cannot use directory {folder}: {error.strerror}") from error
        except StartError:
            self.release()
            raise

    def _take(self, wait_s: float) -> None:
        own = self._open(LOCK_FILE)
        deadline = time.monotonic() + wait_s
        while not _locks(fcntl.flock, own):
            if time.monotonic() >= deadline:
                owner = os.pread(own, 20, 0).decode(errors="replace").strip()
                raise StartError(
                    f"directory {self._folder} is in use by process {owner or '?'}. Stop that process, "
                    "or choose another directory"
                )
            time.sleep(0.02)
        # This file is opened only now, because closing it would release any fcntl lock that this process holds on it.
        kafkas = self._open(KAFKA_LOCK_FILE)
        while not _locks(fcntl.lockf, kafkas):
            if time.monotonic() >= deadline:
                raise StartError(
                    f"directory {self._folder} is in use by Apache Kafka. Stop it, or choose another directory"
                )
            time.sleep(0.02)
        with contextlib.suppress(OSError):  # the pid is only for error messages, and the disk may be full
            os.ftruncate(own, 0)
            os.pwrite(own, f"{os.getpid()}\n".encode(), 0)

    def _open(self, name: str) -> int:
        fd = os.open(os.path.join(self._folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._fds.append(fd)
        return fd

    def release(self) -> None:
        """Unlock the directory. The end of the process unlocks it too."""
        while self._fds:
            os.close(self._fds.pop())


def _locks(lock: Callable[[int, int], None], fd: int) -> bool:
    """Lock a file with `lock`. Return False if another process holds the lock."""
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def check_apart(folders: Sequence[str]) -> None:
    """Raise StartError if two log directories are the same, or if one contains another.

    Kafka would not start on the outer directory (`parseTopicPartitionName`). If the inner one is named like a
    partition directory, Kafka would load it as a log.
    """
    for inner, outer in itertools.permutations(folders, 2):
        below, above = os.path.realpath(inner), os.path.realpath(outer)
        if below == above:
            raise StartError(f"log.dirs names {inner} more than once")
        if os.path.commonpath([below, above]) == above:
            raise StartError(
                f"log.dirs names {inner}, which is inside {outer}; use directories that do not contain each other"
            )


@contextlib.contextmanager
def locked(
    folders: Sequence[str], wait_s: float, log: logging.Logger, missing: Mapping[str, str]
) -> Iterator[list[str]]:
    """Lock all usable log directories for the body, and yield their paths. Create those that do not exist.

    `missing` has those that must not be created, with the reason. Raises StartError. Raises UnusableFolderError if no
    directory is usable.
    """
    check_apart(folders)
    with contextlib.ExitStack() as stack:
        usable: list[str] = []
        for folder in folders:
            try:
                if folder in missing:
                    raise UnusableFolderError(f"cannot use directory {folder}: {missing[folder]}")
                lock = FolderLock(folder, wait_s)
            except UnusableFolderError as error:  # the broker gets this error as well, and continues with the others
                if folder == folders[-1] and not usable:
                    raise
                log.error("%s", error)
                continue
            stack.callback(lock.release)
            usable.append(folder)
        yield usable
