"""The disk of the log as an interface, and the implementation for real disks.

All modules of this package use files through `Disk`. The simulation replaces it by a disk that loses what was not
synced, and fails or tears writes. Paths are strings with ``/``. Each failure is an ``OSError``.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import stat
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview

MAP_BYTES = 64 * 1024
"""From this size on, mapping a part of a file is cheaper than copying it."""
WRITE_BYTES = 1024 * 1024
"""The largest number of bytes in one system call that writes.

ext4 may allocate a folio of 2 MiB for a larger one (seen with Linux 6.18): 9 MB then take 22 ms instead of 2.5 ms.
"""
TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})
"""The errors of a file that cannot be opened because too many are open. Nothing has changed on the disk."""
_POPULATE_READ = 22  # MADV_POPULATE_READ: read all pages now, and fail if one cannot be read (Linux 5.14)


class File(Protocol):
    """One open file. Positions are explicit: there is no file pointer."""

    def pwrite(self, data: Buffer, pos: int) -> None:
        """Write all of ``data`` at ``pos``.

        After an ``OSError``, any part of the data may be in the file. After an error in `TOO_MANY_OPEN`, none of it
        is.
        """
        ...

    def pread(self, size: int, pos: int) -> bytes:
        """Return up to ``size`` bytes from ``pos``, less only at the end of the file."""
        ...

    def view(self, size: int, pos: int) -> bytes | memoryview:
        """Read like `pread`, for bytes that the caller only sends. Large parts are mapped instead of copied.

        The result is valid as long as these bytes of the file are neither changed nor truncated.
        """
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file to ``size`` bytes."""
        ...

    def sync(self) -> None:
        """Write the file to the device, and wait."""
        ...

    def close(self) -> None:
        """Close the handle. The next use opens it again."""
        ...


def is_full(error: BaseException | None) -> bool:
    """Return whether a full file system has caused an error of the system or of SQLite."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
            return True
        error = error.__cause__
    return False


def full_disk(folders: Sequence[str]) -> str:
    """Return the sentence for a full file system: the directory with the fewest free bytes, and what to delete."""
    free = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            found = os.statvfs(folder)
            free[folder] = found.f_frsize * found.f_bavail
    if not free:
        return f"the file system of {', '.join(folders)} is full"
    folder = min(free, key=lambda each: free[each])
    return (
        f"the file system of {folder} is full: {free[folder]} bytes are free. Delete files there that are not the "
        "broker's. When the broker runs, `oncelog topic delete` and `delete-records` free more"
    )


class Disk(Protocol):
    """The file system of the log."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing. ``create`` creates it if it is missing."""
        ...

    def read_file(self, path: str) -> bytes:
        """Return the whole file. Raises ``FileNotFoundError``."""
        ...

    def read_part(self, path: str, size: int, pos: int) -> bytes:
        """Read like `File.pread`, with a separate handle, so that a worker thread may call it.

        Raises ``FileNotFoundError``.
        """
        ...

    def size(self, path: str) -> int | None:
        """Return the length of the file in bytes, or None if there is no such file, also if it is a directory."""
        ...

    def absolute(self, path: str) -> str:
        """Return the absolute path, which does not depend on the working directory."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """Return the size of the file system of ``path``, and its free space, in bytes."""
        ...

    def atomic_write(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        """Replace the content of the file in one step: after a crash, the file has the old or the new content."""
        ...

    def sync(self, path: str) -> None:
        """Write the file to the device, and wait. May be called from a worker thread."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory. Replace a file of that name."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file. A missing file is not an error."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether a file or directory of that name exists."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a directory, an empty list if the directory does not exist."""
        ...

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        """Create a directory. An existing one is not an error.

        A missing parent is an error without `parents`: a log must not bring back a log directory that was deleted.
        """
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its content. A missing directory is not an error."""
        ...


def read_if_exists(disk: Disk, path: str) -> bytes | None:
    """Return the whole file, or None if it does not exist."""
    try:
        return disk.read_file(path)
    except FileNotFoundError:
        return None


