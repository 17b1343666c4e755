"""What compaction leaves of a batch. Source: Kafka's ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from oncelog.log.cleaning.offsets import OffsetMap
from oncelog.log.cleaning.transactions import CleanedTransactions
from oncelog.log.disk import Buffer
from oncelog.log.producer_state import ProducerEntry
from oncelog.protocol.compression import compress
from oncelog.protocol.records import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    LOSSLESS,
    NO_TIMESTAMP,
    BatchHeader,
    Record,
    check_crc,
    decode_records,
    encode_record,
    iter_batches,
    pack_batch,
    parse_header,
)

_DELETE_HORIZON = 0x40
NO_DATA = -1


class LastRecord(NamedTuple):
    """Where an active producer last wrote data (-1: only a marker is known of it), and its epoch."""

    offset: int
    epoch: int


class RetainedBatch(NamedTuple):
    """A batch that stays, whole, in part or empty."""

    header: BatchHeader
    data: Buffer


def last_records(producers: Mapping[int, ProducerEntry]) -> dict[int, LastRecord]:
    """Return what has to stay of each producer so that its sequence and epoch outlive the compaction."""
    return {
        producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else NO_DATA, entry.epoch)
        for producer_id, entry in producers.items()
    }


class BatchFilter:
    """Decides record by record. One is made for a round, and reads all of the cleaned part in order."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        producers: dict[int, LastRecord],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._producers = producers
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms

    def filter(self, chunk: memoryview, keep_end: int) -> list[RetainedBatch]:
        """Return what stays of the batches in ``chunk``.

        The batch that ends at ``keep_end`` stays, empty if need be: offsets of a segment end where they did. Raises
        CORRUPT_MESSAGE and INVALID_RECORD for a damaged batch: none is given a new checksum.
        """
        retained = []
        for header, view in iter_batches(chunk):
            check_crc(header, view)
            data = self._filter_batch(header, view, keep_end)
            if data is not None:
                retained.append(RetainedBatch(header if data is view else parse_header(data), data))
        return retained

    def _filter_batch(self, header: BatchHeader, view: memoryview, keep_end: int) -> Buffer | None:
        horizon = header.delete_horizon_ms
        spent_marker = False
        if header.is_control:
            spent_marker = self._transactions.is_spent(header, view)
            outlived = spent_marker and horizon is not None and horizon <= self._now_ms
            # Kafka would empty it: the epoch, for the sake of which it is kept, would be gone at the next recovery.
            discard = outlived and not self._is_last_of_producer(header)
        else:
            discard = self._transactions.is_aborted(header)
        records = [] if discard else decode_records(view, names=LOSSLESS)
        kept = records if header.is_control else [record for record in records if self._stays(record, horizon)]
        if not kept:
            stays = header.next_offset == keep_end or self._is_last_of_producer(header)
            return emptied(header) if stays else None
        mortal = spent_marker or any(record.value is None for record in kept)
        if mortal and horizon is None:
            return _rebuild(header, kept, self._now_ms + self._delete_retention_ms)
        if len(kept) == header.count:
            return view
        return _rebuild(header, kept, horizon)

    def _stays(self, record: Record, horizon: int | None) -> bool:
        if record.offset > self._offsets.latest:
            return True
        if record.key is None or record.offset < self._offsets.get(record.key):
            return False
        return record.value is not None or horizon is None or self._now_ms < horizon

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._producers.get(header.producer_id)
        if last is None:
            return False
        if last.offset != NO_DATA:
            return header.last_offset == last.offset
        return header.is_control and header.producer_epoch == last.epoch


def _rebuild(header: BatchHeader, records: list[Record], horizon: int | None) -> bytearray:
    """Return the batch with these records only; offsets, sequences and codec are those that it had."""
    base_timestamp = records[0].timestamp if horizon is None else horizon
    payload = b"".join(
        encode_record(
            record.offset - header.base_offset,
            record.timestamp - base_timestamp,
            record.key,
            record.value,
            record.headers,
        )
        for record in records
    )
    newest = max(record.timestamp for record in records)
    return pack_batch(
        compress(header.codec, payload),
        len(records),
        last_offset_delta=header.last_offset_delta,
        attributes=header.attributes if horizon is None else header.attributes | _DELETE_HORIZON,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else newest,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
    )


def emptied(header: BatchHeader) -> bytearray:
    """Return the header alone: offsets, producer and sequences of a batch without records."""
    return pack_batch(
        b"",
        0,
        last_offset_delta=header.last_offset_delta,
        attributes=header.attributes & ~(CODEC_MASK | _DELETE_HORIZON),
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
    )
