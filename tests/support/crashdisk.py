"""A disk in memory that can crash and fail.

It distinguishes written and synced data. `CrashDisk.kill` simulates the death of a process: written data is kept.
`CrashDisk.crash` simulates the death of a machine: any part of the unsynced data may be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Buffer = bytes | bytearray | memoryview
Choose = Callable[[int, int], int]


@dataclass
class Content:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None


class CrashDisk:
    def __init__(self) -> None:
        self.files: dict[str, Content] = {}
        self.folders: set[str] = {""}
        self.operations = 0
        self.fail_at: int | None = None
        self.torn_bytes = 0
        self.broken = False

    def step(self, path: str) -> None:
        """Count one change of the disk, and fail it if it is the chosen one."""
        self.operations += 1
        if self.broken or self.operations == self.fail_at:
            raise OSError(28, f"no space left on device: {path}")

    def kill(self) -> None:
        """Simulate the death of the process: open files are closed, their content is kept."""
        self.fail_at = None
        self.broken = False

    def crash(self, choose: Choose) -> None:
        """Simulate the death of the machine: each file keeps its synced data, and ``choose(low, high)`` selects how
        much of the rest.
        """
        self.kill()
        for path, content in list(self.files.items()):
            synced = content.synced if content.synced is not None else b""
            if content.data.startswith(synced):
                keep = choose(len(synced), len(content.data))
                content.data = content.data[:keep]
            elif not choose(0, 1):
                content.data = bytearray(synced)
                if content.synced is None:
                    del self.files[path]
                    continue
            content.synced = bytes(content.data)

    # --- the disk's interface ---

    def open(self, path: str, *, create: bool = False) -> CrashFile:
        if path not in self.files:
            if not create:
                raise FileNotFoundError(path)
            self.step(path)
            self._check_folder(path)
            self.files[path] = Content()
        return CrashFile(self, path)

    def _check_folder(self, path: str) -> None:
        if path.rpartition("/")[0] not in self.folders:
            raise FileNotFoundError(path)

    def read_file(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return bytes(self.files[path].data)

    def read_part(self, path: str, size: int, pos: int) -> bytes:
        return self.read_file(path)[pos : pos + size]

    def size(self, path: str) -> int | None:
        return len(self.files[path].data) if path in self.files else None

    def absolute(self, path: str) -> str:
        return f"/{path}"

    def space(self, path: str) -> tuple[int, int]:
        return 1 << 40, 1 << 39

    def atomic_write(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        self.step(path)
        self._check_folder(path)
        before = self.files.get(path, Content())
        self.files[path] = Content(bytearray(data), bytes(data) if sync else before.synced)

    def sync(self, path: str) -> None:
        self.step(path)
        if path in self.files:
            self.files[path].synced = bytes(self.files[path].data)
        elif path not in self.folders:
            raise FileNotFoundError(path)

    def rename(self, source: str, target: str) -> None:
        self.step(source)
        self.files[target] = self.files.pop(source)

    def remove(self, path: str) -> None:
        self.step(path)
        self.files.pop(path, None)

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders

    def listdir(self, path: str) -> list[str]:
        return sorted(name for folder, _, name in (p.rpartition("/") for p in self.files) if folder == path)

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        while path:
            self.folders.add(path)
            path = path.rpartition("/")[0]

    def remove_tree(self, path: str) -> None:
        self.folders.discard(path)
        for name in [name for name in self.files if name.startswith(path + "/")]:
            del self.files[name]


class CrashFile:
    def __init__(self, disk: CrashDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def _data(self) -> bytearray:
        if self._path not in self._disk.files:
            raise FileNotFoundError(self._path)
        return self._disk.files[self._path].data

    def pwrite(self, data: Buffer, pos: int) -> None:
        content = self._data()
        try:
            self._disk.step(self._path)
        except OSError:
            content[pos : pos + self._disk.torn_bytes] = bytes(data[: self._disk.torn_bytes])
            raise
        content.extend(bytes(max(0, pos - len(content))))
        content[pos : pos + len(data)] = data

    def pread(self, size: int, pos: int) -> bytes:
        return bytes(self._data()[pos : pos + size])

    def view(self, size: int, pos: int) -> bytes | memoryview:
        return self.pread(size, pos)

    def size(self) -> int:
        return len(self._data())

    def truncate(self, size: int) -> None:
        content = self._data()
        self._disk.step(self._path)
        del content[size:]
        content.extend(bytes(size - len(content)))

    def sync(self) -> None:
        self._disk.sync(self._path)

    def close(self) -> None:
        return
