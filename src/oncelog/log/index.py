"""The sparse indexes of a segment, in Kafka's file formats.

An entry of ``.index`` has 8 bytes: an offset relative to the segment's base, and a position in the ``.log``. An entry
of ``.timeindex`` has 12 bytes: the largest timestamp so far, and the relative offset of the batch that contains it.
Both indexes are arrays in memory. `flush` writes new entries to the files (roll, flush, close). After a crash, recovery
rebuilds the lost entries from the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from operator import gt, lt
from struct import Struct
from typing import ClassVar, NamedTuple

from oncelog.log.disk import Disk, read_if_exists

_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")
MAX_RELATIVE_OFFSET = 2**31 - 1


class _IndexFile:
    """The bytes of an index: how many of them are in the file, and the rest to be written."""

    __slots__ = ("_disk", "_pending", "_size", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._size = -1  # the content of the file is unknown, so the first flush replaces it
        self._pending = bytearray()

    def read(self) -> bytes | None:
        data = read_if_exists(self._disk, self.path)
        self._size = -1 if data is None else len(data)
        return data

    def append(self, entry: bytes) -> None:
        self._pending += entry

    def reset(self, content: bytes = b"") -> None:
        self._size = -1
        self._pending = bytearray(content)

    def flush(self) -> None:
        if self._size < 0:
            self._disk.atomic_write(self.path, self._pending)
            self._size = 0
        elif self._pending:
            file = self._disk.open(self.path, create=True)
            try:
                file.pwrite(self._pending, self._size)
            finally:
                file.close()
        self._size += len(self._pending)
        self._pending = bytearray()


class _Index:
    """The common part of both indexes: columns in memory, one of which is `_offsets`, and a file."""

    __slots__ = ("_file", "_max_entries", "_offsets", "base_offset")
    _ENTRY: ClassVar[Struct]

    def __init__(self, disk: Disk, path: str, base_offset: int, max_bytes: int) -> None:
        """``max_bytes`` is ``segment.index.bytes``."""
        self._file = _IndexFile(disk, path)
        self.base_offset = base_offset
        self._max_entries = max_bytes // self._ENTRY.size
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        """Return the size of all entries."""
        return len(self) * self._ENTRY.size

    @property
    def path(self) -> str:
        """The index's file. Set it after the file was renamed."""
        return self._file.path

    @path.setter
    def path(self, path: str) -> None:
        self._file.path = path

    def flush(self) -> None:
        """Write the entries that are not in the file yet."""
        self._file.flush()

    def _before(self, offset: int) -> int:
        """Return how many entries are before ``offset``."""
        return bisect_right(self._offsets, offset - self.base_offset - 1) if offset > self.base_offset else 0

    def _write_again(self, *columns: array[int]) -> None:
        self._file.reset(b"".join(self._ENTRY.pack(*entry) for entry in zip(*columns, strict=True)))


class OffsetIndex(_Index):
    """Map offsets to positions."""

    __slots__ = ("_positions",)
    _ENTRY = _OFFSET_ENTRY

    def __init__(self, disk: Disk, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(disk, path, base_offset, max_bytes)
        self._positions = array("I")

    @property
    def is_full(self) -> bool:
        """Return whether the index is full."""
        return len(self._offsets) >= self._max_entries

    def load(self) -> bool:
        """Read the file. Return False, and load nothing, if it is missing or not an index."""
        data = self._file.read()
        if data is None or len(data) % _OFFSET_ENTRY.size:
            return False
        flat = array("I", data)
        _to_native(flat)
        offsets, positions = flat[0::2], flat[1::2]
        if not _grows(offsets) or not _grows(positions):
            return False
        self._offsets, self._positions = offsets, positions
        return True

    def reset(self) -> None:
        """Drop all entries."""
        self._offsets, self._positions = array("I"), array("I")
        self._file.reset()

    def append(self, offset: int, position: int) -> None:
        """Add an entry. Its offset and position must be larger than those of the last one."""
        relative = offset - self.base_offset
        self._offsets.append(relative)
        self._positions.append(position)
        self._file.append(_OFFSET_ENTRY.pack(relative, position))

    def lookup(self, offset: int) -> int:
        """Return the position of the last entry at or before ``offset``, 0 if there is none."""
        slot = bisect_right(self._offsets, offset - self.base_offset) - 1
        return self._positions[slot] if slot >= 0 else 0

    def position_before(self, position: int) -> int:
        """Return the position of the last entry at or before ``position``, 0 if there is none."""
        slot = bisect_right(self._positions, position) - 1
        return self._positions[slot] if slot >= 0 else 0

    @property
    def last_position(self) -> int:
        """Return the position of the last entry, 0 if there is none."""
        return self._positions[-1] if self._positions else 0

    def truncate(self, offset: int) -> None:
        """Drop the entries at and after ``offset``."""
        keep = self._before(offset)
        del self._offsets[keep:]
        del self._positions[keep:]
        self._write_again(self._offsets, self._positions)


class TimestampOffset(NamedTuple):
    """A timestamp (ms, -1 for none) and the last offset of the batch that reached it first."""

    timestamp: int
    offset: int


class TimeIndex(_Index):
    """Map the largest timestamp so far to an offset."""

    __slots__ = ("_timestamps",)
    _ENTRY = _TIME_ENTRY

    def __init__(self, disk: Disk, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(disk, path, base_offset, max_bytes)
        self._timestamps = array("q")

    @property
    def is_full(self) -> bool:
        """Return whether the index is full, except for the entry that is reserved for the end of the segment."""
        return len(self._offsets) >= self._max_entries - 1

    def load(self) -> bool:
        """Read the file. Return False, and load nothing, if it is missing or not an index."""
        data = self._file.read()
        if data is None or len(data) % _TIME_ENTRY.size:
            return False
        timestamps, offsets = array("q"), array("I")
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            timestamps.append(timestamp)
            offsets.append(offset)
        if not _grows(timestamps) or any(map(gt, offsets, offsets[1:])):
            return False
        self._timestamps, self._offsets = timestamps, offsets
        return True

    def reset(self) -> None:
        """Drop all entries."""
        self._timestamps, self._offsets = array("q"), array("I")
        self._file.reset()

    @property
    def last(self) -> TimestampOffset:
        """Return the last entry, (-1, base offset) if there is none."""
        if not self._timestamps:
            return TimestampOffset(-1, self.base_offset)
        return TimestampOffset(self._timestamps[-1], self.base_offset + self._offsets[-1])

    def maybe_append(self, entry: TimestampOffset) -> None:
        """Add an entry if its timestamp is larger than the last one's."""
        if entry.timestamp <= (self._timestamps[-1] if self._timestamps else -1):
            return
        relative = entry.offset - self.base_offset
        self._timestamps.append(entry.timestamp)
        self._offsets.append(relative)
        self._file.append(_TIME_ENTRY.pack(entry.timestamp, relative))

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Return the last entry at or before ``timestamp``, (-1, base offset) if there is none."""
        slot = bisect_right(self._timestamps, timestamp) - 1
        if slot < 0:
            return TimestampOffset(-1, self.base_offset)
        return TimestampOffset(self._timestamps[slot], self.base_offset + self._offsets[slot])

    def truncate(self, offset: int) -> None:
        """Drop the entries at and after ``offset``."""
        keep = self._before(offset)
        del self._timestamps[keep:]
        del self._offsets[keep:]
        self._write_again(self._timestamps, self._offsets)


def _to_native(values: array[int]) -> None:
    if array("H", b"\x00\x01")[0] != 1:
        values.byteswap()


def _grows(values: array[int]) -> bool:
    return all(map(lt, values, values[1:]))
