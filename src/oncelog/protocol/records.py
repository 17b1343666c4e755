"""Encode, decode, check and patch record batches of format v2, including control batches.

A batch is a header of 61 bytes (big-endian), followed by its records. If they are compressed, they are compressed
together. The CRC-32C covers everything from ``attributes`` on. It does not cover base offset, length, leader epoch and
magic, so a broker assigns offsets without computing the checksum again. Sources: KIP-98, KIP-534, Kafka's
``DefaultRecordBatch`` and ``DefaultRecord``.

The broker's hot path parses a header once (`parse_header`), checks it (`check_batch`) and patches it
(`assign_offsets`). It does not decode records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog.protocol.compression import Buffer, Codec, compress, decompress
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.record_codec import LOSSLESS as LOSSLESS
from oncelog.protocol.record_codec import REPLACED, decode_heads, decode_payload
from oncelog.protocol.record_codec import Record as Record
from oncelog.protocol.record_codec import RecordHead as RecordHead
from oncelog.protocol.record_codec import encode_record as encode_record

HEADER: Final = Struct(">qiibIhiqqqhii")
"""The whole header, in the order of the fields of `BatchHeader`."""

HEADER_SIZE: Final = HEADER.size
LOG_OVERHEAD: Final = 12
"""Bytes of base offset and length, which the length does not include."""

MAGIC: Final = 2
CRC_START: Final = 21
MAGIC_OFFSET: Final = 16
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1
DEFAULT_DECOMPRESSED_LIMIT: Final = 128 * 1024 * 1024
"""The default limit for the decompressed size of one batch, in bytes."""

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

CODEC_MASK = 0x07
"""Bits of a batch's attributes that name its codec."""
ATTRIBUTES_LOW = 22
"""Position of the low byte of a batch's attributes."""
_TIMESTAMP_TYPE = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40

_CRC_OFFSET = 17
_BASE_OFFSET = Struct(">q")
_LENGTH = Struct(">i")
_PREFIX = Struct(">qi")
_LEADER_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_PRODUCER = Struct(">qhi")
_ATTRIBUTES_OFFSET = 21
_MAX_TIMESTAMP_OFFSET = 35
_PRODUCER_OFFSET = 43

_CONTROL_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")
_ABORT = 0
_COMMIT = 1


class BatchHeader(NamedTuple):
    """The header of a batch when it was parsed. Later patches of the bytes do not change it."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used here

    @property
    def size(self) -> int:
        """Bytes of the whole batch, including the 12 bytes that ``batch_length`` excludes."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record (0 follows 2^31-1), or -1 if the batch has none."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return next_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        """Compression codec: a `Codec`, unless the batch is malformed."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """0 for create time, 1 for log append time."""
        return 1 if self.attributes & _TIMESTAMP_TYPE else 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a control record (a transaction marker)."""
        return self.attributes & _CONTROL != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time after which compaction may drop tombstones and markers of this batch (KIP-534), or None."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.CORRUPT_MESSAGE, message)


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_RECORD, message)


def next_sequence(sequence: int, delta: int = 1) -> int:
    """Return the sequence ``delta`` records later. 0 follows 2^31-1."""
    return (sequence + delta) & MAX_SEQUENCE


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Return the header of the batch at ``pos``.

    Raises CORRUPT_MESSAGE if the bytes are not a complete batch, and INVALID_RECORD for the message formats 0 and 1,
    which Kafka 4 does not accept either.
    """
    left = len(buf) - pos
    if left < HEADER_SIZE:
        _check_magic(buf, pos)
        raise _corrupt(f"record batch is truncated: {left} bytes are left, but its header has {HEADER_SIZE}")
    header = BatchHeader._make(HEADER.unpack_from(buf, pos))
    if header.magic != MAGIC:
        _check_magic(buf, pos)
    size = header.batch_length + LOG_OVERHEAD
    if size < HEADER_SIZE:
        raise _corrupt(f"record batch claims {size} bytes, less than its header")
    if size > left:
        raise _corrupt(f"record batch is truncated: it claims {size} bytes, but {left} are left")
    return header


def _check_magic(buf: Buffer, pos: int) -> None:
    if len(buf) - pos <= MAGIC_OFFSET:
        return
    magic = buf[pos + MAGIC_OFFSET]
    if magic in (0, 1):
        raise _invalid(f"message format {magic} is not supported; record batches have magic {MAGIC}")
    if magic != MAGIC:
        raise _corrupt(f"record batch has the unknown magic {magic}")


def iter_batches(buf: Buffer, *, partial_ok: bool = False) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield header and bytes of each batch in ``buf``.

    Raises the errors of `parse_header`. With ``partial_ok``, an incomplete batch at the end of ``buf`` ends the
    iteration instead. Fetch responses may end with one.
    """
    view = memoryview(buf)
    pos = 0
    end = len(view)
    while pos < end:
        if partial_ok and is_partial(view, pos):
            return
        header = parse_header(view, pos)
        size = header.batch_length + LOG_OVERHEAD
        yield header, view[pos : pos + size]
        pos += size


