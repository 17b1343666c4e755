"""Handle files in a partition directory that are no longer, or not yet, part of the log.

Compaction writes ``.cleaned`` files, and renames them to ``.swap`` when they are complete. It marks the segments that
they replace as ``.deleted``. Finally, it gives the ``.swap`` files their final names. Unlinking a large file takes
long, so this module only renames files. The owner of the log unlinks the ``.deleted`` files later. Source: Kafka's
``LogLoader``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncelog.log.disk import Disk
from oncelog.protocol.records import HEADER, HEADER_SIZE, BatchHeader

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"

_SWAPPED_LOG = ".log" + SWAP_SUFFIX
_LEFTOVERS = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX)


Unlink = Callable[[Sequence[str], int], None]
"""Unlinks files after a delay in ms."""


def unlink_now(disk: Disk, paths: Sequence[str], delay_ms: int) -> None:
    """Unlink the files at once, and ignore the delay."""
    for path in paths:
        disk.remove(path)


def retire(disk: Disk, path: str) -> str:
    """Mark a file as deleted, and return its new path.

    If an earlier file of the same name still waits to be unlinked, choose another name: replacing that file would
    unlink it now.
    """
    target, number = path + DELETED_SUFFIX, 0
    while disk.exists(target):
        number += 1
        target = f"{path}.{number}{DELETED_SUFFIX}"
    disk.rename(path, target)
    return target


def deleted_files(directory: str, names: list[str]) -> list[str]:
    """Return the paths of the files that are marked as deleted."""
    return [f"{directory}/{name}" for name in names if name.endswith(DELETED_SUFFIX)]


def finish_interrupted(disk: Disk, directory: str, names: list[str]) -> list[str]:
    """Complete or roll back an interrupted compaction, and return the current file names."""
    if not any(name.endswith(_LEFTOVERS) for name in names):
        return names
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    # A .cleaned file beside a .swap: some of the files that replace the segment are incomplete, so none of them counts.
    unfinished = min((_offset(name) for name in names if name.endswith(CLEANED_SUFFIX)), default=None)
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(f"{directory}/{name}")
    # The .swap files at or after a .cleaned file are incomplete output: remove them first.
    if unfinished is not None:
        for name in [name for name in swaps if _offset(name) >= unfinished]:
            retire(disk, f"{directory}/{name}")
    for name in [name for name in names if name.endswith(CLEANED_SUFFIX)]:
        retire(disk, f"{directory}/{name}")
    swaps = [name for name in disk.listdir(directory) if name in swaps]
    logs = [name for name in swaps if name.endswith(_SWAPPED_LOG)]
    if logs:
        start = min(_offset(name) for name in logs)
        end = max(_end_offset(disk, f"{directory}/{name}", _offset(name)) for name in logs)
        for name in disk.listdir(directory):
            skipped = name in swaps or name.endswith(DELETED_SUFFIX)
            if not skipped and name[:20].isdecimal() and start <= _offset(name) < end:
                retire(disk, f"{directory}/{name}")
    for name in swaps:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP_SUFFIX)}")
    return disk.listdir(directory)


def _offset(name: str) -> int:
    return int(name.partition(".")[0])


def _end_offset(disk: Disk, path: str, base_offset: int) -> int:
    """Return the offset after the last batch of a ``.log`` file."""
    end, position, size = base_offset, 0, disk.size(path) or 0
    file = disk.open(path)
    try:
        while position + HEADER_SIZE <= size:
            header = BatchHeader._make(HEADER.unpack(file.pread(HEADER_SIZE, position)))
            position += header.size
            if header.size < HEADER_SIZE or position > size:
                break
            end = header.next_offset
    finally:
        file.close()
    return end
