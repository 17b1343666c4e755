"""A disk in memory. Its process can die in the middle of a write, and its machine can lose data that is not synced.

`SimDisk` is the device. `mount` returns the `Mount` of a process, which implements the log's `Disk` interface. After
the process has died, its mount raises PowerFailure. If a process is killed, its writes remain, because the page cache
survives. The write in progress may be torn. If the machine crashes, synced data remains, and so does a random part of
the rest of each file. A mapped view of a file shows its current content, see `pages`.
"""

from __future__ import annotations

import os
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from oncelog.log.disk import MAP_BYTES
from oncelog.sim.loop import ProcessDied
from oncelog.sim.pages import Pages

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

CAPACITY = 1 << 40
"""Size of the device in bytes."""


class PowerFailure(ProcessDied):
    """Raised by the disk operation during which the process dies, and by all later operations of its mount."""


@dataclass(slots=True)
class Content:
    """What a file contains, in memory and on the device."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    durable: bool = False
    """Whether the file's name would survive a crash of the machine."""
    given_up: bool = False
    """A sync has failed. Later syncs report success, but write nothing to the device."""
    views: list[weakref.ref[Pages]] = field(default_factory=list)
    """The mapped pages of the file that are still in use."""
    changes: int = 0
    """How often `data` has changed."""

    def view(self, size: int, pos: int) -> memoryview:
        """Map a part of the file."""
        pages = Pages.map(memoryview(self.data)[pos : pos + size], pos)
        self.views = [view for view in self.views if view() is not None]
        self.views.append(weakref.ref(pages))
        return memoryview(pages).toreadonly()

    def changed(self) -> None:
        """Count a change, and show the content in all views."""
        self.changes += 1
        if self.views:
            for pages in [view() for view in self.views]:
                if pages is not None:
                    pages.refresh(self.data)

    def sync(self) -> None:
        """Write the content and the name to the device, unless an earlier sync has failed."""
        if not self.given_up:
            self.synced, self.durable = bytes(self.data), True


class Paths(dict[str, T]):
    """A dict by path that finds the paths of a directory without looking at the others."""

    def __init__(self) -> None:
        super().__init__()
        self._inside: dict[str, dict[str, None]] = {}

    def __setitem__(self, path: str, value: T) -> None:
        super().__setitem__(path, value)
        self._inside.setdefault(path.rpartition("/")[0], {})[path] = None

    def __delitem__(self, path: str) -> None:
        self.pop(path)

    def pop(self, path: str) -> T:  # type: ignore[override]  # without a default
        """Remove a path, and return its value."""
        value = super().pop(path)
        del self._inside[path.rpartition("/")[0]][path]
        return value

    def inside(self, folder: str) -> list[str]:
        """Return the paths that are directly in a directory. The root is not in itself."""
        return [path for path in self._inside.get(folder, ()) if path]


@dataclass(slots=True)
class _Fault:
    kinds: tuple[str, ...]
    prefix: str
    number: int
    after: int