def is_partial(buf: Buffer, pos: int) -> bool:
    """Return whether the batch at ``pos`` continues beyond the end of ``buf``."""
    left = len(buf) - pos
    if left < LOG_OVERHEAD:
        return True
    length: int = _LENGTH.unpack_from(buf, pos + 8)[0]
    return length >= HEADER_SIZE - LOG_OVERHEAD and length + LOG_OVERHEAD > left


def check_crc(header: BatchHeader, view: memoryview) -> None:
    """Raise CORRUPT_MESSAGE if the CRC-32C of ``view`` differs from the stored one. ``view`` is exactly one batch."""
    computed = crc32c(view[CRC_START:])
    if computed != header.crc:
        raise _corrupt(f"record batch is corrupt: stored CRC {header.crc:#010x}, computed {computed:#010x}")


def check_batch(header: BatchHeader, view: memoryview) -> None:
    """Check the checksum and the header of one batch. Its records are not decoded.

    ``view`` is exactly the batch. Raises CORRUPT_MESSAGE for a wrong checksum, UNSUPPORTED_COMPRESSION_TYPE for an
    unknown codec, and INVALID_RECORD if the header contradicts itself (``LogValidator.validateBatch``).
    """
    check_crc(header, view)
    count = header.count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise _invalid(f"record batch has {count} records, but its last offset delta is {header.last_offset_delta}")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"record batch has the unknown compression codec {header.attributes & CODEC_MASK}",
        )
    if header.producer_id >= 0:
        if header.producer_epoch < 0:
            raise _invalid(f"producer id {header.producer_id} has the invalid epoch {header.producer_epoch}")
        if header.base_sequence < 0 and not header.attributes & _CONTROL:
            raise _invalid(f"producer id {header.producer_id} has the invalid sequence {header.base_sequence}")
    elif header.attributes & (_TRANSACTIONAL | _CONTROL):
        raise _invalid("transactional or control batch has no producer id")


def assign_offsets(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch of the batch at ``pos`` in place. The CRC does not cover them."""
    _BASE_OFFSET.pack_into(buf, pos, base_offset)
    _LEADER_EPOCH.pack_into(buf, pos + LOG_OVERHEAD, leader_epoch)


def set_max_timestamp(buf: bytearray | memoryview, pos: int, timestamp_type: int, max_timestamp: int) -> None:
    """Set timestamp type and max timestamp of the batch at ``pos`` in place, and update its CRC."""
    size = _LENGTH.unpack_from(buf, pos + 8)[0] + LOG_OVERHEAD
    (attributes,) = _ATTRIBUTES.unpack_from(buf, pos + _ATTRIBUTES_OFFSET)
    attributes = attributes & ~_TIMESTAMP_TYPE | (_TIMESTAMP_TYPE if timestamp_type else 0)
    _ATTRIBUTES.pack_into(buf, pos + _ATTRIBUTES_OFFSET, attributes)
    _MAX_TIMESTAMP.pack_into(buf, pos + _MAX_TIMESTAMP_OFFSET, max_timestamp)
    with memoryview(buf) as view:
        _CRC.pack_into(buf, pos + _CRC_OFFSET, crc32c(view[pos + CRC_START : pos + size]))


def put_header(batch: bytearray, count: int, codec: int, base_timestamp: int, max_timestamp: int) -> None:
    """Write the header in front of `count` records that begin at `HEADER_SIZE`. `stamp` completes the batch."""
    HEADER.pack_into(
        batch, 0,
        0, len(batch) - LOG_OVERHEAD, -1, MAGIC, 0, codec, count - 1, base_timestamp, max_timestamp,
        NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, count,
    )  # fmt: skip


def stamp(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool) -> None:
    """Write the producer's fields of a batch, then its CRC. A producer without idempotence passes -1 for all three."""
    _PRODUCER.pack_into(batch, _PRODUCER_OFFSET, producer_id, producer_epoch, base_sequence)
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_OFFSET)
    attributes = attributes & ~_TRANSACTIONAL | (_TRANSACTIONAL if transactional else 0)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_OFFSET, attributes)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, _CRC_OFFSET, crc32c(view[CRC_START:]))


