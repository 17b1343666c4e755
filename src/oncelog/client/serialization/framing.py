"""The framing of a schema registry: a zero byte, the schema's id in four bytes, then the encoded data."""

from __future__ import annotations

FRAME_BYTES = 5


def frame(schema_id: int) -> bytes:
    """Return the bytes before the data."""
    return b"\0" + schema_id.to_bytes(FRAME_BYTES - 1, "big")


def split_frame(data: bytes) -> tuple[int, bytes] | None:
    """Return the schema's id and the encoded data, or None without the framing."""
    if len(data) < FRAME_BYTES or data[0] != 0:
        return None
    return int.from_bytes(data[1:FRAME_BYTES], "big"), data[FRAME_BYTES:]
