"""Check and apply the changes that AlterConfigs and IncrementalAlterConfigs make to one resource (KIP-133, 339)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from oncelog.broker.config.entries import ConfigType, type_of
from oncelog.broker.config.settings import keys
from oncelog.broker.config.topics import TOPIC_KEYS, plain_text
from oncelog.protocol.errors import ErrorCode, ProtocolError

VALUE_MAX = 32_767
"""The maximum number of characters of a value (Kafka's limit)."""


class ConfigOperation(IntEnum):
    """`AlterConfigOp.OpType`."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """The change of one setting. `operation` is its number in the request. `value` is None for DELETE."""

    name: str
    operation: int
    value: str | None


Key = Callable[[str], str | None]
"""Maps a setting's name to the key in `broker.config.settings.keys()` with its type and default, or None if unknown."""


def topic_key(name: str) -> str | None:
    """Return the broker's key of a topic setting, or None if the setting is unknown."""
    key = TOPIC_KEYS.get(name)
    return key.broker_key if key else None


def no_key(name: str) -> str | None:
    """Return None: no setting of a client metrics subscription is a list that APPEND can change, as in Kafka."""
    return None


def broker_key(name: str) -> str | None:
    """Return the name of a broker setting, which is its own key, or None if the setting is unknown."""
    return name if name in keys() else None


def check_changes(changes: Sequence[Change]) -> None:
    """Raise INVALID_REQUEST for a repeated name, a missing value or an unknown operation."""
    if len({change.name for change in changes}) < len(changes):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    without = [change.name for change in changes if change.value is None and change.operation != ConfigOperation.DELETE]
    if without:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(without)}")
    for change in changes:
        if change.operation not in ConfigOperation.__members__.values():
            message = f"unknown operation {change.operation} on {change.name}"
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)


def incremental(before: Mapping[str, str], changes: Sequence[Change], key: Key) -> dict[str, str]:
    """Return the settings after the changes.

    Raises INVALID_CONFIG if APPEND or SUBTRACT names a setting that is not a list, or if a value is too long.
    """
    after = dict(before)
    for change in changes:
        if change.operation == ConfigOperation.DELETE:
            after.pop(change.name, None)
            continue
        assert change.value is not None
        if change.operation == ConfigOperation.SET:
            after[change.name] = change.value
        else:
            after[change.name] = _with_list(after.get(change.name), change, key)
        if len(after[change.name]) > VALUE_MAX:
            message = f"the value of {change.name} has {len(after[change.name])} characters; the limit is {VALUE_MAX}"
            raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
    return after


def _with_list(before: str | None, change: Change, key: Key) -> str:
    """Return the list after an APPEND or SUBTRACT. Raises INVALID_CONFIG if the setting is not a list.

    A setting that is not set starts with its default, as in `ConfigurationControlManager.getParts`.
    """
    found = key(change.name)
    spec = keys()[found] if found is not None else None
    if spec is None or type_of(spec) is not ConfigType.LIST:
        operation = ConfigOperation(change.operation).name
        message = f"Can't {operation} to key {change.name} because its type is not LIST."
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
    parts = [part for part in (plain_text(spec.default) if before is None else before).split(",") if part]
    given = dict.fromkeys((change.value or "").split(","))
    if change.operation == ConfigOperation.APPEND:
        known = set(parts)
        parts += [part for part in given if part not in known]
    else:
        parts = [part for part in parts if part not in given]
    return ",".join(parts)
