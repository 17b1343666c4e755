"""Serializers for text and JSON, and the framing of a schema registry."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from oncelog.client.serialization.functions import SerializationContext

FRAME_BYTES = 5
"""A zero byte, and the schema's id in four bytes. The encoded data follows."""


def frame(schema_id: int) -> bytes:
    """Return the bytes before the data."""
    return b"\0" + schema_id.to_bytes(FRAME_BYTES - 1, "big")


def split_frame(data: bytes) -> tuple[int, bytes] | None:
    """Return the schema's id and the encoded data, or None without the framing."""
    if len(data) < FRAME_BYTES or data[0] != 0:
        return None
    return int.from_bytes(data[1:FRAME_BYTES], "big"), data[FRAME_BYTES:]


GUID_BYTES = 16
GUID_MAGIC = 1
"""The first byte of a header with a schema's GUID."""


def schema_header(context: SerializationContext) -> str:
    """Return the name of the header that may have the schema's id (Confluent's HeaderSchemaIdSerializer)."""
    return f"__{context.field}_schema_id"


def guid_header(guid: UUID) -> bytes:
    """Return the value of the header with a GUID."""
    return bytes([GUID_MAGIC]) + guid.bytes


def schema_and_data(data: bytes, context: SerializationContext) -> tuple[int | UUID, bytes] | None:
    """Return the schema's id and the encoded data: the id is in a header, or before the data. None: there is no id.

    Raises ValueError if the header has no id.
    """
    name = schema_header(context)
    found = next((value for header, value in context.headers if header == name), None)
    if found is None:
        return split_frame(data)
    framed = split_frame(found)
    if framed is not None and not framed[1]:
        return framed[0], data
    if len(found) == GUID_BYTES + 1 and found[0] == GUID_MAGIC:
        return UUID(bytes=found[1:]), data
    raise ValueError(f"the header {name} has {len(found)} bytes, {found[:20].hex()}, which are no schema id")


class StringSerializer:
    """Serialize a str. `encoding` is a name of Python's codecs."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding
        "".encode(encoding)  # an unknown encoding is an error here, not at the first record

    def __call__(self, data: str, context: SerializationContext) -> bytes:
        """Return the text as bytes."""
        return data.encode(self._encoding)


class StringDeserializer:
    """Deserialize a str. `encoding` is a name of Python's codecs."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding
        b"".decode(encoding)

    def __call__(self, data: bytes, context: SerializationContext) -> str:
        """Return the bytes as text. Raises UnicodeDecodeError."""
        return data.decode(self._encoding)


class JsonSerializer:
    """Serialize objects that Python's json module accepts. NaN and infinity are errors, because JSON lacks them."""

    def __call__(self, data: Any, context: SerializationContext) -> bytes:
        """Return compact JSON in UTF-8. Raises TypeError and ValueError."""
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class JsonDeserializer:
    """Deserialize JSON. Skip the framing of a schema registry, if present."""

    def __call__(self, data: bytes, context: SerializationContext) -> Any:
        """Return dicts, lists, str, numbers, bool and None. Raises ValueError."""
        framed = split_frame(data)
        return json.loads(data if framed is None else framed[1])
