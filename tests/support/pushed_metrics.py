"""Encode OpenTelemetry's `MetricsData`, as a client pushes it (KIP-714)."""

from __future__ import annotations

import struct

DELTA, CUMULATIVE = 1, 2


def varint(value: int) -> bytes:
    """Return an unsigned integer as protobuf has it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes | int) -> bytes:
    """Return a field with bytes or an unsigned integer."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def attribute(key: str, text: str) -> bytes:
    """Return a `KeyValue`."""
    return field(1, key.encode()) + field(2, field(1, text.encode()))


def point(value: float, attributes: dict[str, str]) -> bytes:
    """Return a `NumberDataPoint`, with a whole or a floating-point number."""
    number, form = (6, "<q") if isinstance(value, int) else (4, "<d")
    out = b"".join(field(7, attribute(key, text)) for key, text in attributes.items())
    return out + varint(number << 3 | 1) + struct.pack(form, value)


def gauge(name: str, value: float, **attributes: str) -> bytes:
    """Return a `Metric` with a gauge."""
    return field(1, name.encode()) + field(5, field(1, point(value, attributes)))


def total(name: str, value: float, temporality: int = DELTA, **attributes: str) -> bytes:
    """Return a `Metric` with a counter."""
    counted = field(1, point(value, attributes)) + field(2, temporality) + field(3, 1)
    return field(1, name.encode()) + field(7, counted)


def metrics_data(*metrics: bytes, resource: dict[str, str] | None = None) -> bytes:
    """Return a `MetricsData` with these metrics of one resource."""
    about = b"".join(field(1, attribute(key, text)) for key, text in (resource or {}).items())
    scope = b"".join(field(2, metric) for metric in metrics)
    return field(1, field(1, about) + field(2, scope))
