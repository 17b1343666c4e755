"""A broker on a log directory of Apache Kafka, or with metadata of another broker, in one process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

from oncelog.broker.broker import Broker
from oncelog.broker.config.settings import load
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.cluster.kafka_metadata import FOLDER
from oncelog.cluster.store import MetadataStore
from oncelog.cluster.store_memory import MemoryStore
from oncelog.log.disk import Disk, OsDisk
from oncelog.protocol.messages.metadata_records import encode_record
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message

NOW = 1_000_000
A, B = UUID(int=1 << 80), UUID(int=2 << 80)


def live(
    data: Path, store: MetadataStore, life: Callable[[Broker], Awaitable[None]] | None = None, **settings: str
) -> None:
    """Start a broker on `data` with this metadata, run `life`, stop the broker."""

    async def run() -> None:
        given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(data)}
        given |= {key.replace("_", "."): value for key, value in settings.items()}
        broker = Broker(load(given), disk=OsDisk(), store=store, now_ms=lambda: NOW)
        await broker.start()
        try:
            if life is not None:
                await asyncio.wait_for(life(broker), 60)
        finally:
            await broker.stop()

    asyncio.run(run())


def new_tree() -> MemoryStore:
    return MemoryStore(lambda: NOW)


def metadata_log(data: Path, *records: Message, node_id: int = 1) -> Path:
    """Write the metadata log of an Apache Kafka, with a partition's folder."""
    folder = data / FOLDER
    folder.mkdir(parents=True)
    (data / "meta.properties").write_text(
        f"#\n#Sat Nov 21 00:00:00 UTC 2026\nversion=1\ncluster.id=kafka\\=s\nnode.id={node_id}\n"
        "directory.id=AAAAAAAAAAAAAAAAAAAAaQ\n"
    )
    rows = [Record(index, NOW, None, encode_record(record, 0)) for index, record in enumerate(records)]
    (folder / f"{0:020d}.log").write_bytes(build_batch(rows, base_offset=0, leader_epoch=1))
    return folder


def directory_at(data: Path, disk: Disk | None = None) -> DataDirectory:
    return DataDirectory(disk or OsDisk(), str(data), 1, logging.getLogger(), lambda _directory, _error: None)
