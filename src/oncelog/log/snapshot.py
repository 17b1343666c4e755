"""Producer snapshots (``<offset>.snapshot``), in Kafka's file format.

A file has version 1, the CRC-32C of the rest, and rows. Apache Kafka writes one row for each producer, with its last
batch. After a restart, its broker takes a retry of an earlier batch for a gap, and the producer writes that batch again
with a new epoch. So oncelog writes a row for each of the last five batches. Kafka uses the last row of a producer id.

A producer expires by the timestamp of its last row. If the broker's time is later than that of the batch, the row has
the broker's time, so that old data does not expire its producer. Source: ``ProducerSnapshot.json``,
``ProducerStateManager``.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from struct import Struct, error

from crc32c import crc32c

from oncelog.log.disk import Disk, read_if_exists
from oncelog.log.leftovers import retire
from oncelog.log.producer_state import BATCHES_REMEMBERED, NO_TRANSACTION, BatchMetadata, ProducerEntry, ProducerState
from oncelog.log.segment import SNAPSHOT_SUFFIX, file_name
from oncelog.log.steps import FILE_REMOVED, Pace, Steps

logger = logging.getLogger(__name__)

PRODUCERS_AT_ONCE = 5_000
"""The producers of a snapshot that is encoded in one step, within about 20 ms."""
PRODUCERS_A_STEP = 500
"""The producers that one step of a larger snapshot encodes, within a few ms."""
_VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")


class CorruptSnapshotError(Exception):
    """The file is not a snapshot, or incomplete."""


class _Encoding:
    """A snapshot that is encoded in steps. The caller must not change the entries meanwhile."""

    def __init__(self, entries: Iterable[ProducerEntry]) -> None:
        self._entries = list(entries)
        self._encoded = 0
        self._count = 0
        self._parts: list[bytes] = []
        """The rows of each step, joined, because the last step would take long to join and free all rows."""

    def __len__(self) -> int:
        return len(self._entries)

    def step(self, producers: int) -> bool:
        """Encode some more producers. Return whether all are encoded."""
        entries = self._entries[self._encoded : self._encoded + producers]
        self._encoded += len(entries)
        rows: list[bytes] = []
        for entry in entries:
            *earlier, last = entry.batches or (BatchMetadata(-1, -1, 0, -1),)
            # Kafka expires each row on its own. An earlier batch with a future timestamp must not outlive the last row.
            until = entry.touched_ms
            rows += [_row(entry, batch, min(batch.timestamp, until), NO_TRANSACTION) for batch in earlier]
            rows.append(_row(entry, last, until, entry.txn_start))
        self._count += len(rows)
        self._parts.append(b"".join(rows))
        return self._encoded == len(self._entries)

    def content(self) -> bytes:
        """Return the content of the file, after the last step."""
        body = (_COUNT.pack(self._count), *self._parts)
        crc = 0
        for part in body:
            crc = crc32c(part, crc)
        return b"".join((_HEAD.pack(_VERSION, crc), *body))


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the content of a snapshot file."""
    encoding = _Encoding(entries)
    encoding.step(len(encoding))
    return encoding.content()


def _row(entry: ProducerEntry, batch: BatchMetadata, timestamp: int, txn_start: int) -> bytes:
    return _ENTRY.pack(
        entry.producer_id,
        entry.epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.offset_delta,
        timestamp,
        entry.coordinator_epoch,
        txn_start,
    )


def decode_snapshot(data: bytes) -> Iterator[ProducerEntry]:
    """Check a snapshot file, and return a producer for each row, which is decoded when it is needed.

    Raises CorruptSnapshotError.
    """
    try:
        version, crc = _HEAD.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
    except error as cause:
        raise CorruptSnapshotError("the snapshot is truncated") from cause
    if version != _VERSION:
        raise CorruptSnapshotError(f"the snapshot has version {version}, but only {_VERSION} is supported")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshotError("the snapshot's CRC is wrong")
    rows = body[_COUNT.size :]
    if len(rows) != count * _ENTRY.size:
        raise CorruptSnapshotError(f"the snapshot claims {count} producers, but has {len(rows)} bytes of entries")
    return (_entry(*fields) for fields in _ENTRY.iter_unpack(rows))


def join_rows(rows: Iterator[ProducerEntry]) -> Iterator[ProducerEntry]:
    """Return each producer with the batches of all its rows."""
    last = next(rows, None)
    for row in rows:
        if last is not None and row.producer_id == last.producer_id and row.epoch == last.epoch:
            row.batches = deque((*last.batches, *row.batches), BATCHES_REMEMBERED)
        elif last is not None:
            yield last
        last = row
    if last is not None:
        yield last


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_start: int,
) -> ProducerEntry:
    batches = (BatchMetadata(last_sequence, last_offset, offset_delta, timestamp),) if last_offset >= 0 else ()
    return ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, max(txn_start, -1), batches)


