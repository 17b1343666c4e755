"""Read and write values of the protocol's types: varints, strings, bytes, uuids, counts of arrays, tagged fields."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from uuid import UUID

from oncelog.protocol.fields import MAX_STRING, NO_UUID, DecodeError, UnsupportedVersionError

Reader = Callable[[memoryview, int], tuple[Any, int]]
"""Returns the value at a position, and the position after it."""
Writer = Callable[[Any, list[Any]], None]
"""Appends a value's bytes to a list."""

FIXED = {
    "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?", "uuid": "16s",
}  # fmt: skip
"""Types of a fixed size, and their letters in a `struct` layout."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def read_varint(buf: memoryview, pos: int) -> tuple[int, int]:
    """Return an unsigned varint of at most 32 bits, and the position after it."""
    byte = buf[pos]
    if byte < 0x80:
        return byte, pos + 1
    value, shift = byte & 0x7F, 7
    while True:
        pos += 1
        byte = buf[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise DecodeError("varint of more than 5 bytes")
    return value & 0xFFFFFFFF, pos + 1


def varint(value: int) -> bytes:
    """Return the bytes that `read_varint` reads as `value`."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(1024)
def to_uuid(raw: bytes) -> UUID:
    """Return a UUID. It is cached, because requests repeat a few topic ids, and creating a UUID is expensive."""
    return UUID(bytes=raw) if any(raw) else NO_UUID


def _take(buf: memoryview, pos: int, size: int) -> tuple[memoryview | None, int]:
    if size == -1:
        return None, pos
    end = pos + size
    if size < 0 or end > len(buf):
        raise DecodeError(f"field of {size} bytes, but only {len(buf) - pos} are left")
    return buf[pos:end], end


def _sized16(buf: memoryview, pos: int) -> tuple[memoryview | None, int]:
    return _take(buf, pos + 2, _INT16.unpack_from(buf, pos)[0])


def _sized32(buf: memoryview, pos: int) -> tuple[memoryview | None, int]:
    return _take(buf, pos + 4, _INT32.unpack_from(buf, pos)[0])


def _compact(buf: memoryview, pos: int) -> tuple[memoryview | None, int]:
    size, pos = read_varint(buf, pos)
    return _take(buf, pos, size - 1)


def _string(sized: Reader) -> Reader:
    def read(buf: memoryview, pos: int) -> tuple[str | None, int]:
        raw, pos = sized(buf, pos)
        if raw is None:
            return None, pos
        if len(raw) > MAX_STRING:
            raise DecodeError(f"string of {len(raw)} bytes; at most {MAX_STRING} are allowed")
        try:
            return str(raw, "utf-8"), pos
        except UnicodeDecodeError as error:
            raise DecodeError("string is not UTF-8") from error

    return read


def _bytes(sized: Reader) -> Reader:
    def read(buf: memoryview, pos: int) -> tuple[bytes | None, int]:
        raw, pos = sized(buf, pos)
        return None if raw is None else bytes(raw), pos

    return read


def _read_uuid(buf: memoryview, pos: int) -> tuple[UUID, int]:
    raw, end = _take(buf, pos, 16)
    assert raw is not None
    return to_uuid(bytes(raw)), end


def read_count(buf: memoryview, pos: int) -> tuple[int, int]:
    """Return the number of elements of an array, -1 for null."""
    count = _INT32.unpack_from(buf, pos)[0]
    if count < -1:
        raise DecodeError(f"array of {count} elements")
    return count, pos + 4


def read_compact_count(buf: memoryview, pos: int) -> tuple[int, int]:
    """Return the number of elements of an array in a flexible version, -1 for null."""
    count, pos = read_varint(buf, pos)
    return count - 1, pos


READERS: dict[tuple[str, bool], Reader] = {
    ("string", False): _string(_sized16),
    ("string", True): _string(_compact),
    ("bytes", False): _bytes(_sized32),
    ("bytes", True): _bytes(_compact),
    ("records", False): _sized32,
    ("records", True): _compact,
    ("uuid", False): _read_uuid,
    ("uuid", True): _read_uuid,
}


def utf8(text: str) -> bytes:
    """Encode a string. Raises UnsupportedVersionError if it is longer than MAX_STRING bytes."""
    raw = text.encode()
    if len(raw) > MAX_STRING:
        raise UnsupportedVersionError(f"string of {len(raw)} bytes; at most {MAX_STRING} are allowed")
    return raw


def _write_string(value: str | None, out: list[Any]) -> None:
    if value is None:
        out.append(b"\xff\xff")
    else:
        raw = utf8(value)
        out.append(_INT16.pack(len(raw)) + raw)


def _write_compact_string(value: str | None, out: list[Any]) -> None:
    if value is None:
        out.append(b"\x00")
    else:
        raw = utf8(value)
        out.append(varint(len(raw) + 1) + raw)


def _write_bytes(value: Any, out: list[Any]) -> None:
    if value is None:
        out.append(b"\xff\xff\xff\xff")
    else:
        out.append(_INT32.pack(len(value)))
        out.append(value)


def _write_compact_bytes(value: Any, out: list[Any]) -> None:
    if value is None:
        out.append(b"\x00")
    else:
        out.append(varint(len(value) + 1))
        out.append(value)


def _write_uuid(value: UUID, out: list[Any]) -> None:
    out.append(value.bytes)


def write_count(count: int, out: list[Any]) -> None:
    """Write the number of elements of an array, -1 for null."""
    out.append(_INT32.pack(count))


def write_compact_count(count: int, out: list[Any]) -> None:
    """Write the number of elements of an array in a flexible version, -1 for null."""
    out.append(varint(count + 1))


def write_tags(tags: list[tuple[int, list[Any]]], out: list[Any]) -> None:
    """Write tagged fields. Each entry has a tag and the chunks of its value."""
    out.append(varint(len(tags)))
    for tag, chunks in tags:
        out.append(varint(tag))
        out.append(varint(sum(map(len, chunks))))
        out.extend(chunks)


WRITERS: dict[tuple[str, bool], Writer] = {
    ("string", False): _write_string,
    ("string", True): _write_compact_string,
    ("bytes", False): _write_bytes,
    ("bytes", True): _write_compact_bytes,
    ("records", False): _write_bytes,
    ("records", True): _write_compact_bytes,
    ("uuid", False): _write_uuid,
    ("uuid", True): _write_uuid,
}
