"""Encode the records of coordinators as batches, and replay batches into coordinators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from oncelog.broker.turns import Yielder
from oncelog.coordinator.effects import CoordinatorRecord, Effects
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    decode_control,
    decode_records,
)
from oncelog.protocol.schema import encode_versioned

RECORD_OVERHEAD = 21
"""The maximum size of a record besides key and value: length, attributes, deltas, lengths, number of headers."""

DecodeRecord = Callable[[bytes, bytes | None], CoordinatorRecord | None]


class EndMarker(NamedTuple):
    """What a marker at the end of a transaction says, as in WriteTxnMarkers."""

    commit: bool
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    transaction_version: int


class Shard(Protocol):
    """One coordinator: a state machine over the records of one partition."""

    def replay(self, record: CoordinatorRecord, /, *, producer_id: int | None = None, producer_epoch: int = -1) -> None:
        """Apply one record of the log. If it has a producer id, it is part of that producer's transaction."""

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, commit: bool, /) -> None:
        """Apply a transaction marker of the log."""

    def loaded(self, now: Any, /) -> Effects:
        """Return the effects that are due after the partition was replayed. `now` comes from the shell's `now`."""

    def deadline(self) -> int | None:
        """Return when `tick` is due, in ms on the shell's clock. Return None if no deadline is pending."""

    def tick(self, now: Any, /) -> Effects:
        """Return the effects of deadlines that have passed."""


def encode(
    records: Iterable[CoordinatorRecord],
    producer: tuple[int, int] | None,
    max_bytes: int,
    now_ms: int,
    *,
    whole: bool = False,
) -> bytearray:
    """Return the records as batches of at most `max_bytes` each. They belong to the producer's transaction, if any.

    Raises RECORD_LIST_TOO_LARGE if they must be one batch (`whole`), and do not fit.
    """
    rows = [
        Record(
            0,
            now_ms,
            encode_versioned(record.key, record.key_version),
            None if record.value is None else encode_versioned(record.value, record.value_version),
        )
        for record in records
    ]
    producer_id, producer_epoch = producer or (-1, -1)
    batches = bytearray()
    for part in split(rows, max_bytes):
        if whole and batches:
            message = f"{len(rows)} records that belong together exceed a batch of {max_bytes} bytes"
            raise ProtocolError(ErrorCode.RECORD_LIST_TOO_LARGE, message)
        batches += build_batch(
            part, producer_id=producer_id, producer_epoch=producer_epoch, transactional=producer is not None
        )
    return batches


def split(records: list[Record], max_bytes: int) -> Iterator[list[Record]]:
    """Yield the records in parts that each fit into a batch of `max_bytes`. A larger record is a part of its own.

    All parts are appended in one write. If a crash keeps only the first parts, no client has been answered yet.
    """
    part: list[Record] = []
    size = HEADER_SIZE
    for record in records:
        length = RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
        if part and size + length > max_bytes:
            yield part
            part, size = [], HEADER_SIZE
        part.append(record)
        size += length
    yield part


def replay(shard: Shard, record: CoordinatorRecord, producer: tuple[int, int] | None) -> None:
    """Replay one record. `producer` is the producer of its transaction, if any."""
    if producer is None:
        shard.replay(record)
    else:
        shard.replay(record, producer_id=producer[0], producer_epoch=producer[1])


async def replay_batch(shard: Shard, decode_record: DecodeRecord, header: BatchHeader, view: memoryview) -> None:
    """Replay one batch into a shard that does not serve requests yet. The loop serves other requests in between."""
    if header.is_control:
        if header.count:  # an emptied marker needs no replay: compaction has removed its transaction too
            commit, _ = decode_control(view)
            shard.replay_end_transaction(header.producer_id, header.producer_epoch, commit)
        return
    producer = (header.producer_id, header.producer_epoch) if header.is_transactional else None
    yielder = Yielder()
    for record in decode_records(view):
        await yielder.next()
        if record.key is None:
            continue
        decoded = decode_record(record.key, record.value)
        if decoded is not None:
            replay(shard, decoded, producer)