class Snapshots:
    """The producer snapshots of a partition directory, by their offsets."""

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = sorted(offsets)
        self.unfinished: tuple[int, _Encoding] | None = None
        """The offset and the content of the snapshot that `begin` has begun."""
        self.unsynced: list[str] = []
        """The files that `advance` has written, perhaps after a sync of their offsets. See `LogFiles.unsynced`."""

    def __contains__(self, offset: int) -> bool:
        slot = bisect_left(self.offsets, offset)
        return slot < len(self.offsets) and self.offsets[slot] == offset

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def take(self, state: ProducerState) -> None:
        """Write a snapshot at the state's end offset, unless there is one."""
        if state.end_offset not in self:
            self._write(state.end_offset, encode_snapshot(state.entries.values()))

    def taking(self, state: ProducerState, pace: Pace) -> Steps[None]:
        """Do the work of `take`, with pauses in which the state must not change."""
        if state.end_offset not in self:
            encoding = _Encoding(state.entries.values())
            while not encoding.step(PRODUCERS_A_STEP):
                if pace.is_due(PRODUCERS_A_STEP):
                    yield
            self._write(state.end_offset, encoding.content())

    def begin(self, state: ProducerState) -> None:
        """Begin a snapshot at the state's end offset, unless there is one. `advance` continues it.

        If there are few producers, write it now. Otherwise, other clients would wait: for 0.3 s with 100,000 producers.
        Until segments are deleted, recovery finds all producers in the former snapshot and the batches after it, also
        in those before the log start. So a former one that is unfinished is dropped.
        """
        self.unfinished = None
        if len(state.entries) <= PRODUCERS_AT_ONCE:
            self.take(state)
        elif state.end_offset not in self:
            self.unfinished = state.end_offset, _Encoding(state.freeze())

    def advance(self) -> bool:
        """Encode a part of the unfinished snapshot, and write the file after the last part.

        Return whether no snapshot is unfinished any more.
        """
        if self.unfinished is not None:
            offset, encoding = self.unfinished
            if not encoding.step(PRODUCERS_A_STEP):
                return False
            self.unfinished = None
            self._write(offset, encoding.content())
            self.unsynced.append(self._path(offset))
        return True

    def complete(self) -> None:
        """Complete the unfinished snapshot now, because it may be the only record of some producers soon."""
        while not self.advance():
            pass

    def _write(self, offset: int, content: bytes) -> None:
        self._disk.atomic_write(self._path(offset), content)
        insort(self.offsets, offset)

    def loading(self, state: ProducerState, first: int, end: int, newest: int, now_ms: int, pace: Pace) -> Steps[None]:
        """Load the newest undamaged snapshot up to ``newest`` into ``state``, with pauses.

        Without a snapshot, the state begins at ``first``, the first offset in the files. Remove snapshots after
        ``end``, which contain batches that are no longer in the log. Also remove those before ``first``, and damaged
        ones.
        """
        for offset in [offset for offset in self.offsets if offset > end or offset < first]:
            self.remove(offset)
            if pace.is_due(FILE_REMOVED):
                yield
        for offset in [offset for offset in reversed(self.offsets) if offset <= newest]:
            try:
                found = decode_snapshot(read_if_exists(self._disk, self._path(offset)) or b"")
            except CorruptSnapshotError as error:
                logger.warning("removing producer snapshot %s: %s", self._path(offset), error)
                self.remove(offset)
            else:
                entries = []
                for entry in join_rows(found):
                    entries.append(entry)
                    if pace.is_due(1):
                        yield
                state.load(entries, offset, now_ms)
                return
        state.clear(first)

    def paths_from(self, offset: int) -> list[str]:
        """Return the files of the snapshots taken at or after ``offset``."""
        return [self._path(taken) for taken in self.offsets if taken >= offset]

    def remove(self, offset: int) -> None:
        """Remove one snapshot."""
        self._forget(offset)
        self._disk.remove(self._path(offset))

    def _forget(self, offset: int) -> None:
        del self.offsets[bisect_left(self.offsets, offset)]
        if self._path(offset) in self.unsynced:
            self.unsynced.remove(self._path(offset))

    def retire(self, offset: int) -> list[str]:
        """Mark the snapshot at ``offset``, if there is one, as deleted. Return its new path, to be unlinked later."""
        if self.unfinished is not None and self.unfinished[0] == offset:
            self.unfinished = None
        if offset not in self:
            return []
        self._forget(offset)
        return [retire(self._disk, self._path(offset))]

    def removing_strays(self, bases: list[int], pace: Pace) -> Steps[None]:
        """Keep the snapshots at the start of a segment, and the newest one if it is after all of them. Pause."""
        kept = {*bases, *(self.offsets[-1:] if self.offsets and self.offsets[-1] > bases[-1] else [])}
        for offset in [offset for offset in self.offsets if offset not in kept]:
            self.remove(offset)
            if pace.is_due(FILE_REMOVED):
                yield
