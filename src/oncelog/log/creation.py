"""Create the files of a log that gets its first records."""

from __future__ import annotations

import uuid

from oncelog.log.checkpoint import PARTITION_METADATA, encode_partition_metadata
from oncelog.log.disk import Disk
from oncelog.log.segment import LOG_SUFFIX, file_name


def metadata_path(folder: str) -> str:
    """Return the path of the file that names the topic's id."""
    return f"{folder}/{PARTITION_METADATA}"


def create_folder(disk: Disk, folder: str, topic_id: uuid.UUID | None) -> None:
    """Create the folder of a log, without a segment. Raises OSError."""
    disk.mkdir(folder)
    if topic_id is not None:
        disk.atomic_write(metadata_path(folder), encode_partition_metadata(topic_id))


def create_files(disk: Disk, folder: str, topic_id: uuid.UUID | None, base_offset: int) -> None:
    """Create a folder with the files of an empty log. Nothing else may use the folder meanwhile. Raises OSError.

    A worker thread may call this.
    """
    create_folder(disk, folder, topic_id)
    disk.atomic_write(f"{folder}/{file_name(base_offset, LOG_SUFFIX)}", b"")
