"""What a record that is sent may be made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import SupportsIndex

from oncelog.client.types import Headers
from oncelog.errors import UsageError

Text = str | bytes | bytearray | memoryview | None
HeaderData = Sequence[tuple[str, Text]] | Mapping[str, Text]


def to_bytes(data: Text) -> bytes | None:
    """A key or value as bytes; text becomes UTF-8. TypeError, or ValueError for text that has none."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"it must be bytes, str or None, not {type(data).__name__}")


def check_topic(topic: object) -> None:
    """UsageError unless it may be a topic's name."""
    if not isinstance(topic, str):
        raise UsageError(f"topic = {topic!r}: it must be str, not {type(topic).__name__}")


def checked(
    topic: str, value: Text, key: Text, partition: int | None, timestamp: int | None, headers: HeaderData
) -> tuple[bytes | None, bytes | None, Headers]:
    """Value, key and headers as a batch takes them. UsageError, which names the argument that none does."""
    check_topic(topic)
    for name, number, unit in (("partition", partition, ""), ("timestamp", timestamp, ", ms since the epoch")):
        if number is not None and not isinstance(number, SupportsIndex):
            raise UsageError(f"{name} = {number!r}: it must be an int{unit}, not {type(number).__name__}")
    return _encoded(value, "value"), _encoded(key, "key"), _headers(headers)


def _encoded(data: Text, name: str) -> bytes | None:
    try:
        return to_bytes(data)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: {error}") from None


def _headers(headers: object) -> Headers:
    if isinstance(headers, Mapping):
        headers = headers.items()
    if not isinstance(headers, Collection) or isinstance(headers, str | bytes | bytearray | memoryview):
        kinds = "a mapping or a sequence of pairs (name, value)"
        raise UsageError(f"headers: they must be {kinds}, not {type(headers).__name__}")
    return [_header(index, header) for index, header in enumerate(headers)]


def _header(index: int, header: object) -> tuple[str, bytes | None]:
    if not isinstance(header, tuple | list) or len(header) != 2:
        raise UsageError(f"headers[{index}] = {header!r}: it must be a pair (name, value)")
    name, value = header
    if not isinstance(name, str):
        raise UsageError(f"headers[{index}]: the name must be str, not {type(name).__name__}")
    _encoded(name, f"headers[{index}]")
    return name, _encoded(value, f"the header {name!r}")