class OsDisk:
    """The disk of the operating system.

    It holds at most ``max_open`` file descriptors. If it needs another one, it closes the least recently used handle,
    which reopens its file at its next use. So thousands of partitions fit into an ordinary limit. If the process has no
    descriptor left, the disk reuses one of its own.
    """

    def __init__(self, max_open: int = 512) -> None:
        self._max_open = max_open
        self._open: OrderedDict[OsFile, int] = OrderedDict()
        self._may_reuse = True

    def open(self, path: str, *, create: bool = False) -> OsFile:
        """See `Disk.open`."""
        file = OsFile(self, path)
        file.attach(create=create)
        return file

    def close_oldest(self, error: OSError) -> None:
        """Close the oldest handle, so that the caller can repeat the open that failed with ``error``.

        Raises ``error`` if this cannot help. After one failure, it closes no handle until an open succeeds: the
        remaining handles keep their partitions in service.
        """
        if error.errno not in TOO_MANY_OPEN or not self._open or not self._may_reuse:
            raise error
        self._may_reuse = False
        next(iter(self._open)).close()

    def attach(self, file: OsFile, fd: int) -> None:
        """Record that ``file`` holds descriptor ``fd``, and close the oldest one if there are too many."""
        self._may_reuse = True
        self._open[file] = fd
        if len(self._open) > self._max_open:
            next(iter(self._open)).close()

    def touch(self, file: OsFile) -> None:
        """Record a use of ``file``."""
        self._open.move_to_end(file)

    def detach(self, file: OsFile) -> None:
        """Forget the descriptor of ``file``."""
        self._open.pop(file, None)

    @property
    def open_files(self) -> int:
        """Number of descriptors held."""
        return len(self._open)

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def read_part(self, path: str, size: int, pos: int) -> bytes:
        """See `Disk.read_part`."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _pread(fd, size, pos)
        finally:
            os.close(fd)

    def size(self, path: str) -> int | None:
        """See `Disk.size`."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return None if stat.S_ISDIR(found.st_mode) else found.st_size

    def absolute(self, path: str) -> str:
        """See `Disk.absolute`."""
        return os.path.abspath(path)

    def space(self, path: str) -> tuple[int, int]:
        """See `Disk.space`."""
        found = os.statvfs(path)
        return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail

    def atomic_write(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        """See `Disk.atomic_write`."""
        temporary = path + ".tmp"
        with open(temporary, "wb", buffering=0) as file:
            _write(file.fileno(), data, 0)
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            self.sync(os.path.dirname(path) or ".")

    def sync(self, path: str) -> None:
        """See `Disk.sync`."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        """See `Disk.mkdir`."""
        try:
            (os.makedirs if parents else os.mkdir)(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def remove_tree(self, path: str) -> None:
        """See `Disk.remove_tree`."""
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return


class OsFile:
    """A file of `OsDisk`."""

    __slots__ = ("_disk", "_fd", "_path")

    def __init__(self, disk: OsDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._fd = -1

    def attach(self, *, create: bool = False) -> int:
        """Open the descriptor and return it."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            self._fd = os.open(self._path, flags, 0o644)
        except OSError as error:
            self._disk.close_oldest(error)
            self._fd = os.open(self._path, flags, 0o644)
        self._disk.attach(self, self._fd)
        return self._fd

    def _use(self) -> int:
        if self._fd < 0:
            return self.attach()
        self._disk.touch(self)
        return self._fd

    def pwrite(self, data: Buffer, pos: int) -> None:
        """See `File.pwrite`."""
        _write(self._use(), data, pos)

    def pread(self, size: int, pos: int) -> bytes:
        """See `File.pread`."""
        return _pread(self._use(), size, pos)

    def view(self, size: int, pos: int) -> bytes | memoryview:
        """See `File.view`."""
        if size < MAP_BYTES:
            return self.pread(size, pos)
        before = pos % mmap.ALLOCATIONGRANULARITY
        try:
            pages = mmap.mmap(self._use(), before + size, prot=mmap.PROT_READ, offset=pos - before)
            pages.madvise(_POPULATE_READ)
        except (OSError, ValueError):
            # Too many mappings, a system without mappings, a shorter file, an unreadable page: in each case, an
            # ordinary read succeeds, or raises the right error.
            return self.pread(size, pos)
        return memoryview(pages)[before:]

    def size(self) -> int:
        """See `File.size`."""
        return os.fstat(self._use()).st_size

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        os.ftruncate(self._use(), size)

    def sync(self) -> None:
        """See `File.sync`."""
        os.fsync(self._use())

    def close(self) -> None:
        """See `File.close`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.detach(self)
            os.close(fd)


def _write(fd: int, data: Buffer, pos: int) -> None:
    written = os.pwrite(fd, data, pos) if len(data) <= WRITE_BYTES else 0
    if written < len(data):
        rest = memoryview(data)
        while written < len(rest):
            written += os.pwrite(fd, rest[written : written + WRITE_BYTES], pos + written)


def _pread(fd: int, size: int, pos: int) -> bytes:
    data = os.pread(fd, size, pos)
    if len(data) == size:
        return data
    parts = [data]
    got = len(data)
    while data and got < size:
        data = os.pread(fd, size - got, pos + got)
        parts.append(data)
        got += len(data)
    return b"".join(parts)
