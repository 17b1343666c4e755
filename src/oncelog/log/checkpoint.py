"""Kafka's checkpoint files: a version, the number of entries, one entry per line.

Used for ``leader-epoch-checkpoint`` in a partition directory, and for ``recovery-point-offset-checkpoint``,
``log-start-offset-checkpoint`` and ``replication-offset-checkpoint`` of a whole log directory.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping

from oncelog.log.disk import Disk, read_if_exists
from oncelog.protocol.topics import TopicPartition

_VERSION = 0
PARTITION_METADATA = "partition.metadata"


class CorruptCheckpointError(Exception):
    """The file is not a checkpoint, or incomplete."""


def encode_checkpoint(lines: Iterable[str]) -> bytes:
    """Return the content of a checkpoint file with one entry per line."""
    entries = list(lines)
    return "\n".join([str(_VERSION), str(len(entries)), *entries, ""]).encode()


def decode_checkpoint(data: bytes) -> list[list[str]]:
    """Return the entries of a checkpoint file, each split into its fields. An empty file has none."""
    try:
        lines = data.decode().splitlines()
        if len(lines) < 2:
            return []
        version, count, entries = int(lines[0]), int(lines[1]), lines[2:]
    except ValueError as error:
        raise CorruptCheckpointError(f"malformed checkpoint: {error}") from error
    if version != _VERSION:
        raise CorruptCheckpointError(f"the checkpoint has version {version}, but only {_VERSION} is supported")
    if count != len(entries):
        raise CorruptCheckpointError(f"the checkpoint claims {count} entries, but has {len(entries)}")
    return [line.split() for line in entries]


def read_offset_checkpoint(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Return (topic, partition) -> offset of a log directory's checkpoint, an empty dict if it does not exist."""
    try:
        rows = decode_checkpoint(read_if_exists(disk, path) or b"")
        return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except ValueError as error:
        raise CorruptCheckpointError(f"malformed checkpoint {path}: {error}") from error


def write_offset_checkpoint(
    disk: Disk, path: str, offsets: Mapping[TopicPartition, int], *, sync: bool = False
) -> None:
    """Write (topic, partition) -> offset as a log directory's checkpoint."""
    rows = (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
    disk.atomic_write(path, encode_checkpoint(rows), sync=sync)


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Return the content of ``partition.metadata``, which contains the topic id of a partition directory."""
    text = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    return f"version: {_VERSION}\ntopic_id: {text}\n".encode()


def decode_partition_metadata(data: bytes) -> uuid.UUID:
    """Return the topic id of a ``partition.metadata``."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
        return uuid.UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
    except (ValueError, KeyError) as error:
        raise CorruptCheckpointError(f"malformed {PARTITION_METADATA}: {error}") from error
