"""Brokers whose metadata and log directories are kept, on the real disk, with injected failures by path and kind."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from oncelog.broker.broker import Broker
from oncelog.broker.config.settings import load
from oncelog.broker.workers import Offload
from oncelog.cluster.replica import Replica
from oncelog.cluster.store import MetadataStore
from oncelog.cluster.store_memory import MemoryStore
from oncelog.log.disk import Buffer, Disk, OsDisk, OsFile
from oncelog.protocol.records import Record, build_batch

NOW = 1_000_000
Life = Callable[[Broker], Awaitable[None]]


@asynccontextmanager
async def running(
    folder: Path | str,
    store: MetadataStore | None = None,
    *,
    disk: Disk | None = None,
    now_ms: Callable[[], int] = lambda: NOW,
    offload: Offload = asyncio.to_thread,
    together: bool = False,
    **settings: str,
) -> AsyncIterator[Broker]:
    """Run a broker on a log directory. By default, it has new metadata and the real disk.

    The names of settings have underscores instead of dots.
    """
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder)}
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    store = store or MemoryStore(now_ms)
    broker = Broker(load(given), disk=disk or OsDisk(), store=store, now_ms=now_ms, offload=offload)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop(together=together)


def live(
    folder: Path | str,
    store: MetadataStore | None = None,
    life: Life | None = None,
    *,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    **options: Any,
) -> None:
    """Start a broker (arguments of `running`), run `life`, stop the broker."""

    async def run() -> None:
        async with running(folder, store, **options) as broker:
            if life is not None:
                await asyncio.wait_for(life(broker), 120)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


class BrokenFile(OsFile):
    """A file whose operations fail as configured in its disk."""

    __slots__ = ("_broken", "_name")

    def __init__(self, disk: BrokenDisk, path: str) -> None:
        super().__init__(disk, path)
        self._broken = disk
        self._name = path

    def pwrite(self, data: Buffer, pos: int) -> None:
        self._broken.check("write", self._name)
        super().pwrite(data, pos)

    def view(self, size: int, pos: int) -> bytes | memoryview:
        self._broken.check("view", self._name)
        return super().view(size, pos)

    def pread(self, size: int, pos: int) -> bytes:
        self._broken.check("read", self._name)
        return super().pread(size, pos)


class BrokenDisk(OsDisk):
    """The real disk. `break_down` lets one kind of operation fail under one path, `repair` ends that."""

    def __init__(self) -> None:
        super().__init__()
        self._fault: tuple[str, str, int] | None = None
        self.once = False
        self.sync_threads: set[int] = set()
        self.remove_threads: set[int] = set()
        self.listed_by: dict[str, int] = {}
        """The thread that first listed each folder."""

    def break_down(self, kind: str, path: str, error: int = errno.EIO) -> None:
        self._fault = kind, path, error

    def repair(self) -> None:
        self._fault = None

    def check(self, kind: str, path: str) -> None:
        if self._fault is not None and self._fault[0] == kind and path.startswith(self._fault[1]):
            error = self._fault[2]
            if self.once:
                self.repair()
            raise OSError(error, f"no {kind}", path)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        file = BrokenFile(self, path)
        file.attach(create=create)
        return file

    def listdir(self, path: str) -> list[str]:
        self.listed_by.setdefault(path, threading.get_ident())
        self.check("list", path)
        return super().listdir(path)

    def read_part(self, path: str, size: int, pos: int) -> bytes:
        self.check("read", path)
        return super().read_part(path, size, pos)

    def read_file(self, path: str) -> bytes:
        self.check("read whole", path)
        return super().read_file(path)

    def atomic_write(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        self.check("replace", path)
        super().atomic_write(path, data, sync=sync)

    def remove(self, path: str) -> None:
        if path.endswith(".deleted"):
            self.remove_threads.add(threading.get_ident())
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self.remove_threads.add(threading.get_ident())
        self.check("remove", path)
        super().remove_tree(path)

    def sync(self, path: str) -> None:
        self.sync_threads.add(threading.get_ident())
        self.check("sync", path)
        super().sync(path)


class BrokerStorage:
    """Two log directories and a tree that are kept between brokers."""

    def __init__(self, root: Path, **settings: str) -> None:
        self.paths = [str(root / "a"), str(root / "b")]
        self.store: MetadataStore = MemoryStore(lambda: NOW)
        self.disk = BrokenDisk()
        self._settings = settings

    def run_broker(self, life: Life, **settings: str) -> None:
        """Start a broker, run `life`, stop the broker."""
        # No other broker runs, and to hand over to a registered one would take 5 s.
        options: dict[str, Any] = {"log_dirs": ",".join(self.paths), **self._settings, **settings}
        live("", self.store, life, disk=self.disk, together=True, **options)

    def log_dir_names(self) -> dict[str, str]:
        """Return the log directory of each partition, without those of deleted topics."""
        return {
            folder.name: Path(path).name
            for path in self.paths
            for folder in Path(path).glob("*-[0-9]*")
            if not folder.name.endswith("-delete")
        }


def append(replica: Replica, value: bytes = b"x" * 100) -> None:
    replica.append(memoryview(build_batch([Record(0, NOW, b"k", value)])), now_ms=NOW)


async def fill(broker: Broker, topic: str, partitions: int) -> None:
    await broker.topics.create(topic, partitions=partitions)
    for partition in range(partitions):
        append(broker.partitions.find(topic, partition))
