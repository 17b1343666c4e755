"""Map groups and transactional ids to the partitions of their internal topics."""

from __future__ import annotations

_INT_MIN = -(2**31)


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`, a signed 32-bit integer over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partitions: int) -> int:
    """Return `Utils.abs(hash) % partitions`. Kafka's `abs` maps the smallest integer, which has no negation, to 0."""
    value = java_string_hash(key)
    return 0 if value == _INT_MIN else abs(value) % partitions
