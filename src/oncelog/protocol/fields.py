"""Describe the fields of messages: their types, version ranges and defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from uuid import UUID

NO_UUID = UUID(int=0)
ALWAYS = 32767
OWN_TAGS = 10_000
"""The lowest tag of fields that only oncelog has. Kafka counts its tags from 0, and ignores tags that it lacks."""
MAX_STRING = 32767
"""Largest size of a string in bytes. Kafka has this limit in all versions, even if the length's type allows more."""


class DecodeError(ValueError):
    """Raised for bytes that are truncated, malformed, or longer than the message."""


class UnsupportedVersionError(ValueError):
    """Raised if the message has no such version, or if a field is set that this version cannot carry."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `kind` is its type in the protocol guide, and version ranges are inclusive.

    A field with a `tag` is a tagged field in flexible versions (KIP-482).
    """

    kind: str
    since: int
    until: int
    nullable: int
    default: Any
    tag: int | None
    ignorable: bool
    element: Any = None

    def present(self, version: int) -> bool:
        """Return whether the field exists in a version."""
        return self.since <= version <= self.until

    def may_be_null(self, version: int) -> bool:
        """Return whether null is legal in a version."""
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
    """Describe a field that is a list. `element` is a message class or the name of a scalar type."""
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
    """Describe a field that is itself a message. Its default is an empty message."""
    return Field("struct", since, until, nullable, default, tag, ignorable, element)


class MessageType(type):
    """Turn field descriptions into slots and a constructor with keywords."""

    API_KEY: int
    MIN_VERSION: int
    MAX_VERSION: int
    FLEXIBLE_SINCE: int
    FIELDS: dict[str, Field]
    VALUES: attrgetter[Any]
    """Returns the values of all fields of a message, for comparisons."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int = -1,
        versions: tuple[int, int] = (0, ALWAYS),
        flexible: int = ALWAYS + 1,
    ) -> MessageType:
        """Create a class from the field descriptions in its body."""
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
    """Generate `__init__`. Each message gets its own lists and structs; other defaults are shared."""
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
    """Return whether the field may be null in any version."""
    return field.nullable <= ALWAYS


_MISSING = object()
