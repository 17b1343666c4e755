"""The real disk, with hooks that can fail, delay or record its operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from oncelog.log.disk import Buffer, OsDisk, OsFile

Hook = Callable[[str, str], object]
D = TypeVar("D")

KINDS = {
    "atomic_write": "replace",
    "exists": "exists",
    "listdir": "list",
    "mkdir": "mkdir",
    "open": "open",
    "read_file": "read whole",
    "read_part": "read part",
    "remove": "remove file",
    "remove_tree": "remove",
    "rename": "rename",
    "size": "size",
    "space": "space",
    "sync": "sync",
}
"""The kind of each method of a disk. The kinds of a file's methods are "write", "read" and "view"."""


def ignore(kind: str, path: str) -> None:
    """Do nothing, as a hook."""


def hooked(disk: type[D]) -> type[D]:
    """Let each operation of this class call the disk's `before` with its kind and path, and then `after`.

    If `before` raises, the operation does not run. `after` is called only for operations that have succeeded.
    """
    for method, kind in KINDS.items():
        setattr(disk, method, _hooked(getattr(disk, method), kind))
    return disk


def _hooked(method: Callable[..., Any], kind: str) -> Callable[..., Any]:
    def operation(disk: Any, path: str, *arguments: Any, **options: Any) -> Any:
        disk.before(kind, path)
        result = method(disk, path, *arguments, **options)
        disk.after(kind, path)
        return result

    return operation


class _File(OsFile):
    """A file whose operations call `before` of its disk."""

    __slots__ = ("_hooks", "_name")

    def __init__(self, disk: HookedDisk, path: str) -> None:
        super().__init__(disk, path)
        self._hooks = disk
        self._name = path

    def pwrite(self, data: Buffer, pos: int) -> None:
        self._hooks.before("write", self._name)
        super().pwrite(data, pos)

    def view(self, size: int, pos: int) -> bytes | memoryview:
        self._hooks.before("view", self._name)
        return super().view(size, pos)

    def pread(self, size: int, pos: int) -> bytes:
        self._hooks.before("read", self._name)
        return super().pread(size, pos)


@hooked
class HookedDisk(OsDisk):
    """The real disk. By default, its hooks do nothing."""

    def __init__(self, before: Hook = ignore, after: Hook = ignore) -> None:
        super().__init__()
        self.before = before
        self.after = after

    def open(self, path: str, *, create: bool = False) -> OsFile:
        file = _File(self, path)
        file.attach(create=create)
        return file
