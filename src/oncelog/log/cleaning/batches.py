"""Decide which records of a batch compaction keeps: by their keys, transactions and producers.

Source: Kafka's ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oncelog.log.cleaning.offsets import OffsetMap
from oncelog.log.disk import Buffer
from oncelog.log.producer_state import ProducerEntry
from oncelog.log.txn_index import AbortedTransaction
from oncelog.protocol.compression import compress
from oncelog.protocol.records import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    LOSSLESS,
    NO_TIMESTAMP,
    BatchHeader,
    Record,
    check_crc,
    decode_control,
    decode_records,
    encode_record,
    iter_batches,
    pack_batch,
    parse_header,
)

_DELETE_HORIZON = 0x40
NO_DATA = -1


class LastRecord(NamedTuple):
    """The last offset of an active producer's data (-1 if the log has only a marker of it), and its epoch."""

    offset: int
    epoch: int


class RetainedBatch(NamedTuple):
    """A batch that compaction keeps: all its records, some of them, or none."""

    header: BatchHeader
    data: Buffer


def last_records(producers: Mapping[int, ProducerEntry]) -> dict[int, LastRecord]:
    """Return which record of each producer must stay, so that recovery finds its sequence and epoch."""
    return {
        producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else NO_DATA, entry.epoch)
        for producer_id, entry in producers.items()
    }


class CleanedTransactions:
    """Follow the transactions of a log while its batches are read in order (Kafka's ``CleanedTransactionMetadata``)."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """``aborted``: the aborted transactions with records in the part of the log that is read."""
        self._coming = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        self.retained: list[AbortedTransaction] = []
        """The aborted transactions with a marker and at least one batch in this part."""

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            aborted = self._coming.pop()
            self._aborted.setdefault(aborted.producer_id, (aborted, False))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Process a data batch. Return whether its transaction is aborted, so that its records are deleted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        found = self._aborted.get(header.producer_id)
        if found is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = found[0], True
        return True

    def is_spent(self, header: BatchHeader, view: memoryview) -> bool:
        """Process a marker. Return whether its transaction has no batch left, so that it may be deleted later."""
        self._advance(header.last_offset)
        if not header.count:  # an emptied marker, which is only kept for its offset
            return True
        commit, _ = decode_control(view)
        if commit:
            spent = header.producer_id not in self._committed
            self._committed.discard(header.producer_id)
            return spent
        found, seen = self._aborted.pop(header.producer_id, (None, False))
        if found is None or not seen:
            return True
        self.retained.append(found)
        return False


class BatchFilter:
    """Filter the records of one round, which reads the cleaned part of the log in order."""

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
        """Return the batches of ``chunk`` that stay.

        The batch that ends at ``keep_end`` always stays, perhaps without records, so that the segment keeps its last
        offset. Raises CORRUPT_MESSAGE and INVALID_RECORD for a damaged batch, which must not get a new checksum.
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
            # Kafka empties the marker. Then the next recovery does not find the producer's epoch.
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
    """Return the batch with these records only, and the same offsets, sequences and codec."""
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
