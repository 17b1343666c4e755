"""Messages as JSON, as Kafka's generated `JsonConverter`s write them."""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

from oncelog.protocol.schema import Message


def message_json(message: Message, version: int) -> dict[str, Any]:
    """The fields of a version under Kafka's names; a tagged one (KIP-482) only where it has not its default."""
    found = {}
    for name, field in type(message).FIELDS.items():
        value = getattr(message, name)
        if field.present(version) and (field.tag is None or value != field.default):
            first, *others = name.split("_")
            found[first + "".join(map(str.capitalize, others))] = _plain(value, version)
    return found


def _plain(value: Any, version: int) -> Any:
    if isinstance(value, Message):
        return message_json(value, version)
    if isinstance(value, (list, tuple)):
        return [_plain(item, version) for item in value]
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
