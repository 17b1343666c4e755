"""Serializers for text and JSON."""

from __future__ import annotations

import json
from typing import Any

from oncelog.client.serialization.functions import SerializationContext
from oncelog.protocol.schema_ids import unframed


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
        return json.loads(unframed(data))
