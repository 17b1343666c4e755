"""Messages are declared once: a class an API, each field with its type and version range.

A declaration reads like a dataclass whose defaults are field descriptions:

    class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible=4):
        group_id: str = string()
        generation_id: int = int32()
        group_instance_id: str | None = string(since=3, nullable=3, default=None)

At first use in a version the class is compiled (`codec`) to one decoder and one encoder for that version. Names, types
and ranges are those of Kafka's protocol guide; field names are in snake case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Self, dataclass_transform
from uuid import UUID

NO_UUID = UUID(int=0)
ALWAYS = 32767
MAX_STRING = 32767
"""Bytes of a string; Kafka's own messages have the limit in all versions, whatever the length's type could hold."""


class DecodeError(ValueError):
    """Bytes that are not the message that they should be: cut off, malformed, or followed by others."""


class UnsupportedVersionError(ValueError):
    """The message has no such version, or a field is set that this version cannot carry."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `kind` as in the protocol guide, versions inclusive; `tag` makes it a tagged field (KIP-482)."""

    kind: str
    since: int
    until: int
    nullable: int
    default: Any
    tag: int | None
    ignorable: bool
    element: Any = None

    def present(self, version: int) -> bool:
        """Whether the field exists in a version."""
        return self.since <= version <= self.until

    def may_be_null(self, version: int) -> bool:
        """Whether null is legal in a version."""
        return version >= self.nullable


def _scalar(kind: str, empty: Any) -> Callable[..., Any]:
    def field(
        since: int = 0,
        until: int = ALWAYS,
        *,
        nullable: int = ALWAYS + 1,
        default: Any = empty,
        tag: int | None = None,
        ignorable: bool = False,
    ) -> Any:
        return Field(kind, since, until, nullable, default, tag, ignorable)

    field.__name__ = field.__qualname__ = kind
    field.__doc__ = f"A field of type {kind}."
    return field


int8 = _scalar("int8", 0)
int16 = _scalar("int16", 0)
uint16 = _scalar("uint16", 0)
int32 = _scalar("int32", 0)
int64 = _scalar("int64", 0)
float64 = _scalar("float64", 0.0)
boolean = _scalar("bool", False)
uuid = _scalar("uuid", NO_UUID)
string = _scalar("string", "")
data = _scalar("bytes", b"")
records = _scalar("records", None)


def array(
    element: Any,
    since: int = 0,
    until: int = ALWAYS,
    *,
    nullable: int = ALWAYS + 1,
    default: Any = (),
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    """A field that is a list; `element` is a message class or the name of a scalar type."""
    return Field("array", since, until, nullable, default, tag, ignorable, element)


def struct(
    element: Any,
    since: int = 0,
    until: int = ALWAYS,
    *,
    nullable: int = ALWAYS + 1,
    default: Any = (),
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    """A field that is itself a message; its default is an empty one."""
    return Field("struct", since, until, nullable, default, tag, ignorable, element)


class _MessageType(type):
    """Turns field descriptions into slots and a constructor with keywords."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int = -1,
        versions: tuple[int, int] = (0, ALWAYS),
        flexible: int = ALWAYS + 1,
    ) -> _MessageType:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key in fields:
            del namespace[key]
        namespace["__slots__"] = tuple(fields)
        namespace["FIELDS"] = fields
        namespace["VALUES"] = attrgetter(*fields or ("__class__",))
        namespace["API_KEY"] = api_key
        namespace["MIN_VERSION"], namespace["MAX_VERSION"] = versions
        namespace["FLEXIBLE_SINCE"] = flexible
        return super().__new__(mcs, name, bases, namespace)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, namespace)
        if bases:
            cls.__init__ = _constructor(cls)  # type: ignore[misc]


def _constructor(cls: Any) -> Callable[..., None]:
    """Writes `__init__`: plain defaults as defaults, lists and structs made anew for each message."""
    parameters, body, scope = [], [], {}
    for name, field in cls.FIELDS.items():
        default = field.default
        if field.kind in ("array", "struct") and default is not None:
            fresh = "[]" if field.kind == "array" else f"_{name}()"
            scope[f"_{name}"] = field.element
            parameters.append(f"{name}=None" if may_be_null_at_all(field) is False else f"{name}=_missing")
            test = "None" if may_be_null_at_all(field) is False else "_missing"
            body.append(f"    self.{name} = {fresh} if {name} is {test} else {name}")
        else:
            scope[f"_{name}"] = default
            parameters.append(f"{name}=_{name}")
            body.append(f"    self.{name} = {name}")
    scope["_missing"] = _MISSING
    head = f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    exec("\n".join([head, *(body or ["    pass"])]), scope)  # generated from the declarations alone
    made: Callable[..., None] = scope["__init__"]
    return made


def may_be_null_at_all(field: Field) -> bool:
    """Whether there is a version in which the field may be null."""
    return field.nullable <= ALWAYS


_MISSING = object()


# Without field specifiers a type checker takes each description for a default value: all fields may be left out.
@dataclass_transform(kw_only_default=True)
class Message(metaclass=_MessageType):
    """The base of all messages and of the structs inside them."""

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int]
    FIELDS: ClassVar[dict[str, Field]]
    VALUES: ClassVar[attrgetter[Any]]
    """Gives all fields of a message, to compare."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        values = self.VALUES
        return bool(values(self) == values(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.FIELDS)
        return f"{type(self).__name__}({shown})"

    def encode(self, version: int) -> bytes:
        """The message's bytes in a version; UnsupportedVersionError."""
        return b"".join(self.chunks(version))

    def chunks(self, version: int) -> list[bytes | memoryview]:
        """As `encode`, in pieces: record data stays where it is."""
        from oncelog.protocol.codec import codec

        out: list[bytes | memoryview] = []
        codec(type(self), version).encode(self, out)
        return out

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, version: int) -> Self:
        """The message that `data` is, all of it; DecodeError, UnsupportedVersionError."""
        message, end = cls.decode_from(data, 0, version)
        if end != len(data):
            raise DecodeError(f"{len(data) - end} bytes after {cls.__name__}")
        return message

    @classmethod
    def decode_from(cls, data: bytes | bytearray | memoryview, pos: int, version: int) -> tuple[Self, int]:
        """The message that starts at `pos`, and where it ends."""
        from oncelog.protocol.codec import codec

        message, end = codec(cls, version).decode(memoryview(data), pos)
        return message, end


def encode_versioned(message: Message, version: int) -> bytes:
    """A key or value of an internal topic: the version as int16, then the message."""
    return version.to_bytes(2, "big", signed=True) + message.encode(version)


def utf8(text: str) -> bytes:
    """Encode a string, which must fit into a message. Raises UnsupportedVersionError."""
    raw = text.encode()
    if len(raw) > MAX_STRING:
        raise UnsupportedVersionError(f"string of {len(raw)} bytes, {MAX_STRING} at most can be sent")
    return raw


def read_version(data: bytes | memoryview) -> int:
    """The int16 in front of such a key or value; the message follows behind it. DecodeError."""
    if len(data) < 2:
        raise DecodeError("no version in front of the record")
    return int.from_bytes(data[:2], "big", signed=True)
