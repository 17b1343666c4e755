"""Read a segment for compaction. Its data is cold, so the device may have to read it.

A worker thread reads some hundred KiB with a separate handle. The caller processes them in smaller chunks.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from oncelog.log.disk import Disk
from oncelog.log.segment import Segment
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import LOG_OVERHEAD, is_partial, iter_batches

READ = 256 * 1024
"""Bytes of one read. A larger batch is read as a whole."""

CHUNK = 32 * 1024
"""Bytes of batches in one step. A larger batch is a step of its own."""


class SegmentReader:
    """Read the batches of an inactive segment: call `fill` and `chunks` in turn until `done`."""

    def __init__(self, disk: Disk, segment: Segment, position: int) -> None:
        """``position`` is the start of a batch."""
        self._disk = disk
        self._path = segment.path
        self._end = segment.size
        self._position = position
        self._data = memoryview(b"")
        self._missing = False

    @property
    def done(self) -> bool:
        """Return whether `chunks` has yielded the whole segment."""
        return self._position >= self._end

    def fill(self) -> None:
        """Read the next part, at least one batch. A worker thread may call this. Raises OSError.

        If the file is missing, `chunks` raises FileNotFoundError. The caller checks first whether the segment is still
        part of the log.
        """
        left = self._end - self._position
        try:
            data = self._disk.read_part(self._path, min(READ, left), self._position)
            if is_partial(data, 0) and len(data) < _first_size(data) <= left:
                data = self._disk.read_part(self._path, _first_size(data), self._position)
        except FileNotFoundError:
            self._missing = True  # without the error, whose traceback would keep frames
        else:
            self._data = memoryview(data)

    def chunks(self) -> Iterator[tuple[memoryview, bool]]:
        """Yield the data of `fill` in chunks of whole batches, and whether a chunk takes long to process.

        Raises FileNotFoundError, and CORRUPT_MESSAGE if the segment ends with an incomplete batch.
        """
        if self._missing:
            raise FileNotFoundError(errno.ENOENT, "the segment file is missing", self._path)
        data = self._data
        if is_partial(data, 0):
            size, left = _first_size(data), self._end - self._position
            message = f"{self._path} has a batch of {size} bytes at position {self._position}, but only {left} are left"
            raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, message)
        while not is_partial(data, 0):
            end, compressed = _whole_batches(data[: max(CHUNK, _first_size(data))])
            self._position += end
            yield data[:end], compressed or end > CHUNK
            data = data[end:]


def _first_size(data: memoryview | bytes) -> int:
    """Return the size of the first batch according to its header."""
    return int.from_bytes(data[8:LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD


def _whole_batches(data: memoryview) -> tuple[int, bool]:
    """Return where the last whole batch ends, and whether a batch is compressed."""
    end, compressed = 0, False
    for header, view in iter_batches(data, partial_ok=True):
        end += len(view)
        compressed = compressed or header.codec != 0
    return end, compressed
