"""Which partition of an internal topic a group or a transactional id lives in."""

from __future__ import annotations

_INT_MIN = -(2**31)


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, as a signed 32-bit integer."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partitions: int) -> int:
    """`Utils.abs(hash) % partitions`; the hash's minimum, which has no positive twin, counts as 0."""
    value = java_string_hash(key)
    return 0 if value == _INT_MIN else abs(value) % partitions
