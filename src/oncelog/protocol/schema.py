"""Declare the messages of the protocol as classes. Each field has a type and a version range.

A declaration looks like a dataclass whose defaults are field descriptions:

    class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible=4):
        group_id: str = string()
        generation_id: int = int32()
        group_instance_id: str | None = string(since=3, nullable=3, default=None)

When a class is first used in a version, `codec` generates a decoder and an encoder for that version. Names, types and
ranges are those of Kafka's protocol guide. Field names are in snake case.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar, Self, dataclass_transform

from oncelog.protocol.codec import codec
from oncelog.protocol.fields import (
    ALWAYS,
    MAX_STRING,
    NO_UUID,
    OWN_TAGS,
    DecodeError,
    Field,
    MessageType,
    UnsupportedVersionError,
    array,
    boolean,
    data,
    float64,
    int8,
    int16,
    int32,
    int64,
    may_be_null_at_all,
    records,
    string,
    struct,
    uint16,
    uuid,
)

__all__ = [
    "ALWAYS",
    "MAX_STRING",
    "NO_UUID",
    "OWN_TAGS",
    "DecodeError",
    "Field",
    "Message",
    "UnsupportedVersionError",
    "array",
    "boolean",
    "data",
    "encode_versioned",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "may_be_null_at_all",
    "read_version",
    "records",
    "string",
    "struct",
    "uint16",
    "uuid",
]


# Without field specifiers, a type checker treats each description as a default value, so all fields are optional.
@dataclass_transform(kw_only_default=True)
class Message(metaclass=MessageType):
    """The base class of all messages, and of the structs inside them."""

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int]
    FIELDS: ClassVar[dict[str, Field]]
    VALUES: ClassVar[attrgetter[Any]]
    """Returns the values of all fields of a message, for comparisons."""

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
        """Return the message's bytes in a version. Raises UnsupportedVersionError."""
        return b"".join(self.chunks(version))

    def chunks(self, version: int) -> list[bytes | memoryview]:
        """Return the bytes of `encode` in pieces, without a copy of record data."""
        out: list[bytes | memoryview] = []
        codec(type(self), version).encode(self, out)
        return out

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, version: int) -> Self:
        """Return the message that takes up all of `data`. Raises DecodeError and UnsupportedVersionError."""
        message, end = cls.decode_from(data, 0, version)
        if end != len(data):
            raise DecodeError(f"{cls.__name__} is followed by {len(data) - end} extra bytes")
        return message

    @classmethod
    def decode_from(cls, data: bytes | bytearray | memoryview, pos: int, version: int) -> tuple[Self, int]:
        """Return the message at `pos`, and the position after it. Raises the errors of `decode`."""
        message, end = codec(cls, version).decode(memoryview(data), pos)
        return message, end


def encode_versioned(message: Message, version: int) -> bytes:
    """Return the bytes of a key or value of an internal topic: the version as int16, then the message."""
    return version.to_bytes(2, "big", signed=True) + message.encode(version)


def read_version(data: bytes | memoryview) -> int:
    """Return the int16 version in front of a key or value of `encode_versioned`. Raises DecodeError."""
    if len(data) < 2:
        raise DecodeError("the record has no version prefix")
    return int.from_bytes(data[:2], "big", signed=True)
