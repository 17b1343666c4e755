"""Encode and decode the records of a record batch (format v2). Deltas and lengths are zigzag varints.

Source: Kafka's ``DefaultRecord``, KIP-98 and KIP-82.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oncelog.protocol.compression import Buffer
from oncelog.protocol.errors import ErrorCode, ProtocolError


class Record(NamedTuple):
    """One record. ``timestamp`` is in ms since the epoch, and ``headers`` are (name, value) pairs in their order.

    If a name is not UTF-8, U+FFFD replaces each malformed sequence, as in Kafka's Java client. With
    ``names=LOSSLESS``, such a name can be encoded to its original bytes again.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


REPLACED, LOSSLESS = "replace", "surrogateescape"
"""Error handlers of ``bytes.decode`` for header names that are not UTF-8."""

SMALLEST_RECORD = 7
"""Bytes of the shortest record: its length, attributes, two deltas, no key, no value, no headers."""

RecordHead = tuple[int, int, bool]
"""(offset, timestamp, whether the record has a key)."""


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_RECORD, message)


def _encode_varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x80:
        return bytes((zigzag,))
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_SMALL_VARINTS = tuple(_encode_varint(value) for value in range(256))
_NULL = _encode_varint(-1)
_NO_HEADERS = _encode_varint(0)


def _varint(value: int) -> bytes:
    return _SMALL_VARINTS[value] if 0 <= value < 256 else _encode_varint(value)


def _sized(data: Buffer | None) -> bytes:
    return _NULL if data is None else _varint(len(data)) + data


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [_varint(len(headers))]
    for name, value in headers:
        parts.append(_sized(name.encode(errors=LOSSLESS)))
        parts.append(_sized(value))
    return b"".join(parts)


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> bytes:
    """Return the bytes of one record in a batch, with its length in front."""
    body = b"".join(
        (
            b"\x00",
            _varint(timestamp_delta),
            _varint(offset_delta),
            _sized(key),
            _sized(value),
            _encode_headers(headers) if headers else _NO_HEADERS,
        )
    )
    return _varint(len(body)) + body


def decode_payload(
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None, names: str = REPLACED
) -> list[Record]:
    """Return the ``count`` records in ``data``. If ``append_time`` is not None, it is the timestamp of all records.

    Raises INVALID_RECORD, and ``IndexError`` if the data ends before an expected field.
    """
    check_count(len(data), count)
    records = []
    pos = 0
    for _ in range(count):
        size, pos = _read_varint(data, pos)
        end = pos + size
        if size < 0 or end > len(data):
            raise _invalid(f"record of {size} bytes, but only {len(data) - pos} are left")
        timestamp, pos = _read_varlong(data, pos + 1)  # skip the attributes, which are not used
        offset, pos = _read_varint(data, pos)
        key, pos = _read_sized(data, pos, end)
        value, pos = _read_sized(data, pos, end)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if pos < end and data[pos] == 0:
            pos += 1
        else:
            headers, pos = _read_headers(data, pos, end, names)
        if pos != end:
            raise _invalid(f"the fields of a record end {pos - end} bytes after its end")
        records.append(
            Record(
                base_offset + offset,
                base_timestamp + timestamp if append_time is None else append_time,
                key,
                value,
                headers,
            )
        )
    _check_rest(pos, data, count)
    return records


def decode_heads(
    data: memoryview, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> Iterator[RecordHead]:
    """Yield the head of each record. Skip keys and values without copying them.

    Raises the errors of `decode_payload`. All data has been checked when the iteration ends.
    """
    check_count(len(data), count)
    pos = 0
    for _ in range(count):
        size, pos = _read_varint(data, pos)
        end = pos + size
        if size < 0 or end > len(data):
            raise _invalid(f"record of {size} bytes, but only {len(data) - pos} are left")
        timestamp, pos = _read_varlong(data, pos + 1)
        offset, pos = _read_varint(data, pos)
        key_size, pos = _read_varint(data, pos)
        pos = _skip(pos, key_size, end)
        value_size, pos = _read_varint(data, pos)
        pos = _skip(pos, value_size, end)
        if pos < end and data[pos] == 0:
            pos += 1
        else:
            pos = _skip_headers(data, pos, end)
        if pos != end:
            raise _invalid(f"the fields of a record end {pos - end} bytes after its end")
        yield base_offset + offset, base_timestamp + timestamp if append_time is None else append_time, key_size >= 0
    _check_rest(pos, data, count)


def check_count(size: int, count: int) -> None:
    """Raise INVALID_RECORD if ``size`` bytes cannot hold ``count`` records."""
    if count > size // SMALLEST_RECORD:
        raise _invalid(f"record batch claims {count} records, but has only {size} bytes of records")


def _skip(pos: int, size: int, end: int) -> int:
    """Return the position after a field of ``size`` bytes (negative: null)."""
    if size < 0:
        return pos
    if pos + size > end:
        raise _invalid(f"record field of {size} bytes, but only {end - pos} are left")
    return pos + size


def _skip_headers(data: Buffer, pos: int, end: int) -> int:
    """Return the position after the headers of a record."""
    count, pos = _read_varint(data, pos)
    if count < 0 or count > end - pos:
        raise _invalid(f"record claims {count} headers in {end - pos} bytes")
    for _ in range(count):
        size, pos = _read_varint(data, pos)
        if size < 0:
            raise _invalid("record header without a name")
        pos = _skip(pos, size, end)
        size, pos = _read_varint(data, pos)
        pos = _skip(pos, size, end)
    return pos


def _check_rest(pos: int, data: Buffer, count: int) -> None:
    if pos != len(data):
        raise _invalid(f"record batch has {len(data) - pos} extra bytes after its {count} records")


def _read_varint(data: Buffer, pos: int) -> tuple[int, int]:
    byte = data[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read_long_varint(data, pos, 28)


def _read_varlong(data: Buffer, pos: int) -> tuple[int, int]:
    byte = data[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read_long_varint(data, pos, 63)


def _read_long_varint(data: Buffer, pos: int, max_shift: int) -> tuple[int, int]:
    zigzag = 0
    for shift in range(0, max_shift + 1, 7):
        byte = data[pos]
        pos += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), pos
    raise _invalid(f"variable-length integer of more than {max_shift // 7 + 1} bytes in a record")


def _read_sized(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    size, pos = _read_varint(data, pos)
    if size < 0:
        return None, pos
    stop = pos + size
    if stop > end:
        raise _invalid(f"record field of {size} bytes, but only {end - pos} are left")
    return data[pos:stop], stop


def _read_headers(data: bytes, pos: int, end: int, names: str) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, pos = _read_varint(data, pos)
    if count < 0 or count > end - pos:
        raise _invalid(f"record claims {count} headers in {end - pos} bytes")
    headers = []
    for _ in range(count):
        name, pos = _read_sized(data, pos, end)
        if name is None:
            raise _invalid("record header without a name")
        value, pos = _read_sized(data, pos, end)
        headers.append((name.decode(errors=names), value))
    return tuple(headers), pos
