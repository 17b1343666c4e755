"""Several brokers in one event loop, on one tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from oncelog.broker.broker import Broker
from oncelog.broker.config.settings import load
from oncelog.cluster.store import MetadataStore
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.log.disk import OsDisk

NOW = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = NOW

    def __call__(self) -> int:
        return self.ms


class Brokers:
    """Brokers in one event loop, with one store, or with one for each broker on the same file."""

    def __init__(
        self, folder: Path, store: MetadataStore | None = None, now_ms: Callable[[], int] = lambda: NOW
    ) -> None:
        self.running: dict[int, Broker] = {}
        self.disk = OsDisk()
        self._now_ms = now_ms
        self._folder = folder
        self._store = store

    def make(self, node_id: int, folder: str = "", boot_id: str = "boot", **settings: str) -> Broker:
        given = {
            "node.id": str(node_id),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self._folder / (folder or f"data-{node_id}")),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        store = self._store or SqliteStore(str(self._folder / "metadata.sqlite"))
        return Broker(load(given), disk=self.disk, store=store, now_ms=self._now_ms, boot_id=boot_id)

    async def start(self, node_id: int, **options: str) -> Broker:
        broker = self.make(node_id, **options)
        await broker.start()
        self.running[node_id] = broker
        return broker

    async def stop(self, node_id: int) -> None:
        broker = self.running.pop(node_id)
        await broker.stop()
        if self._store is None:
            broker.store.close()

    async def crash(self, node_id: int) -> None:
        """End a broker without telling the others, and without the mark of a clean stop."""
        broker = self.running.pop(node_id)
        await broker.server.close()
        await broker.workers.close()
        if self._store is None:
            broker.store.close()


def run(brokers: Brokers, body: Callable[[Brokers], Coroutine[Any, Any, None]], *, limit_s: float = 240) -> None:
    async def main() -> None:
        try:
            await asyncio.wait_for(body(brokers), limit_s)
        finally:
            for node_id in tuple(brokers.running):
                await brokers.stop(node_id)

    asyncio.run(main())


async def until(true: Callable[[], object], limit_s: float = 60) -> None:
    """Wait until a condition holds. The limit is for a busy machine with a slow disk."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while not true():
        assert loop.time() - begun < limit_s
        await asyncio.sleep(0.002)
