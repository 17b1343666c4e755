"""What keys and values may be."""

from __future__ import annotations

Text = str | bytes | bytearray | memoryview | None


def to_bytes(data: Text) -> bytes | None:
    """A key or value as bytes; text becomes UTF-8."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"key and value are bytes, str or None, not {type(data).__name__}")
