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
from oncelog.log.disk import Disk, OsDisk
from oncelog.protocol.records import Record, build_batch
from support.hooked_disk import HookedDisk

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


class BrokenDisk(HookedDisk):
    """The real disk. `break_down` lets one kind of operation fail under one path, `repair` ends that."""

    def __init__(self) -> None:
        super().__init__(self._before)
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

    def _before(self, kind: str, path: str) -> None:
        thread = threading.get_ident()
        if kind == "list":
            self.listed_by.setdefault(path, thread)
        elif kind == "sync":
            self.sync_threads.add(thread)
        elif kind == "remove" or (kind == "remove file" and path.endswith(".deleted")):
            self.remove_threads.add(thread)
        if self._fault is not None and self._fault[0] == kind.removesuffix(" part") and path.startswith(self._fault[1]):
            error = self._fault[2]
            if self.once:
                self.repair()
            raise OSError(error, f"no {kind}", path)


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
        append(broker.partitions.require(topic, partition))
