"""One segment of a log: a ``.log`` file of batches, its two sparse indexes and its transaction index.

The names of the files are the segment's first offset in twenty digits, as in Kafka. A segment does not
use producers, epochs or the high watermark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from oncelog.log.disk import TOO_MANY_OPEN, Buffer, Disk, File
from oncelog.log.file_access import TornWriteError
from oncelog.log.index import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex, TimestampOffset
from oncelog.log.leftovers import retire
from oncelog.log.timestamps import HEADERS_A_STEP, TimeStep
from oncelog.log.txn_index import TransactionIndex
from oncelog.protocol.records import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    check_crc,
    parse_header,
)

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

_WINDOW = 8192
_SCAN_WINDOW = 1024 * 1024


def file_name(offset: int, suffix: str) -> str:
    """Return the name of a segment's or snapshot's file."""
    return f"{offset:020d}{suffix}"


class BatchPosition(NamedTuple):
    """The header of a batch, and its position in the file."""

    header: BatchHeader
    position: int


class Segment:
    """A segment. Appends go to the last segment of a log, the active one.

    `create` or the first append creates the ``.log`` file. The indexes of an existing segment are read at their first
    use, and rebuilt if they are missing or damaged.
    """

    __slots__ = (
        "_disk",
        "_file",
        "_indexes_loaded",
        "_interval",
        "_offset_index",
        "_since_entry",
        "_stem",
        "_suffix",
        "_time_index",
        "_txn_index",
        "base_offset",
        "created_ms",
        "first_timestamp",
        "loaded",
        "max_timestamp",
        "path",
        "size",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        size: int,
        new: bool,
        index_bytes: int,
        interval: int,
        now_ms: int,
        suffix: str = "",
    ) -> None:
        """``suffix`` is added to the names of files that are not part of the log yet (compaction)."""
        stem = f"{directory}/{base_offset:020d}"
        self._disk = disk
        self._stem = stem
        self._suffix = suffix
        self.base_offset = base_offset
        self.path = stem + LOG_SUFFIX + suffix
        self.size = size
        self.created_ms = now_ms
        self.loaded = not new
        """Whether the file is older than this object. Then `created_ms` is the time when the log was opened."""
        self.first_timestamp: int | None = None
        """The largest timestamp of the first batch, which starts the age of the segment. It is read at first use."""
        self.max_timestamp = TimestampOffset(-1, base_offset)
        self._file: File | None = None
        self._interval = interval
        self._since_entry = 0
        self._offset_index = OffsetIndex(disk, stem + INDEX_SUFFIX + suffix, base_offset, index_bytes)
        self._time_index = TimeIndex(disk, stem + TIME_INDEX_SUFFIX + suffix, base_offset, index_bytes)
        self._txn_index = TransactionIndex(disk, stem + TXN_INDEX_SUFFIX + suffix)
        self._indexes_loaded = new

    # --- files ---

    @property
    def _log(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path)
        return self._file

    def create(self) -> None:
        """Create the ``.log`` file, or truncate an existing one.

        A new file is not truncated: each time a file that was once truncated to zero is closed, ext4 flushes it.
        """
        self._file = self._disk.open(self.path, create=True)
        if self._file.size():
            self._file.truncate(0)

    def _load_indexes(self) -> None:
        sound = self._offset_index.load() and self._time_index.load()
        self._indexes_loaded = True
        if sound and self._offset_index.last_position <= self.size:
            self.max_timestamp = self._time_index.last
        else:
            logger.warning("rebuilding the indexes of %s, because they are missing or damaged", self.path)
            self._rebuild_indexes()
            self.finish()

    def _rebuild_indexes(self) -> None:
        size = self.size
        self._reset_indexes()
        for header, _ in self.headers(0, size):
            self.commit(header, header.last_offset, header.max_timestamp)

    @property
    def txn_index(self) -> TransactionIndex:
        """Return the index of aborted transactions; see `load_txn_index`."""
        return self._txn_index

    def load_txn_index(self) -> bool:
        """Read the transaction index. Return False if it is damaged, so that recovery must rebuild it."""
        return self._txn_index.load(self.base_offset)

    def _indexes(self) -> OffsetIndex:
        if not self._indexes_loaded:
            self._load_indexes()
        return self._offset_index

    def last_timestamp(self) -> TimestampOffset:
        """Return the largest timestamp, and the last offset of the batch that reached it first."""
        self._indexes()
        return self.max_timestamp

    def newest_ms(self) -> int:
        """Return the largest timestamp, or the time when the segment was created if its batches have none."""
        largest = self.last_timestamp().timestamp
        return largest if largest >= 0 else self.created_ms

    def flush_indexes(self) -> None:
        """Write the entries that are in memory to the index files."""
        if self._indexes_loaded:
            self._offset_index.flush()
            self._time_index.flush()
        self._txn_index.flush()

    def finish(self) -> None:
        """Complete the indexes after the last append (roll, clean close)."""
        self._indexes()
        self._time_index.maybe_append(self.max_timestamp)
        self.flush_indexes()

    def sync_paths(self) -> list[str]:
        """Return the files to sync so that the segment survives a crash of the machine."""
        suffixes = [LOG_SUFFIX]
        if self._indexes_loaded:
            suffixes += [INDEX_SUFFIX, TIME_INDEX_SUFFIX]
        if self._txn_index.entries:
            suffixes.append(TXN_INDEX_SUFFIX)
        return [self._stem + suffix + self._suffix for suffix in suffixes]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def delete(self) -> list[str]:
        """Mark all files of the segment as deleted. Return their new paths, which the caller unlinks later."""
        self.close()
        paths = [self._stem + kind + self._suffix for kind in SEGMENT_SUFFIXES]
        return [retire(self._disk, path) for path in paths if self._disk.exists(path)]

    def rename(self, suffix: str) -> None:
        """Rename all files of the segment, which must be complete, so that their names end in ``suffix``."""
        self.close()
        for kind in SEGMENT_SUFFIXES:
            path = self._stem + kind
            if self._disk.exists(path + self._suffix):
                self._disk.rename(path + self._suffix, path + suffix)
        self._suffix = suffix
        self.path = self._stem + LOG_SUFFIX + suffix
        self._offset_index.path = self._stem + INDEX_SUFFIX + suffix
        self._time_index.path = self._stem + TIME_INDEX_SUFFIX + suffix
        self._txn_index.path = self._stem + TXN_INDEX_SUFFIX + suffix

    # --- appending ---

    def can_take(self, last_offset: int) -> bool:
        """Return whether no index is full, and ``last_offset`` fits into 32 bits relative to the base."""
        index = self._indexes()
        return not (index.is_full or self._time_index.is_full or last_offset - self.base_offset > MAX_RELATIVE_OFFSET)

    def index_bytes(self) -> tuple[int, int]:
        """Return the sizes of both indexes."""
        index = self._indexes()
        return index.size_bytes, self._time_index.size_bytes

    def first_batch_timestamp(self) -> int | None:
        """Return the largest timestamp of the first batch, if there is a batch."""
        if self.first_timestamp is None and self.size:
            self.first_timestamp = self._header_at(0).max_timestamp
        return self.first_timestamp

    def waited_ms(self, now_ms: int, timestamp: int) -> int:
        """Return how long the segment has been open, by the timestamps of its batches if they have any."""
        first = self.first_batch_timestamp()
        if first is not None and first >= 0:
            return timestamp - first
        return now_ms - self.created_ms

    def write(self, data: Buffer) -> None:
        """Write batches at the end of the file. They are not part of the segment until `commit`.

        A failure leaves the file unchanged. If the file cannot be restored, raises `TornWriteError`.
        """
        log = self._log
        try:
            log.pwrite(data, self.size)
        except OSError as error:
            if error.errno in TOO_MANY_OPEN:
                raise  # the file could not be opened, so nothing was written
            try:
                log.truncate(self.size)
            except OSError:
                raise TornWriteError(f"{self.path} may end with an incomplete batch: {error}") from error
            raise

    def commit(self, header: BatchHeader, last_offset: int, max_timestamp: int) -> None:
        """Add a batch that `write` has written to the size, the indexes and the largest timestamp."""
        position = self.size
        if max_timestamp > self.max_timestamp.timestamp:
            self.max_timestamp = TimestampOffset(max_timestamp, last_offset)
        if self._since_entry > self._interval:
            self._offset_index.append(last_offset, position)
            self._time_index.maybe_append(self.max_timestamp)
            self._since_entry = 0
        if position == 0:
            self.first_timestamp = max_timestamp
        size = header.batch_length + LOG_OVERHEAD
        self.size = position + size
        self._since_entry += size

    def reset(self) -> None:
        """Start recovery: the segment is empty until `commit` adds its batches."""
        self._reset_indexes()
        self._txn_index.reset()

    def _reset_indexes(self) -> None:
        self._offset_index.reset()
        self._time_index.reset()
        self._indexes_loaded = True
        self.max_timestamp = TimestampOffset(-1, self.base_offset)
        self.first_timestamp = None
        self._since_entry = 0
        self.size = 0

    def cut(self, size: int) -> None:
        """Truncate the file to ``size`` bytes."""
        self._log.truncate(size)
        self.size = size

    def truncate(self, offset: int) -> None:
        """Drop the batches at and after ``offset``."""
        position = self.position_of(offset)
        self.cut(position)
        self._offset_index.truncate(offset)
        self._time_index.truncate(offset)
        self._txn_index.truncate(offset)
        self._since_entry = 0
        self.max_timestamp = self._time_index.last
        for header, _ in self.headers(self._offset_index.last_position):  # the time index covers what is before
            if header.max_timestamp > self.max_timestamp.timestamp:
                self.max_timestamp = TimestampOffset(header.max_timestamp, header.last_offset)
        if position == 0:
            self.first_timestamp = None

    # --- reading ---

    def pread(self, size: int, position: int) -> bytes:
        """Return bytes of the log file."""
        return self._log.pread(size, position)

    def view(self, size: int, position: int) -> bytes | memoryview:
        """Return bytes of the log file that the caller only sends; see `File.view`."""
        return self._log.view(size, position)

    def _header_at(self, position: int) -> BatchHeader:
        return BatchHeader._make(HEADER.unpack(self._log.pread(HEADER_SIZE, position)))

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[BatchPosition]:
        """Yield the batches from ``position`` (the start of one) up to ``end``, by their headers only."""
        end = self.size if end is None else end
        window, start = b"", position
        while position < end:
            at = position - start
            if at + HEADER_SIZE > len(window):
                window, start, at = self._log.pread(_WINDOW, position), position, 0
            if at + HEADER_SIZE > len(window):
                raise OSError(f"{self.path} ends with an incomplete batch at position {position}")
            header = BatchHeader._make(HEADER.unpack_from(window, at))
            if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
                raise OSError(f"{self.path} has a batch with the invalid size {header.size} at position {position}")
            if position + header.batch_length + LOG_OVERHEAD > end:
                raise OSError(f"{self.path} ends with an incomplete batch at position {position}")
            yield BatchPosition(header, position)
            position += header.batch_length + LOG_OVERHEAD

    def position_of(self, offset: int) -> int:
        """Return the position of the batch with ``offset``, or of the next one; the size if there is none."""
        for header, position in self.headers(self._indexes().lookup(offset)):
            if header.last_offset >= offset:
                return position
        return self.size

    def batch_across(self, limit: int, start: int) -> BatchPosition:
        """Return the batch that contains the byte at position ``limit``. ``start`` is the start of an earlier batch.

        ``limit`` must be before the end of the segment.
        """
        position = max(start, self._indexes().position_before(limit))
        for header, at in self.headers(position):
            if at + header.batch_length + LOG_OVERHEAD > limit:
                return BatchPosition(header, at)
        raise OSError(f"{self.path} ends before position {limit}")

    def entry_before(self, position: int) -> int:
        """Return the position of the last batch before ``position`` that the offset index has, 0 if it has none."""
        return self._indexes().position_before(position - 1)

    def next_offset(self) -> int:
        """Return the offset after the last batch."""
        last = self.base_offset
        for header, _ in self.headers(self._indexes().last_position):
            last = header.next_offset
        return last

    def checked_end(self) -> int:
        """Return the offset after the last batch. Read that batch.

        Raises OSError if it is incomplete, and ProtocolError if its checksum does not match.
        """
        end, last = self.base_offset, None
        for last in self.headers(self._indexes().last_position):
            end = last.header.next_offset
        if last is not None:
            check_crc(last.header, memoryview(self.pread(last.header.size, last.position)))
        return end

    def batches(self, size: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield header and bytes of every batch in the first ``size`` bytes of the file, reading it in order.

        Raises ProtocolError at the first bytes that are not a whole batch.
        """
        position = 0
        window = memoryview(b"")
        while position < size:
            header = self._window_header(window)
            if header is None:
                window = memoryview(self._log.pread(min(_SCAN_WINDOW, size - position), position))
                header = self._window_header(window)
                if header is None and len(window) < size - position:
                    need = int.from_bytes(window[8:12], "big", signed=True) + LOG_OVERHEAD
                    window = memoryview(self._log.pread(min(need, size - position), position))
            header = header or parse_header(window)
            yield header, window[: header.size]
            position += header.size
            window = window[header.size :]

    @staticmethod
    def _window_header(window: memoryview) -> BatchHeader | None:
        """Return the header of the batch at the start of ``window``, or None if the batch is incomplete."""
        if len(window) < HEADER_SIZE:
            return None
        length = int.from_bytes(window[8:12], "big", signed=True)
        return None if length + LOG_OVERHEAD > len(window) else parse_header(window)

    def search_timestamp(self, timestamp: int, start_offset: int) -> TimeStep | None:
        """Search, in one step, for the first record at or after ``start_offset`` that is not older than ``timestamp``.

        Return None if no batch of the segment can contain it.
        """
        index = self._indexes()
        position = index.lookup(max(self._time_index.lookup(timestamp).offset, start_offset))
        for count, (header, at) in enumerate(self.headers(position)):
            if header.last_offset < start_offset:
                continue
            if header.max_timestamp >= timestamp:
                return TimeStep(header.next_offset, self.pread(header.size, at), header.partition_leader_epoch)
            if count >= HEADERS_A_STEP:
                return TimeStep(header.next_offset)
        return None

    def batch_of_max_timestamp(self) -> TimeStep | None:
        """Return the first batch with the largest timestamp."""
        index = self._indexes()
        for header, at in self.headers(index.lookup(self.max_timestamp.offset)):
            if header.count and header.max_timestamp == self.max_timestamp.timestamp:
                return TimeStep(header.next_offset, self.pread(header.size, at), header.partition_leader_epoch)
        return None
