"""Damage the files of a disk, or replace them by a former copy, while no process uses them."""

from __future__ import annotations

from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.records import is_partial, parse_header
from oncelog.sim.disk import Content, SimDisk

LOG = ".log"


def copy(disk: SimDisk, folder: str) -> dict[str, bytes]:
    """Return the files of a folder."""
    return {path: bytes(content.data) for path, content in disk.files.items() if path.startswith(f"{folder}/")}


def put_back(disk: SimDisk, folder: str, copied: dict[str, bytes]) -> None:
    """Replace the files of a folder by a copy of it."""
    for path in [path for path in disk.files if path.startswith(f"{folder}/")]:
        del disk.files[path]
    for path in [path for path in disk.folders if path.startswith(f"{folder}/")]:
        del disk.folders[path]
    for path, data in copied.items():
        disk.files[path] = Content(bytearray(data), data, durable=True)
        disk.folders[path.rpartition("/")[0]] = None
    disk.changes += 1


def remove(disk: SimDisk, folder: str) -> None:
    """Remove a folder with its files."""
    put_back(disk, folder, {})
    if folder in disk.folders:
        del disk.folders[folder]


def tear(disk: SimDisk, folder: str, share: float) -> None:
    """Cut the last segment of a partition in the middle of a batch. `share` says how far from the start, from 0 to 1.

    A cut between two batches could not be noticed.
    """
    paths = [path for path in disk.files if path.startswith(f"{folder}/") and path.endswith(LOG)]
    filled = [path for path in sorted(paths) if disk.files[path].data]
    if not filled:
        return
    content = disk.files[filled[-1]]
    starts = _starts(bytes(content.data))
    start = starts[int(share * (len(starts) - 1))]
    del content.data[start + 1 :]
    content.sync()
    content.changed()
    disk.changes += 1


def _starts(data: bytes) -> list[int]:
    """Return the positions of the batches."""
    found, view = [0], memoryview(data)
    while not is_partial(view, found[-1]):
        try:
            found.append(found[-1] + parse_header(view, found[-1]).size)
        except ProtocolError:
            break
    return found[:-1] or found
