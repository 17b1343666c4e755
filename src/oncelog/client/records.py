"""Check and convert what users pass: the parts of a record, partitions, offsets, timestamps and durations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Real
from operator import index
from typing import SupportsIndex

from oncelog.client.types import Headers
from oncelog.errors import UsageError
from oncelog.protocol.topics import TopicPartition

Text = str | bytes | bytearray | memoryview | None
HeaderData = Sequence[tuple[str, Text]] | Mapping[str, Text] | None
PAIRS = 'pairs of topic and number, as in [("topic", 0)]'
LAST_TIMESTAMP = (1 << 62) - 1
TIMESTAMPS = f"a timestamp is in ms since the epoch (1970), must not be negative, and is at most {LAST_TIMESTAMP}"
EPOCH = ", ms since the epoch (1970)"
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE)
_UNIT_SECONDS = (86_400, 3_600, 60, 1)


def to_bytes(data: Text) -> bytes | None:
    """Return a key or value as bytes; text becomes UTF-8. Raises TypeError, or ValueError for invalid text."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"it must be bytes, str or None, not {type(data).__name__}")


def check_topic(topic: object) -> None:
    """Raise UsageError unless `topic` may be a topic's name."""
    if not isinstance(topic, str):
        raise UsageError(f"topic = {topic!r}: it must be str, not {type(topic).__name__}")


def check_integer(value: object, name: str, kind: str = "", bits: int = 64) -> int:
    """Return the argument `name` as an int. Raises UsageError unless it is an int that fits into `bits` bits.

    `kind` follows "an int" in the message.
    """
    if not isinstance(value, SupportsIndex):
        raise UsageError(f"{name} = {value!r}: it must be an int{kind}, not {type(value).__name__}")
    found = value if isinstance(value, int) else index(value)  # keep an `OffsetAndMetadata` as it is
    if not -(1 << bits - 1) <= found < 1 << bits - 1:
        raise UsageError(f"{name} = {found}: it must fit into {bits} bits")
    return found


def check_partition(value: object, name: str) -> TopicPartition:
    """Return the argument `name`. Raises UsageError unless it is a pair of topic and number."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise UsageError(f"{name} = {value!r}: partitions must be {PAIRS}")
    topic, partition = value
    if not isinstance(topic, str):
        raise UsageError(f"{name} = {value!r}: the topic must be str, not {type(topic).__name__}")
    number = check_integer(partition, f"{name} = {value!r}: the partition", bits=32)
    if number < 0:
        raise UsageError(f"{name} = {value!r}: the partition must not be negative")
    return topic, number


def check_partitions(values: object) -> list[TopicPartition]:
    """Return the argument `partitions`. Raises UsageError unless it has pairs of topic and number."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise UsageError(f"partitions = {values!r}: partitions must be {PAIRS}")
    return [check_partition(value, f"partitions[{place}]") for place, value in enumerate(values)]


def check_offsets(values: object, name: str = "offsets") -> dict[TopicPartition, int]:
    """Return the argument `name`, offsets by partition. Raises UsageError."""
    found = _by_partition(values, name)
    for tp, offset in found.items():
        if offset < 0:
            raise UsageError(f"{name}[{tp!r}] = {offset}: an offset must not be negative")
    return found


def check_times(values: object) -> dict[TopicPartition, int]:
    """Return the argument `times`. Raises UsageError."""
    return _by_partition(values, "times", EPOCH)


def _by_partition(values: object, name: str, kind: str = "") -> dict[TopicPartition, int]:
    if not isinstance(values, Mapping):
        raise UsageError(f'{name} = {values!r}: it must be a mapping, as in {{("topic", 0): 5}}')
    partitions = {tp: check_partition(tp, f"a key of {name}") for tp in values}
    return {partitions[tp]: check_integer(value, f"{name}[{tp!r}]", kind) for tp, value in values.items()}


def checked(
    topic: str, value: Text, key: Text, partition: int | None, timestamp: int | None, headers: HeaderData
) -> tuple[bytes | None, bytes | None, Headers]:
    """Return value, key and headers in the types of a batch. Raises UsageError that names the wrong argument."""
    check_topic(topic)
    for name, number, kind in (("partition", partition, ""), ("timestamp", timestamp, EPOCH)):
        if number is not None:
            check_integer(number, name, kind)
    return _encoded(value, "value"), _encoded(key, "key"), check_headers(headers)


def _encoded(data: Text, name: str) -> bytes | None:
    try:
        return to_bytes(data)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: {error}") from None


def check_headers(headers: object) -> Headers:
    """Return the argument `headers` as pairs (name, value). Raises UsageError."""
    if headers is None:
        return []
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


def ms(seconds: float | None) -> float | None:
    """Convert a user's timeout from seconds to ms. Keep None, which means the default. Raises UsageError."""
    given: object = seconds
    if given is not None and not isinstance(given, Real):
        raise UsageError(f"timeout = {given!r}: it must be a number of seconds, not {type(given).__name__}")
    return None if seconds is None else seconds * 1000


def milliseconds(text: str) -> int:
    """Parse an ISO 8601 duration (`PT1H30M`, `P1DT2.5S`) to ms. Raises ValueError, also if it is negative (KIP-1106).

    The forms are those of Java's `Duration.parse`: PnDTnHnMn.nS.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1H or P7DT12H")
    return round(
        sum(float(part) * unit for part, unit in zip(match.groups(), _UNIT_SECONDS, strict=True) if part) * 1000
    )
