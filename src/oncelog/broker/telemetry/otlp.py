"""Read the numbers in OpenTelemetry's `MetricsData`, the protobuf message that clients push.

Source of the field numbers: opentelemetry-proto, `metrics/v1/metrics.proto` and `common/v1/common.proto`. Only gauges
and sums are read, as Kafka's clients push no others. The bytes come from strangers, so the work is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from oncelog.protocol.errors import ErrorCode, ProtocolError

MOST_FIELDS = 200_000
"""The maximum number of fields that are read, in about 0.2 s. The fields after it are ignored."""
MOST_ATTRIBUTES = 10
"""The maximum number of attributes of one point, and of all resources of a push. The others are ignored."""
LONGEST_KEY = 100
LONGEST_TEXT = 200
"""The characters of an attribute's value, and of a metric's name, that are kept."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_DOUBLE, _SFIXED64, _FLOAT_SIZE = Struct("<d"), Struct("<q"), 4
_DELTA = 1
_NO_RECORDED_VALUE = 1

_RESOURCE_METRICS = 1
_RESOURCE, _SCOPE_METRICS = 1, 2
_ATTRIBUTES_OF_RESOURCE = 1
_METRICS = 2
_NAME, _GAUGE, _SUM = 1, 5, 7
_POINTS, _TEMPORALITY, _MONOTONIC = 1, 2, 3
_AS_DOUBLE, _AS_INT, _ATTRIBUTES, _FLAGS = 4, 6, 7, 8
_KEY, _VALUE = 1, 2
_STRING, _BOOL, _INT, _FLOAT = 1, 2, 3, 4

Attributes = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """One number of a metric."""

    name: str
    counter: bool
    """Whether the value only grows."""
    delta: bool
    """Whether the value is the difference to the point before it."""
    value: float
    attributes: Attributes


class PushedMetrics(NamedTuple):
    """What a client has pushed at one time."""

    points: list[Point]
    resource: Attributes
    """The attributes of the client itself."""
    ignored: int
    """The number of metrics of other types, and of points without a value."""
    truncated: bool
    """Whether the push has more points or fields than the limits allow."""


class _TooMuchError(Exception):
    """The limit of fields or points is reached."""


def read_metrics(data: bytes | bytearray | memoryview, most_points: int) -> PushedMetrics:
    """Return the first points of a message. Raises INVALID_RECORD if the bytes that are read are malformed."""
    reader = _Reader(memoryview(data), most_points)
    truncated = False
    try:
        reader.read()
    except _TooMuchError:
        truncated = True
    except (IndexError, ValueError) as error:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"the pushed metrics cannot be decoded: {error}") from None
    return PushedMetrics(reader.points, tuple(reader.resource.items()), reader.ignored, truncated)


