"""A record batch while it is filled, sent, and sent again.

Records are written in wire format into one growing buffer, after space for the header. `close` compresses them. The
header with producer id, epoch and sequence is written when the batch is drained, and again if its sequence was reset.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from oncelog.protocol.compression import Codec, compress
from oncelog.protocol.records import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAGIC_OFFSET,
    Record,
    decode_records,
    next_sequence,
    parse_header,
    put_header,
    stamp,
)

if TYPE_CHECKING:
    from oncelog.client.producer.delivery import Delivery
    from oncelog.client.types import Headers
    from oncelog.errors import KafkaError
    from oncelog.protocol.topics import TopicPartition

RECORD_OVERHEAD: Final = 21
"""The maximum number of bytes that a record takes besides key, value and headers (KIP-98)."""


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_SMALL: Final = tuple(_varint(value) for value in range(2048))
_TABLE: Final = len(_SMALL)
_NULL: Final = _varint(-1)


def _sized(data: bytes | None) -> bytes:
    if data is None:
        return _NULL
    size = len(data)
    return (_SMALL[size] if size < _TABLE else _varint(size)) + data


def headers_size(headers: Headers) -> int:
    """Return an upper bound of the bytes that headers take in a record."""
    return sum(len(name) * 4 + (0 if value is None else len(value)) + 10 for name, value in headers)


class Batch:
    """Records of one partition, from the first record until the broker's response.

    `base_sequence` is -1 until the batch is drained. `closed`: no record can be added. `in_retry`: it waits to be sent
    again. `done`: its outcome is known. `in_doubt`: a request with it has no final response, so a copy may be in the
    log or in flight, and it must not get other sequences. `size` is its share of the buffer memory. `serial` orders the
    producer's batches, and within a partition their sequences, too. `parts`: the batches into which it was split,
    because it was too large. `failure`: the error of the last attempt, if the batch is sent again. `purged`: its
    records have an outcome, but the batch is sent again until a broker answers.
    """

    __slots__ = (
        "_codec",
        "_level",
        "_payload",
        "_wire",
        "attempts",
        "base_sequence",
        "base_timestamp",
        "closed",
        "count",
        "created_ms",
        "delivery",
        "done",
        "failure",
        "in_doubt",
        "in_retry",
        "max_timestamp",
        "parts",
        "producer_epoch",
        "producer_id",
        "purged",
        "retry_at_ms",
        "sequence_reset",
        "serial",
        "size",
        "stamped",
        "tp",
        "transactional",
    )

    def __init__(
        self, tp: TopicPartition, delivery: Delivery, now_ms: int, codec: Codec = Codec.NONE, level: int | None = None
    ) -> None:
        self.tp = tp
        self.delivery = delivery
        self.created_ms = now_ms
        self._codec = codec
        self._level = level
        self._payload = bytearray(HEADER_SIZE)
        self._wire: bytearray | None = None
        self.count = 0
        self.base_timestamp = self.max_timestamp = -1
        self.producer_id = self.producer_epoch = self.base_sequence = -1
        self.transactional = self.closed = self.stamped = self.in_retry = self.sequence_reset = self.done = False
        self.in_doubt = self.purged = False
        self.parts: list[Batch] = []
        self.attempts = 0
        self.failure: KafkaError | None = None
        self.retry_at_ms = 0
        self.serial = 0
        self.size = HEADER_SIZE

    def __str__(self) -> str:
        """Return the partition and the sequences, for log lines."""
        topic, partition = self.tp
        if self.base_sequence < 0:
            return f"{topic}-{partition}, {self.count} records without sequences"
        sequences = f"sequences {self.base_sequence} to {self.last_sequence}"
        return f"{topic}-{partition}, {sequences} of producer id {self.producer_id}, epoch {self.producer_epoch}"

    @classmethod
    def encoded(cls, tp: TopicPartition, delivery: Delivery, now_ms: int, data: bytes | bytearray) -> Batch:
        """Make a batch of encoded records (`columns`). It lacks only producer id, epoch and sequence."""
        fields = HEADER.unpack_from(data)
        made = cls(tp, delivery, now_ms)
        made._payload = made._wire = data if isinstance(data, bytearray) else bytearray(data)
        made.base_timestamp, made.max_timestamp, made.count = fields[7], fields[8], fields[12]
        made.closed = True
        made.size = len(data)
        return made

    def append(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> int:
        """Add a record. Return its index in the batch."""
        index = self.count
        if index:
            delta = timestamp - self.base_timestamp
        else:
            delta = 0
            self.base_timestamp = self.max_timestamp = timestamp
        key_size = -1 if key is None else len(key)
        value_size = -1 if value is None else len(value)
        body = b"".join(
            (
                b"\0",
                _SMALL[delta] if 0 <= delta < _TABLE else _varint(delta),
                _SMALL[index] if index < _TABLE else _varint(index),
                _NULL if key_size < 0 else _SMALL[key_size] if key_size < _TABLE else _varint(key_size),
                key or b"",
                _NULL if value_size < 0 else _SMALL[value_size] if value_size < _TABLE else _varint(value_size),
                value or b"",
                _encode_headers(headers) if headers else b"\0",
            )
        )
        size = len(body)
        payload = self._payload
        payload += _SMALL[size] if size < _TABLE else _varint(size)
        payload += body
        if timestamp > self.max_timestamp:  # not before: a wrong type leaves the batch as it was
            self.max_timestamp = timestamp
        self.count = index + 1
        self.size = len(payload)
        return index

    def close(self) -> None:
        """Compress the batch. After that, no record can be added. May be called again, also after it has failed."""
        if self._wire is not None:
            return
        self.closed = True
        if self._codec is Codec.NONE:
            self._wire = self._payload
            return
        wire = bytearray(HEADER_SIZE)
        wire += compress(self._codec, memoryview(self._payload)[HEADER_SIZE:], self._level)
        self._payload = self._wire = wire

    def split(self) -> list[Batch]:
        """Return two or more batches with the same records and sequences, each at most half as large if possible.

        Callers that wait for this batch wait for its parts (Kafka's ProducerBatch.split).
        """
        self.wire()
        assert self._wire is not None
        codec = Codec(parse_header(self._wire).codec)
        records = decode_records(memoryview(self._wire))
        shares = _halves(records)
        first = 0
        for records, delivery in zip(shares, self.delivery.split([len(share) for share in shares]), strict=True):
            part = Batch(self.tp, delivery, self.created_ms, codec, self._level)
            for record in records:
                part.append(record.key, record.value, record.timestamp, record.headers)
            part.close()
            if self.base_sequence >= 0:
                sequence = next_sequence(self.base_sequence, first)
                part.set_producer(self.producer_id, self.producer_epoch, sequence, transactional=self.transactional)
            part.failure = self.failure
            part.in_retry, part.in_doubt, part.sequence_reset = True, self.in_doubt, self.sequence_reset
            part.serial, part.purged = self.serial + first, self.purged
            first += len(records)
            self.parts.append(part)
        return self.parts

    def set_producer(self, producer_id: int, epoch: int, sequence: int, *, transactional: bool) -> None:
        """Set producer id, epoch and sequence (all -1 without idempotence)."""
        if self.base_sequence >= 0:
            self.sequence_reset = True
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, sequence
        self.transactional = transactional
        self.stamped = False

    def wire(self) -> bytearray:
        """Return the bytes to send, with header and CRC."""
        self.close()
        data = self._wire
        assert data is not None
        if not self.stamped:
            self._stamp(data)
            self.stamped = True
        return data

    def _stamp(self, data: bytearray) -> None:
        if data[MAGIC_OFFSET] != MAGIC:
            put_header(data, self.count, int(self._codec), self.base_timestamp, self.max_timestamp)
        stamp(data, self.producer_id, self.producer_epoch, self.base_sequence, transactional=self.transactional)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; 0 follows 2^31-1."""
        return (self.base_sequence + self.count - 1) & 0x7FFFFFFF


def all_done(batches: deque[Batch]) -> bool:
    """Return whether the records of all batches have an outcome. Remove the batches at the front that have it."""
    while batches and (batches[0].done or batches[0].purged):
        batches.extendleft(reversed(batches.popleft().parts))
    return not batches


def _halves(records: list[Record]) -> list[list[Record]]:
    """Divide records into two shares of about the same number of bytes, neither empty."""
    sizes = [len(record.key or b"") + len(record.value or b"") + headers_size(record.headers) for record in records]
    half, so_far, at = sum(sizes) / 2, 0, 0
    while at < len(records) - 1 and (at == 0 or so_far + sizes[at] <= half):
        so_far += sizes[at]
        at += 1
    return [records[:at], records[at:]]


def _encode_headers(headers: Headers) -> bytes:
    parts = [_varint(len(headers))]
    for name, value in headers:
        parts.append(_sized(name.encode()))
        parts.append(_sized(value))
    return b"".join(parts)
