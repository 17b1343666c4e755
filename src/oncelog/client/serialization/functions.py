"""Call the functions that convert keys and values, and convert their errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from oncelog.client.types import ConsumerRecord, Headers
from oncelog.errors import OncelogError, SerializationError, UsageError


class SerializationContext(NamedTuple):
    """The context that a serializer or deserializer gets besides the data. `field` is "key" or "value".

    `headers` is a list of pairs (name, value) of bytes or None. A serializer may add headers to it. confluent-kafka's
    serializers accept this object.
    """

    topic: str
    field: str
    headers: Headers = ()


Serializer = Callable[[Any, SerializationContext], bytes]
"""A function that returns the bytes of a key or value. It is never called with None."""
Deserializer = Callable[[bytes, SerializationContext], Any]
"""A function that returns the object that the bytes of a key or value encode. It is never called with None."""

KEY, VALUE = "key", "value"


def serializer(value: Any) -> Serializer | None:
    """Read the option key_serializer or value_serializer."""
    return _function(value, "(data, context) -> bytes, such as oncelog.serialization.JsonSerializer()")


def deserializer(value: Any) -> Deserializer | None:
    """Read the option key_deserializer or value_deserializer."""
    return _function(value, "(data, context) -> object, such as oncelog.serialization.JsonDeserializer()")


def _function(value: Any, form: str) -> Callable[[Any, SerializationContext], Any] | None:
    if value is None:
        return None
    if not callable(value) or isinstance(value, type) or not _takes_two(value):
        raise ValueError(f"it must be a function {form}")
    found: Callable[[Any, SerializationContext], Any] = value
    return found


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        return True  # a built-in function without a signature
    return True


Ready = Callable[[Any, SerializationContext], bool]
"""The method `ready` of a function that may block. It returns whether a call with these arguments does not block."""


def _checks(key: object, value: object) -> dict[str, Ready]:
    """Return field -> the method `ready` of its function. Omit functions without this method."""
    found = {KEY: getattr(key, "ready", None), VALUE: getattr(value, "ready", None)}
    return {field: ready for field, ready in found.items() if ready is not None}


def _is_ready(checks: Mapping[str, Ready], topic: str, key: Any, value: Any, headers: Headers) -> bool:
    for field, ready in checks.items():
        data = key if field == KEY else value
        try:
            if data is not None and not ready(data, SerializationContext(topic, field, headers)):
                return False
        except Exception:  # noqa: BLE001 - the call itself raises it
            continue
    return True


def require_formats(options: Mapping[str, Any], method: str, key: object, value: object) -> None:
    """Raise UsageError if a method for tables gets no format, or would ignore a serializer."""
    for field, form in ((KEY, key), (VALUE, value)):
        if form is not None and not hasattr(form, "keep_bad"):  # classes lack it, too
            raise UsageError(f"{method}(): {field} must be a format, as in {field}=Json(...), not {form!r}")
        name = next((n for n in (f"{field}_serializer", f"{field}_deserializer") if options.get(n) is not None), None)
        if form is None and name is not None:
            raise UsageError(
                f"{method}() does not call {name}, which is for single records; pass a format of oncelog.formats, as "
                f"in {field}=Json(...), or create a client without {name}"
            )


class Serializers:
    """The serializers of a producer."""

    def __init__(self, key: Serializer | None, value: Serializer | None) -> None:
        self._key, self._value = key, value
        self._checks = _checks(key, value)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Serializers | None:
        """Return the serializers of these options, or None if there are none."""
        key, value = options["key_serializer"], options["value_serializer"]
        return None if key is None and value is None else cls(key, value)

    def ready(self, topic: str, value: Any, key: Any, headers: Headers) -> bool:
        """Return whether `serialize` does not block."""
        return _is_ready(self._checks, topic, key, value, headers)

    def serialize(self, topic: str, value: Any, key: Any, headers: Headers) -> tuple[Any, Any]:
        """Return (value, key) as bytes. Data without a serializer is unchanged. Raises SerializationError."""
        return (
            _serialized(self._value, value, SerializationContext(topic, VALUE, headers)),
            _serialized(self._key, key, SerializationContext(topic, KEY, headers)),
        )


def _serialized(function: Serializer | None, data: Any, context: SerializationContext) -> Any:
    if function is None or data is None:
        return data
    try:
        found: object = function(data, context)
    except OncelogError:
        raise
    except Exception as error:
        raise SerializationError(context.field, context.topic, f"{type(error).__name__}: {error}") from error
    if not isinstance(found, bytes):
        reason = f"the serializer returned {type(found).__name__}, but must return bytes"
        raise SerializationError(context.field, context.topic, reason)
    return found


class Deserializers:
    """The deserializers of a consumer."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key, self._value = key, value
        self._checks = _checks(key, value)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Deserializers | None:
        """Return the deserializers of these options, or None if there are none."""
        key, value = options["key_deserializer"], options["value_deserializer"]
        return None if key is None and value is None else cls(key, value)

    def ready(self, records: Iterable[ConsumerRecord]) -> bool:
        """Return whether `deserialize` does not block."""
        return not self._checks or all(
            _is_ready(self._checks, record.topic, record.key, record.value, record.headers) for record in records
        )

    def deserialize(self, records: Iterable[ConsumerRecord]) -> tuple[list[ConsumerRecord], OncelogError | None]:
        """Return the records before the first one that cannot be deserialized, and its error."""
        found: list[ConsumerRecord] = []
        for record in records:
            try:
                key = _deserialized(self._key, record.key, record, KEY)
                value = _deserialized(self._value, record.value, record, VALUE)
            except OncelogError as error:
                return found, error
            found.append(record._replace(key=key, value=value))
        return found, None


def _deserialized(function: Deserializer | None, data: bytes | None, record: ConsumerRecord, field: str) -> Any:
    if function is None or data is None:
        return data
    try:
        return function(data, SerializationContext(record.topic, field, list(record.headers)))
    except OncelogError:
        raise
    except Exception as error:
        raise SerializationError(field, record.topic, f"{type(error).__name__}: {error}", record) from error
