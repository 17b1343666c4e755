"""Producer snapshots (``<offset>.snapshot``), in Kafka's file format.

Version 1, CRC-32C of what follows, then the producers. Of each only the last batch is kept, so after a restart a
retry is recognised by that one, and by those that follow the snapshot in the log. The timestamp, which says when a
producer expires, is the broker's where that is later than the batch's: old data must not expire its producer. Source:
``ProducerSnapshot.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct, error

from crc32c import crc32c

from oncelog.log.producer_state import BatchMetadata, ProducerEntry

_VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")


class CorruptSnapshotError(Exception):
    """The file is no snapshot, or not all of it."""


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the content of a snapshot file."""
    parts = []
    for entry in entries:
        batch = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, 0, -1)
        parts.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                entry.touched_ms,
                entry.coordinator_epoch,
                entry.txn_start,
            )
        )
    body = _COUNT.pack(len(parts)) + b"".join(parts)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> Iterator[ProducerEntry]:
    """Check a snapshot file, and return its producers, each of which is decoded when it is needed.

    Raises CorruptSnapshotError.
    """
    try:
        version, crc = _HEAD.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
    except error as cause:
        raise CorruptSnapshotError("snapshot is cut off") from cause
    if version != _VERSION:
        raise CorruptSnapshotError(f"unknown snapshot version {version}")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshotError("snapshot has a wrong CRC")
    rows = body[_COUNT.size :]
    if len(rows) != count * _ENTRY.size:
        raise CorruptSnapshotError(f"snapshot of {count} producers has {len(rows)} bytes of them")
    return (_entry(*fields) for fields in _ENTRY.iter_unpack(rows))


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
