"""Files that an interrupted deletion, compaction or write has left in a partition's folder.

Compaction writes ``.cleaned`` files, renames them to ``.swap`` when they are whole, marks the segments they replace as
``.deleted`` and at last gives the ``.swap`` files their final names. Source: Kafka's ``LogLoader``.
"""

from __future__ import annotations

from oncelog.log.disk import Disk
from oncelog.protocol.records import HEADER, HEADER_SIZE, BatchHeader

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"

_SWAPPED_LOG = ".log" + SWAP_SUFFIX
_LEFTOVERS = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX)


def finish_interrupted(disk: Disk, directory: str, names: list[str]) -> list[str]:
    """Bring what was interrupted to its end, or take it back, and return the names that are there now."""
    if not any(name.endswith(_LEFTOVERS) for name in names):
        return names
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    # A .cleaned file behind a .swap: not all of what replaces a segment was whole, so none of it counts.
    unfinished = min((_offset(name) for name in names if name.endswith(CLEANED_SUFFIX)), default=None)
    for name in names:
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX)) or (
            name in swaps and unfinished is not None and _offset(name) >= unfinished
        ):
            disk.remove(f"{directory}/{name}")
    swaps = [name for name in disk.listdir(directory) if name in swaps]
    logs = [name for name in swaps if name.endswith(_SWAPPED_LOG)]
    if logs:
        start = min(_offset(name) for name in logs)
        end = max(_end_offset(disk, f"{directory}/{name}", _offset(name)) for name in logs)
        for name in disk.listdir(directory):
            if name not in swaps and name[:20].isdecimal() and start <= _offset(name) < end:
                disk.remove(f"{directory}/{name}")
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
