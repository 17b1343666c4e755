"""Where a record has the id of its schema: before the data, or in a header. These are Confluent's wire formats."""

from __future__ import annotations

from uuid import UUID

MAGIC = 0
FRAME = 5
"""Bytes before framed data: the magic byte and the schema's id, a big-endian uint32."""
GUID_MAGIC = 1
"""The first byte of a header with a GUID. The GUID's 16 bytes follow (HeaderSchemaIdSerializer)."""


def frame(schema_id: int | None) -> bytes:
    """Return the bytes before data with this schema id, or none. Raises ValueError for a wrong id."""
    if schema_id is None:
        return b""
    if not 0 <= schema_id < 1 << 32:
        raise ValueError(f"schema_id must be an integer of 32 bits, not {schema_id}")
    return bytes([MAGIC]) + schema_id.to_bytes(FRAME - 1, "big")


def split_frame(data: bytes) -> tuple[int, bytes] | None:
    """Return the schema's id and the data after it, or None without the framing."""
    if len(data) < FRAME or data[0] != MAGIC:
        return None
    return int.from_bytes(data[1:FRAME], "big"), data[FRAME:]


def unframed(data: bytes) -> bytes:
    """Return the data after the framing, or all of it without the framing."""
    framed = split_frame(data)
    return data if framed is None else framed[1]


def schema_header(field: str) -> str:
    """Return the name of the header with the schema id of a field, key or value."""
    return f"__{field}_schema_id"


def guid_header(guid: UUID) -> bytes:
    """Return the value of a header with the schema's GUID."""
    return bytes([GUID_MAGIC]) + guid.bytes


def schema_in_header(value: bytes) -> int | UUID:
    """Return the schema id or GUID in a header. Raises ValueError."""
    framed = split_frame(value)
    if framed is not None and not framed[1]:
        return framed[0]
    if len(value) == 17 and value[0] == GUID_MAGIC:
        return UUID(bytes=value[1:])
    raise ValueError(f"the header with its schema id has {len(value)} bytes, {value[:20].hex()}, which are no id")