class SimDisk:
    """The device. It calls `trace` with a description of each change and each fault."""

    def __init__(self, rng: random.Random, trace: Callable[[str], None] = lambda _: None) -> None:
        self._rng = rng
        self._trace = trace
        self._files: Paths[Content] = Paths()
        self._folders: Paths[None] = Paths()
        self._folders[""] = None
        self._mount: Mount | None = None
        self._until_death: int | None = None
        self._on_death: Callable[[], None] = lambda: None
        self._fault: _Fault | None = None
        self.changes = 0
        self.map_bytes = MAP_BYTES
        """From this size on, a view of a file shows its current content. Use 1 to find views that are used too long."""

    # -- faults --------------------------------------------------------------------------------------------------------

    def mount(self) -> Mount:
        """Return the disk for a new process. The mount of the former process stops working."""
        self._until_death = None
        self._mount = Mount(self)
        return self._mount

    def die_in(self, changes: int, on_death: Callable[[], None]) -> None:
        """Let the process die in the middle of a change, after `changes` further ones. Then call `on_death`."""
        self._until_death = changes
        self._on_death = on_death

    def spare(self) -> None:
        """Cancel the death that `die_in` has planned."""
        self._until_death = None

    @property
    def is_doomed(self) -> bool:
        """Return whether `die_in` has planned a death."""
        return self._until_death is not None

    def fail_in(self, operations: int, kinds: tuple[str, ...], number: int, prefix: str = "") -> None:
        """Let operations of these kinds on paths with a prefix fail with an `errno`, until `heal` is called.

        The first `operations` of them still succeed. Kinds are "read", "write" and "sync". A write that fails may be
        done in part.
        """
        self._fault = _Fault(kinds, prefix, number, operations)

    def heal(self) -> None:
        """Stop the failures of `fail_in`."""
        self._fault = None

    def check(self, kind: str, path: str) -> None:
        """Raise OSError if `fail_in` lets this operation fail."""
        fault = self._fault
        if fault is None or kind not in fault.kinds or not path.startswith(fault.prefix):
            return
        fault.after -= 1
        if fault.after < 0:
            self._trace(f"{kind} fails: {path}")
            raise OSError(fault.number, os.strerror(fault.number), path)

    def flip_bit(self, prefix: str = "") -> None:
        """Flip a random bit of a random file whose path has this prefix, in memory and on the device."""
        paths = [path for path, content in self._files.items() if path.startswith(prefix) and content.data]
        if not paths:
            return
        path = self._rng.choice(paths)
        content = self._files[path]
        bit = self._rng.randrange(8 * len(content.data))
        self._trace(f"flip bit {bit} of {path}")
        content.data[bit // 8] ^= 1 << bit % 8
        if bit // 8 < len(content.synced):
            synced = bytearray(content.synced)
            synced[bit // 8] ^= 1 << bit % 8
            content.synced = bytes(synced)
        content.changed()

    def kill(self) -> None:
        """Kill the process. Its writes remain."""
        self._mount = None
        self._until_death = None

    def crash(self) -> None:
        """Crash the machine. Each file keeps a random part of its unsynced data.

        A file whose name is not synced may disappear.
        """
        self.kill()
        for path, content in list(self._files.items()):
            if not content.durable and self._rng.random() < 0.5:
                del self._files[path]
                continue
            common = _common_prefix(content.synced, content.data)
            if common < len(content.synced):  # synced data has changed: keep the old or the new content
                kept = content.data if self._rng.random() < 0.5 else bytearray(content.synced)
            else:
                kept = content.data[: self._rng.randint(common, len(content.data))]
            self._trace(f"crash leaves {len(kept)} of {len(content.data)} bytes of {path}")
            content.data, content.synced, content.durable = bytearray(kept), bytes(kept), True
            content.given_up = False
            content.changes += 1

    # -- called by mounts ----------------------------------------------------------------------------------------------

    def is_mounted(self, mount: Mount) -> bool:
        """Return whether the mount's process is alive."""
        return self._mount is mount

    def change(self, what: str) -> bool:
        """Count a change. Return whether the process has to die during it."""
        self.changes += 1
        self._trace(what)
        if self._until_death is None:
            return False
        self._until_death -= 1
        return self._until_death < 0

    def die(self) -> None:
        """Kill the process now. Raises PowerFailure."""
        self.kill()
        self._on_death()
        raise PowerFailure

    def torn(self, size: int) -> int:
        """Return how many bytes of an interrupted write of `size` bytes are written."""
        return self._rng.randint(0, size)

    @property
    def files(self) -> Paths[Content]:
        """All files by path."""
        return self._files

    @property
    def folders(self) -> Paths[None]:
        """All directories by path."""
        return self._folders


class Mount:
    """A `SimDisk` as one process sees it. `oncelog.log.disk.Disk` documents its methods."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def _live(self) -> SimDisk:
        if not self._disk.is_mounted(self):
            raise PowerFailure
        return self._disk

    def content(self, path: str) -> Content:
        """Return a file's content. Raises FileNotFoundError."""
        content = self._live().files.get(path)
        if content is None:
            raise FileNotFoundError(2, "no such file", path)
        return content

    def maps(self, size: int) -> bool:
        """Return whether a view of this size is mapped instead of copied."""
        return size >= self._disk.map_bytes

    def check_read(self, path: str) -> None:
        """Raise OSError if `SimDisk.fail_in` lets this read fail."""
        self._live().check("read", path)

    def change(self, what: str) -> None:
        """Count a change that cannot be done in part. Raises PowerFailure if the process dies before it."""
        if self._live().change(what):
            self._disk.die()

    def write(self, path: str, data: Buffer, pos: int) -> None:
        """Write data to a file. If the process dies, or if the write fails, a random part of the data is written."""
        content = self.content(path)
        dies = self._disk.change(f"write {len(data)} bytes at {pos} of {path}")
        failure = None
        try:
            self._disk.check("write", path)
        except OSError as error:
            failure = error
        size = self._disk.torn(len(data)) if dies or failure else len(data)
        if size:
            content.data.extend(bytes(max(0, pos - len(content.data))))
            content.data[pos : pos + size] = data[:size]
            content.changed()
        if dies:
            self._disk.die()
        if failure is not None:
            raise failure

    def open(self, path: str, *, create: bool = False) -> SimFile:
        """See `Disk.open`."""
        files = self._live().files
        if path not in files:
            if not create:
                raise FileNotFoundError(2, "no such file", path)
            self._check_folder(path)
            self._disk.check("write", path)
            self.change(f"create {path}")
            files[path] = Content()
        return SimFile(self, path)

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        self._live().check("read", path)
        return bytes(self.content(path).data)

    def read_part(self, path: str, size: int, pos: int) -> bytes:
        """See `Disk.read_part`."""
        content = self.content(path)
        self.check_read(path)
        return bytes(memoryview(content.data)[pos : pos + size])

    def size(self, path: str) -> int | None:
        """See `Disk.size`."""
        content = self._live().files.get(path)
        return None if content is None else len(content.data)

    def absolute(self, path: str) -> str:
        """See `Disk.absolute`."""
        return f"/{path}"

    def space(self, path: str) -> tuple[int, int]:
        """See `Disk.space`."""
        used = sum(len(content.data) for content in self._live().files.values())
        return CAPACITY, CAPACITY - used

    def atomic_write(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        """See `Disk.atomic_write`."""
        self._check_folder(path)
        self._disk.check("write", path)
        self.change(f"replace {path} by {len(data)} bytes")
        before = self._disk.files.get(path)
        content = self._disk.files[path] = Content(bytearray(data))
        if sync:
            content.synced, content.durable = bytes(data), True
        elif before is not None:
            content.synced, content.durable = before.synced, before.durable

    def sync(self, path: str) -> None:
        """See `Disk.sync`. The sync of a directory makes the names in it durable."""
        if path in self._live().folders:
            self._disk.check("sync", path)
            self.change(f"sync {path}/")
            for name in self._disk.files.inside(path):
                self._disk.files[name].durable = True
            return
        content = self.content(path)
        try:
            self._disk.check("sync", path)
        except OSError:
            content.given_up = True
            raise
        self.change(f"sync {path}")
        content.sync()

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        if source in self._live().folders:
            self.change(f"rename {source}/ to {target}/")
            self._rename_folder(source, target)
            return
        self.content(source)
        self.change(f"rename {source} to {target}")
        self._disk.files[target] = self._disk.files.pop(source)

    def _rename_folder(self, source: str, target: str) -> None:
        files, folders = self._disk.files, self._disk.folders
        for name in [name for name in files if name.startswith(source + "/")]:
            files[target + name[len(source) :]] = files.pop(name)
        for name in [name for name in folders if _within(name, source)]:
            folders[target + name[len(source) :]] = folders.pop(name)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        if path in self._live().files:
            self.change(f"remove {path}")
            del self._disk.files[path]

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        disk = self._live()
        return path in disk.files or path in disk.folders

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        disk = self._live()
        return sorted(name.rpartition("/")[2] for name in disk.files.inside(path) + disk.folders.inside(path))

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        """See `Disk.mkdir`."""
        self._live()
        if not parents and path.rpartition("/")[0]:
            self._check_folder(path)
        while path:
            self._disk.folders[path] = None
            path = path.rpartition("/")[0]

    def remove_tree(self, path: str) -> None:
        """See `Disk.remove_tree`."""
        self.change(f"remove {path}/")
        for name in [name for name in self._disk.files if _within(name, path)]:
            del self._disk.files[name]
        for name in [name for name in self._disk.folders if _within(name, path)]:
            del self._disk.folders[name]

    def _check_folder(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._live().folders:
            raise FileNotFoundError(2, "no such directory", folder)


class SimFile:
    """An open file. `oncelog.log.disk.File` documents its methods."""

    def __init__(self, mount: Mount, path: str) -> None:
        self._mount = mount
        self._path = path

    def pwrite(self, data: Buffer, pos: int) -> None:
        """See `File.pwrite`."""
        self._mount.write(self._path, data, pos)

    def pread(self, size: int, pos: int) -> bytes:
        """See `File.pread`."""
        return self._mount.read_part(self._path, size, pos)

    def view(self, size: int, pos: int) -> bytes | memoryview:
        """See `File.view`."""
        if not self._mount.maps(size):
            return self.pread(size, pos)
        self._mount.check_read(self._path)
        return self._mount.content(self._path).view(size, pos)

    def size(self) -> int:
        """See `File.size`."""
        return len(self._mount.content(self._path).data)

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        content = self._mount.content(self._path)
        self._mount.change(f"cut {self._path} at {size}")
        del content.data[size:]
        content.data.extend(bytes(max(0, size - len(content.data))))
        content.changed()

    def sync(self) -> None:
        """See `File.sync`."""
        self._mount.sync(self._path)

    def close(self) -> None:
        """See `File.close`."""


def _common_prefix(one: Buffer, other: Buffer) -> int:
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    return next(index for index in range(size) if one[index] != other[index])


def _within(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder + "/")
