"""The disk of one log directory, which is never used after its first failure (KIP-112).

After a failed write or fsync, the content of the device is unknown. A second fsync may succeed although the operating
system has dropped the data. So the first error takes the directory offline, and all later calls fail at once. Only a
restart, with its recovery, opens the directory again. Source: Kafka's ``LogDirFailureChannel``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

from oncelog.log.disk import TOO_MANY_OPEN, Buffer, Disk, File


class OfflineError(OSError):
    """The log directory is offline after an earlier failure."""


class GuardedDisk:
    """A `Disk` that reports its first failure to ``on_failure``, perhaps in a worker thread, and then stays offline.

    A missing file is not a failure if the caller only checks for it. A full disk is a failure, as in Kafka.
    """

    def __init__(self, disk: Disk, path: str, on_failure: Callable[[OSError], None]) -> None:
        self._disk = disk
        self._path = path
        self._on_failure = on_failure
        self.failure: OSError | None = None
        """The failure that took the directory offline, or None."""

    @contextmanager
    def _guarded(self, *, may_be_missing: bool = False) -> Iterator[None]:
        self.check()
        try:
            yield
        except FileNotFoundError as error:
            if not may_be_missing:
                self.fail(error)
            raise
        except OSError as error:
            self.fail(error)
            raise

    def check(self) -> None:
        """Raise OfflineError if the directory is offline."""
        if self.failure is not None:
            raise OfflineError(errno.EIO, f"log directory {self._path} is offline: {self.failure}")

    def fail(self, error: OSError) -> None:
        """Take the directory offline, unless the process has too many open files."""
        if self.failure is None and error.errno not in TOO_MANY_OPEN:
            self.failure = copy(error)  # without the traceback, whose frames hold the data to write
            self._on_failure(self.failure)

    # --- see `Disk` ---

    def open(self, path: str, *, create: bool = False) -> GuardedFile:
        """See `Disk.open`."""
        with self._guarded(may_be_missing=not create):
            return GuardedFile(self, self._disk.open(path, create=create))

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        with self._guarded(may_be_missing=True):
            return self._disk.read_file(path)

    def read_part(self, path: str, size: int, pos: int) -> bytes:
        """See `Disk.read_part`. A missing file is not a failure, because it may have been deleted meanwhile."""
        with self._guarded(may_be_missing=True):
            return self._disk.read_part(path, size, pos)

    def size(self, path: str) -> int | None:
        """See `Disk.size`."""
        with self._guarded():
            return self._disk.size(path)

    def absolute(self, path: str) -> str:
        """See `Disk.absolute`."""
        return self._disk.absolute(path)

    def space(self, path: str) -> tuple[int, int]:
        """See `Disk.space`."""
        with self._guarded():
            return self._disk.space(path)

    def atomic_write(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        """See `Disk.atomic_write`."""
        with self._guarded():
            self._disk.atomic_write(path, data, sync=sync)

    def sync(self, path: str) -> None:
        """See `Disk.sync`. Raises FileNotFoundError if the file was deleted meanwhile, which is not a failure."""
        with self._guarded(may_be_missing=True):
            self._disk.sync(path)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        with self._guarded():
            self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        with self._guarded():
            self._disk.remove(path)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        with self._guarded():
            return self._disk.exists(path)

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        with self._guarded():
            return self._disk.listdir(path)

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        """See `Disk.mkdir`."""
        with self._guarded():
            self._disk.mkdir(path, parents=parents)

    def remove_tree(self, path: str) -> None:
        """See `Disk.remove_tree`."""
        with self._guarded():
            self._disk.remove_tree(path)


class GuardedFile:
    """A file of `GuardedDisk`. It does not use `_guarded`, because each append and each fetch calls these methods."""

    __slots__ = ("_disk", "_file")

    def __init__(self, disk: GuardedDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def pwrite(self, data: Buffer, pos: int) -> None:
        """See `File.pwrite`."""
        if self._disk.failure is not None:
            self._disk.check()
        try:
            self._file.pwrite(data, pos)
        except OSError as error:
            self._disk.fail(error)
            raise

    def pread(self, size: int, pos: int) -> bytes:
        """See `File.pread`."""
        if self._disk.failure is not None:
            self._disk.check()
        try:
            return self._file.pread(size, pos)
        except OSError as error:
            self._disk.fail(error)
            raise

    def view(self, size: int, pos: int) -> bytes | memoryview:
        """See `File.view`."""
        if self._disk.failure is not None:
            self._disk.check()
        try:
            return self._file.view(size, pos)
        except OSError as error:
            self._disk.fail(error)
            raise

    def size(self) -> int:
        """See `File.size`."""
        self._disk.check()
        try:
            return self._file.size()
        except OSError as error:
            self._disk.fail(error)
            raise

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        self._disk.check()
        try:
            self._file.truncate(size)
        except OSError as error:
            self._disk.fail(error)
            raise

    def sync(self) -> None:
        """See `File.sync`."""
        self._disk.check()
        try:
            self._file.sync()
        except OSError as error:
            self._disk.fail(error)
            raise

    def close(self) -> None:
        """See `File.close`."""
        self._file.close()