def pack_batch(
    payload: Buffer,
    count: int,
    *,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Return a batch of encoded records, which may be compressed, with its header and CRC."""
    size = HEADER_SIZE + len(payload)
    out = bytearray(size)
    out[HEADER_SIZE:] = payload
    HEADER.pack_into(
        out,
        0,
        base_offset,
        size - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    with memoryview(out) as view:
        _CRC.pack_into(out, _CRC_OFFSET, crc32c(view[CRC_START:]))
    return out


def build_batch(
    records: Sequence[Record],
    *,
    codec: Codec | int = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
    timestamp_type: int = CREATE_TIME,
    delete_horizon_ms: int | None = None,
    keep_offsets: bool = False,
) -> bytearray:
    """Return ``records`` (at least one) as one batch.

    The records get consecutive offsets from ``base_offset`` on. With ``keep_offsets`` (for compaction), they keep their
    own offsets, which must increase and not be less than ``base_offset``. With ``timestamp_type`` 1, the largest
    timestamp applies to all records. Raises ValueError if there are no records.
    """
    if not records:
        raise ValueError("a record batch must have at least one record")
    first = records[0].timestamp
    base_timestamp = first if delete_horizon_ms is None else delete_horizon_ms
    parts = []
    max_timestamp = NO_TIMESTAMP
    for index, record in enumerate(records):
        offset_delta = record.offset - base_offset if keep_offsets else index
        parts.append(
            encode_record(offset_delta, record.timestamp - base_timestamp, record.key, record.value, record.headers)
        )
        max_timestamp = max(max_timestamp, record.timestamp)
    attributes = (
        int(codec)
        | (_TIMESTAMP_TYPE if timestamp_type else 0)
        | (_TRANSACTIONAL if transactional else 0)
        | (_DELETE_HORIZON if delete_horizon_ms is not None else 0)
    )
    return pack_batch(
        compress(codec, b"".join(parts), level),
        len(records),
        last_offset_delta=records[-1].offset - base_offset if keep_offsets else None,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def build_control_batch(
    commit: bool,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Return a transaction marker (COMMIT or ABORT) as a control batch (``EndTransactionMarker`` v0)."""
    key = _CONTROL_KEY.pack(0, _COMMIT if commit else _ABORT)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    return pack_batch(
        encode_record(0, 0, key, value),
        1,
        attributes=_TRANSACTIONAL | _CONTROL,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


MARKER_SIZE = len(build_control_batch(True, producer_id=0, producer_epoch=0, coordinator_epoch=0, timestamp=0))
"""Size of each transaction marker, in bytes."""


def decode_control(view: Buffer) -> tuple[bool, int]:
    """Return (commit, coordinator epoch) of a control batch that holds a transaction marker.

    Raises INVALID_RECORD for any other control record, and if compaction has removed the record.
    """
    records = decode_records(view)
    if not records:
        raise _invalid("control batch has no record")
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _CONTROL_KEY.size or value is None or len(value) < _MARKER_VALUE.size:
        raise _invalid("control record is not a transaction marker")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0 or kind not in (_ABORT, _COMMIT):
        raise _invalid(f"control record of type {kind} is not a transaction marker")
    return kind == _COMMIT, _MARKER_VALUE.unpack_from(value)[1]


def decode_records(view: Buffer, *, limit: int = DEFAULT_DECOMPRESSED_LIMIT, names: str = REPLACED) -> list[Record]:
    """Return the records of the batch at the start of ``view``; keys and values are copies.

    To encode the records again, pass ``names=LOSSLESS`` (see ``Record``). Raises INVALID_RECORD or CORRUPT_MESSAGE
    for malformed records, and for compressed ones that would grow beyond ``limit`` bytes.
    """
    header, payload = _payload(view, limit)
    try:
        return decode_payload(bytes(payload), header.count, *_bases(header), names) if header.count else []
    except IndexError as error:
        raise _invalid("record is truncated at the end of its batch") from error


def iter_heads(view: Buffer, *, limit: int = DEFAULT_DECOMPRESSED_LIMIT) -> Iterator[RecordHead]:
    """Yield (offset, timestamp, whether there is a key) of each record. Decode only as far as the caller iterates.

    Raises the errors of `decode_records` when the iteration reaches the damage.
    """
    header, payload = _payload(view, limit)
    try:
        if header.count:
            yield from decode_heads(memoryview(payload), header.count, *_bases(header))
    except IndexError as error:
        raise _invalid("record is truncated at the end of its batch") from error


def recompress(view: Buffer, codec: Codec | int, *, level: int | None, limit: int) -> bytearray:
    """Return a produced batch with another codec. The bytes of its records do not change.

    Raises INVALID_RECORD if the records are not numbered from 0 on, and the errors of `decode_records`.
    """
    header, payload = _payload(view, limit)
    largest = NO_TIMESTAMP
    try:
        heads = decode_heads(memoryview(payload), header.count, 0, header.base_timestamp, None)
        for index, (offset, timestamp, _) in enumerate(heads):
            if offset != index:
                raise _invalid(f"record {index} of a batch has offset delta {offset}")
            largest = max(largest, timestamp)
    except IndexError as error:
        raise _invalid("record is truncated at the end of its batch") from error
    return pack_batch(
        compress(codec, payload, level),
        header.count,
        attributes=int(codec) | header.attributes & _TRANSACTIONAL,
        base_timestamp=header.base_timestamp,
        max_timestamp=largest,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def _payload(view: Buffer, limit: int) -> tuple[BatchHeader, Buffer]:
    """Return the header and decompressed records of a batch. They are empty if compaction removed all records."""
    header = parse_header(view)
    if header.count < 0:
        raise _invalid(f"record batch has the invalid record count {header.count}")
    payload: Buffer = memoryview(view)[HEADER_SIZE : header.size]
    if header.count and header.attributes & CODEC_MASK:
        payload = decompress(header.attributes & CODEC_MASK, payload, limit)
    return header, payload


def _bases(header: BatchHeader) -> tuple[int, int, int | None]:
    append_time = header.max_timestamp if header.attributes & _TIMESTAMP_TYPE else None
    return header.base_offset, header.base_timestamp, append_time