class _Reader:
    """Read one message. The methods raise ValueError or IndexError for malformed bytes, and _TooMuchError."""

    def __init__(self, data: memoryview, most_points: int) -> None:
        self._data = data
        self._left = MOST_FIELDS
        self._most_points = most_points
        self.points: list[Point] = []
        self.resource: dict[str, str] = {}
        self.ignored = 0

    def read(self) -> None:
        for number, value in self._fields(0, len(self._data)):
            if number == _RESOURCE_METRICS:
                self._resource_metrics(*_span(value))

    def _fields(self, position: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
        """Yield the number of each field, and its value: an integer, or where its bytes begin and end.

        Fixed fields are yielded as bytes, too.
        """
        while position < end:
            self._left -= 1
            if self._left < 0:
                raise _TooMuchError
            tag, position = self._varint(position)
            kind = tag & 7
            if kind == _VARINT:
                value, position = self._varint(position)
                yield tag >> 3, value
                continue
            if kind == _LENGTH:
                size, position = self._varint(position)
            elif kind in (_FIXED64, _FIXED32):
                size = _DOUBLE.size if kind == _FIXED64 else _FLOAT_SIZE
            else:
                raise ValueError(f"wire type {kind}")
            if position + size > end:
                raise ValueError("truncated")
            yield tag >> 3, (position, position + size)
            position += size
        if position > end:
            raise ValueError("a field is longer than its message")

    def _varint(self, position: int) -> tuple[int, int]:
        data = self._data
        value = data[position]
        if value < 0x80:
            return value, position + 1
        value &= 0x7F
        for shift in range(7, 70, 7):
            position += 1
            byte = data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position + 1
        raise ValueError("a number has more than 10 bytes")

    def _resource_metrics(self, start: int, end: int) -> None:
        for number, value in self._fields(start, end):
            if number == _RESOURCE:
                for inner, attribute in self._fields(*_span(value)):
                    if inner == _ATTRIBUTES_OF_RESOURCE:
                        self._attribute(self.resource, *_span(attribute))
            elif number == _SCOPE_METRICS:
                for inner, metric in self._fields(*_span(value)):
                    if inner == _METRICS:
                        self._metric(*_span(metric))

    def _metric(self, start: int, end: int) -> None:
        name, kind, where = "", 0, (0, 0)
        for number, value in self._fields(start, end):
            if number == _NAME:
                name = self._text(*_span(value))
            elif _GAUGE <= number <= 11:
                kind, where = number, _span(value)
        if kind not in (_GAUGE, _SUM):
            self.ignored += 1
            return
        points, temporality, monotonic = [], 0, 0
        for number, value in self._fields(*where):
            if number == _POINTS:
                points.append(_span(value))
            elif kind == _SUM and number == _TEMPORALITY:
                temporality = _integer(value)
            elif kind == _SUM and number == _MONOTONIC:
                monotonic = _integer(value)
        for point in points:
            self._point(name, bool(monotonic), temporality == _DELTA, *point)

    def _point(self, name: str, counter: bool, delta: bool, start: int, end: int) -> None:
        if len(self.points) >= self._most_points:
            raise _TooMuchError
        found: float | None = None
        attributes: dict[str, str] = {}
        for number, value in self._fields(start, end):
            if number == _AS_DOUBLE:
                found = self._fixed(_DOUBLE, value)
            elif number == _AS_INT:
                found = self._fixed(_SFIXED64, value)
            elif number == _ATTRIBUTES:
                self._attribute(attributes, *_span(value))
            elif number == _FLAGS and _integer(value) & _NO_RECORDED_VALUE:
                found = None
                break
        if found is None:
            self.ignored += 1
        else:
            self.points.append(Point(name, counter, delta, found, tuple(sorted(attributes.items()))))

    def _attribute(self, into: dict[str, str], start: int, end: int) -> None:
        key, text = "", None
        for number, value in self._fields(start, end):
            if number == _KEY:
                key = self._text(*_span(value))
            elif number == _VALUE:
                text = self._any_value(*_span(value))
        if text is not None and (key in into or len(into) < MOST_ATTRIBUTES) and 0 < len(key) <= LONGEST_KEY:
            into[key] = text

    def _any_value(self, start: int, end: int) -> str | None:
        """Return a value as text, or None if it is empty, a list or bytes."""
        for number, value in self._fields(start, end):
            if number == _STRING:
                return self._text(*_span(value))
            if number == _BOOL:
                return "true" if _integer(value) else "false"
            if number == _INT:
                found = _integer(value)
                return str(found - 2**64 if found >= 2**63 else found)
            if number == _FLOAT:
                return repr(self._fixed(_DOUBLE, value))
        return None

    def _fixed(self, form: Struct, value: int | tuple[int, int]) -> float:
        start, end = _span(value)
        if end - start != form.size:
            raise ValueError("a number has another size")
        found: float = form.unpack_from(self._data, start)[0]
        return found

    def _text(self, start: int, end: int) -> str:
        end = min(end, start + 4 * LONGEST_TEXT)
        return bytes(self._data[start:end]).decode("utf-8", "replace")[:LONGEST_TEXT]


def _span(value: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(value, int):
        raise ValueError("a field has another type")
    return value


def _integer(value: int | tuple[int, int]) -> int:
    if not isinstance(value, int):
        raise ValueError("a field has another type")
    return value
