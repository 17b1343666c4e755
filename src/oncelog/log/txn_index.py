"""Aborted transactions of a segment (``.txnindex``), in Kafka's file format.

Each aborted transaction has an entry of 34 bytes: version 0, producer id, first offset, offset of the ABORT marker, and
the last stable offset after the marker. The broker returns these transactions to read_committed consumers, which skip
their records.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import NamedTuple

from oncelog.log.disk import Disk, read_if_exists

_ENTRY = Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """One aborted transaction. ``last_offset`` is the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Aborted transactions whose marker is in this segment, in the order of their markers.

    The file exists only if there is an entry. `flush` writes new entries to it.
    """

    __slots__ = ("_disk", "_on_disk", "entries", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.entries: list[AbortedTransaction] = []
        self._on_disk = 0  # entries in the file; -1 if the content of the file must be replaced

    def load(self, base_offset: int) -> bool:
        """Read the file. Return False, and load nothing, if its content is not an index."""
        data = read_if_exists(self._disk, self.path) or b""
        if len(data) % _ENTRY.size:
            return False
        entries = []
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION or entry.last_offset < base_offset:
                return False
            entries.append(entry)
        self.entries = entries
        self._on_disk = len(entries)
        return True

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry. Its marker must be after that of the last entry."""
        self.entries.append(entry)

    def reset(self) -> None:
        """Drop all entries."""
        self.entries = []
        self._on_disk = -1

    def truncate(self, offset: int) -> None:
        """Drop the entries whose marker is at or after ``offset``."""
        self.entries = [entry for entry in self.entries if entry.last_offset < offset]
        self._on_disk = -1

    def flush(self) -> None:
        """Write the entries that are not in the file yet."""
        data = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self.entries[max(self._on_disk, 0) :])
        if self._on_disk < 0 and not data:
            self._disk.remove(self.path)
        elif self._on_disk < 0:
            self._disk.atomic_write(self.path, data)
        elif data:
            file = self._disk.open(self.path, create=True)
            try:
                file.pwrite(data, self._on_disk * _ENTRY.size)
            finally:
                file.close()
        self._on_disk = len(self.entries)

    def collect(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the aborted transactions with records in ``[start, end)``, and whether the list is complete.

        If it is complete, later segments have no further ones: all transactions before ``end`` are decided here.
        """
        found = []
        for slot in range(bisect_left(self.entries, start, key=_last_offset), len(self.entries)):
            entry = self.entries[slot]
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
        return found, False


def _last_offset(entry: AbortedTransaction) -> int:
    return entry.last_offset
