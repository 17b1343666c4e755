"""The records of one partition in one Fetch response, without any I/O (Kafka's CompletedFetch).

A batch is decoded when its records are needed. Control batches and batches of aborted transactions are skipped, but
the position moves past them. So a consumer ends at the last stable offset, and not after the last record it returned.
"""

from __future__ import annotations

from collections import deque

from oncelog import errors
from oncelog.client.types import ConsumerRecord
from oncelog.protocol.aborted import AbortedTransactions
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import check_crc, decode_records, iter_batches
from oncelog.protocol.topics import TopicPartition


class CompletedFetch:
    """The records of one partition in one Fetch response; `position` is the offset of the next record to take."""

    def __init__(
        self, tp: TopicPartition, data: PartitionData, position: int, *, committed_only: bool, check_crcs: bool
    ) -> None:
        self.tp = tp
        self.position = position
        self.raw = data.records if data.records is not None else b""
        self.aborted = (
            sorted((item.first_offset, item.producer_id) for item in data.aborted_transactions or ())
            if committed_only
            else None
        )
        self._check_crcs = check_crcs
        self._batches = iter_batches(self.raw, partial_ok=True)
        self._hidden = AbortedTransactions(self.aborted or ())
        self._records: deque[ConsumerRecord] = deque()
        self._after = position
        self._damage: ProtocolError | None = None
        self.end, self.last_epoch = end_of(self.raw, position)
        """The offset after the last batch, and the leader epoch of that batch."""
        self.epoch = -1
        """The leader epoch of the batch that was decoded last."""

    def take(self, count: int) -> list[ConsumerRecord]:
        """Return up to `count` more records. Raise ProtocolError, each time, if the next batch is damaged."""
        found: list[ConsumerRecord] = []
        while len(found) < count:
            if not self._records and not self._decode_next():
                break
            records = self._records
            while records and len(found) < count:
                found.append(records.popleft())
            self.position = records[0].offset if records else self._after
        if not found and self._damage is not None:
            raise self._damage.with_traceback(None)  # otherwise each raise adds frames to the traceback
        return found

    def go_to(self, position: int) -> None:
        """Continue at this offset, whatever `take` has returned: `tables` reads `raw` without `take`."""
        self.position = self._after = position
        self._batches = iter_batches(self.raw, partial_ok=True)
        self._hidden = AbortedTransactions(self.aborted or ())
        self._records.clear()
        self._damage = None

    @property
    def damaged(self) -> bool:
        """Whether `take` has met a damaged batch: the next call raises its error."""
        return self._damage is not None

    def _decode_next(self) -> bool:
        """Decode as `_next_batch`, but keep the error of a damaged batch until all records before it are taken."""
        if self._damage is None:
            try:
                return self._next_batch()
            except ProtocolError as error:
                self._damage = error
        return False

    def _next_batch(self) -> bool:
        """Decode the next batch with visible records; move the position past batches that have none."""
        for header, view in self._batches:
            hidden = self._hidden.hides(header, view)  # also before the position: a marker ends a transaction
            if header.next_offset <= self.position:
                continue
            self._after = header.next_offset
            self.epoch = header.partition_leader_epoch
            if hidden or header.is_control:
                self.position = self._after
                continue
            if self._check_crcs:
                check_crc(header, view)
            topic, partition = self.tp
            kind, epoch = header.timestamp_type, self.epoch
            self._records.extend(
                ConsumerRecord(topic, partition, *record, kind, epoch)
                for record in decode_records(view)
                if record.offset >= self.position
            )
            if self._records:
                return True
            self.position = self._after
        return False


def end_of(raw: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """Return the offset after the last whole batch before any damage, and the leader epoch of that batch.

    Return `position` and -1 if there is no batch. Raise ProtocolError if the first batch is damaged.
    """
    after, epoch = position, -1
    try:
        for header, _ in iter_batches(raw, partial_ok=True):
            after, epoch = max(after, header.next_offset), header.partition_leader_epoch
    except ProtocolError:
        if after == position:
            raise
    return after, epoch


def unreadable_batch(tp: TopicPartition, offset: int | None, error: ProtocolError) -> errors.KafkaError:
    """Return the error for an unreadable batch: CorruptRecordError, or UnsupportedError for its codec."""
    about = f"{tp[0]}-{tp[1]} at offset {offset}: {error}"
    if error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD):
        return errors.CorruptRecordError(about, error.code)
    return errors.error_for(error.code, f"{about}; to skip the batch, seek past it")
