"""The types of settings: Python's types with Kafka's limits, and the values that texts have in them."""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from oncelog.broker.config.errors import ConfigError
from oncelog.net.credentials import Secret

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Int = Annotated[int, Meta(ge=-(2**31), le=INT_MAX)]
Int0 = Annotated[int, Meta(ge=0, le=INT_MAX)]
Int1 = Annotated[int, Meta(ge=1, le=INT_MAX)]
Short1 = Annotated[int, Meta(ge=1, le=2**15 - 1)]
Long = Annotated[int, Meta(ge=-(2**63), le=LONG_MAX)]
Long0 = Annotated[int, Meta(ge=0, le=LONG_MAX)]
Long1 = Annotated[int, Meta(ge=1, le=LONG_MAX)]
LongOrNever = Annotated[int, Meta(ge=-1, le=LONG_MAX)]
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
SegmentBytes = Annotated[int, Meta(ge=1024 * 1024, le=INT_MAX)]
Compression = Annotated[str, Meta(pattern="^(uncompressed|zstd|lz4|snappy|gzip|producer)$")]
TimestampType = Annotated[str, Meta(pattern="^(CreateTime|LogAppendTime)$")]
CleanupPolicies = Annotated[str, Meta(pattern=r"^((compact|delete)( *, *(?!\2$)(compact|delete))?)?$")]
"""Each policy may be named once."""
TextList = Annotated[str, Meta(title="list")]
"""A list with commas between its parts, kept as it was written."""
ReplicaSelector = Annotated[str, Meta(pattern=r"^(org\.apache\.kafka\.common\.replica\.RackAwareReplicaSelector)?$")]
RecordValidation = Annotated[str, Meta(pattern="^(header|full)$")]
StoreType = Annotated[str, Meta(pattern="^(JKS|PKCS12|PEM)$")]
ClientAuth = Annotated[str, Meta(pattern="^(none|requested|required)$")]
Empty = Annotated[str, Meta(pattern="^$")]
NO_SECRET = Secret("")
"""The default of a password."""


class Key(NamedTuple):
    """One key: the field's name and type without its limits, the limits, and the field's default."""

    attribute: str
    type: type
    meta: Meta | None
    default: Any


def check_value(name: str, text: str, key: Key) -> Any:
    """Return the typed value of one setting. Raises ConfigError."""
    text = text.strip()
    if key.type is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} must be true or false, not {text!r}")
        return text.lower() == "true"
    if key.type is Secret:
        return Secret(text)
    if key.type is int:
        number = whole_number(name, text, key.meta)
        if number == 0 and key.attribute == "compression_gzip_level":
            raise ConfigError(f"{name} must be 1 to 9, or -1 for zlib's default level, not {text}")
        return number
    if key.type is float:
        try:
            return within(name, text, float(text), key.meta)
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{name} must be a number, not {text!r}") from error
    if key.type is tuple:
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        if not parts:
            raise ConfigError(f"{name} must name at least one directory")
        return parts
    if key.meta is not None and key.meta.pattern is not None:
        _matches(name, text, key.meta.pattern)
    return text


def whole_number(name: str, text: str, meta: Meta | None) -> int:
    """Return the number that a text stands for. Raises ConfigError, also for one outside of the limits."""
    digits = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,20}", digits) is None:
        raise ConfigError(f"{name} must be a whole number, not {digits!r}")
    return int(within(name, digits, int(digits), meta))


def within(name: str, text: str, number: float, meta: Meta | None) -> float:
    """Return a number. Raises ConfigError if it is outside of the limits. `text` is how it was written."""
    if meta is not None and meta.ge is not None and not number >= meta.ge:
        raise ConfigError(f"{name} must be at least {meta.ge}, not {text}")
    if meta is not None and meta.le is not None and not number <= meta.le:
        raise ConfigError(f"{name} must be at most {meta.le}, not {text}")
    return number


def _matches(name: str, text: str, pattern: str) -> None:
    if re.search(pattern, text) is None:
        choices = list(
            dict.fromkeys(re.findall(r"[A-Za-z][A-Za-z0-9.]*", pattern.replace("\\", "").replace("?i:", "")))
        )
        allowed = f"must be one of {', '.join(choices)}" if choices else "must be empty"
        raise ConfigError(f"{name} {allowed}, not {text!r}")
