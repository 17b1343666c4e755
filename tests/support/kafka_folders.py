"""A broker on a log directory of Apache Kafka, or with metadata of another broker, in one process."""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import UUID

from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.cluster.kafka_metadata import FOLDER
from oncelog.cluster.store_memory import MemoryStore
from oncelog.log.disk import Disk, OsDisk
from oncelog.protocol.messages.metadata_records import encode_record
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message
from support.broker_fixtures import NOW

A, B = UUID(int=1 << 80), UUID(int=2 << 80)


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
