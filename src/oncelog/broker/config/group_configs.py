"""The settings that groups may have of their own, such as `consumer.session.timeout.ms` (KIP-848).

Each has a broker's setting, `group.NAME`, which is its default, and a smallest and largest value among the broker's
settings. Source of names, limits, errors and messages: Kafka's `GroupConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from oncelog.broker.config.settings import BrokerConfig
from oncelog.coordinator.groups.registry import ConsumerSettings
from oncelog.protocol.errors import ErrorCode, ProtocolError

SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL_MS = "consumer.assignment.interval.ms"
MOST_GROUPS = 10_000
"""The maximum number of groups with settings of their own. Kafka has no limit."""
LONGEST_NAME = 255
"""The maximum number of characters of the name of such a group. Kafka has no limit."""


class GroupKey(NamedTuple):
    """One setting of a group: the smallest number that it can ever have, and what it does."""

    least: int
    doc: str


GROUP_KEYS = {
    HEARTBEAT_INTERVAL_MS: GroupKey(1, "Time between two heartbeats that members are told, in ms."),
    SESSION_TIMEOUT_MS: GroupKey(1, "Time without a heartbeat after which a member is removed, in ms."),
    ASSIGNMENT_INTERVAL_MS: GroupKey(0, "Least time between two assignments of the group, in ms."),
}
_OF_OTHER_PROTOCOLS = ("share.", "streams.")
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")


def broker_key(name: str) -> str:
    """Return the broker's setting that is the default of a group's setting."""
    return f"group.{name}"


def group_key(name: str) -> str | None:
    """Return the broker's key of a group's setting, or None if the setting is unknown."""
    return broker_key(name) if name in GROUP_KEYS else None


def check_name(name: str) -> None:
    """Raise INVALID_REQUEST if no group of this name can have settings."""
    if not name:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    if len(name) > LONGEST_NAME:
        message = f"a group with settings may have a name of at most {LONGEST_NAME} characters, not {len(name)}"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)


def check_settings(config: BrokerConfig, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as plain text. Raises INVALID_CONFIG.

    As in Kafka, all settings of the group must be legal together, those that it has from the broker, too.
    """
    for name in settings:
        if name not in GROUP_KEYS:
            reason = "; oncelog has no share or streams groups" if name.startswith(_OF_OTHER_PROTOCOLS) else ""
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}{reason}")
    given = {name: _number(name, text) for name, text in settings.items()}
    for name, number in given.items():
        low, high = _limits(config, name)
        for wrong, relation, limit in ((number < low, "greater", "min"), (number > high, "less", "max")):
            if wrong:
                message = f"{name} must be {relation} than or equal to {_limit_key(name, limit)}"
                raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
    session, heartbeat = (
        given.get(name, _of_broker(config, name)) for name in (SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS)
    )
    if session <= heartbeat:
        message = f"{SESSION_TIMEOUT_MS} must be greater than {HEARTBEAT_INTERVAL_MS}"
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
    return {name: str(number) for name, number in given.items()}


def check_changed_settings(config: BrokerConfig, before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Check a change as `check_settings` does. Existing settings that only another version knows stay.

    If none of the others is left, none stays, so that a group can be without settings again.
    """
    foreign = {name: text for name, text in before.items() if name not in GROUP_KEYS and after.get(name) == text}
    wanted = check_settings(config, {name: text for name, text in after.items() if name not in foreign})
    return {**foreign, **wanted} if wanted else {}


def consumer_settings(config: BrokerConfig, settings: Mapping[str, str]) -> ConsumerSettings:
    """Return the settings in force of a group that has these settings of its own.

    A value outside of the broker's limits, which may have changed since, counts as the nearest limit, as in Kafka.
    Settings that this version cannot use have no effect.
    """
    return ConsumerSettings(
        session_timeout_ms=_in_force(config, settings, SESSION_TIMEOUT_MS),
        heartbeat_interval_ms=_in_force(config, settings, HEARTBEAT_INTERVAL_MS),
        assignment_interval_ms=_in_force(config, settings, ASSIGNMENT_INTERVAL_MS),
    )


def _in_force(config: BrokerConfig, settings: Mapping[str, str], name: str) -> int:
    text = settings.get(name)
    if text is None or not _INTEGER.fullmatch(text):
        return _of_broker(config, name)
    low, high = _limits(config, name)
    return max(low, min(high, int(text)))


def _number(name: str, text: str) -> int:
    """Return the number. Raises INVALID_CONFIG."""
    digits = text.strip()
    if not _INTEGER.fullmatch(digits) or not -(2**31) <= int(digits) < 2**31:
        reason = "Not a number of type INT"
    elif int(digits) < GROUP_KEYS[name].least:
        reason = f"Value must be at least {GROUP_KEYS[name].least}"
    else:
        return int(digits)
    raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: {reason}")


def _limit_key(name: str, limit: str) -> str:
    kind, _, rest = name.partition(".")
    return f"group.{kind}.{limit}.{rest}"


def _limits(config: BrokerConfig, name: str) -> tuple[int, int]:
    low, high = (getattr(config, _limit_key(name, limit).replace(".", "_")) for limit in ("min", "max"))
    return low, high


def _of_broker(config: BrokerConfig, name: str) -> int:
    return int(getattr(config, broker_key(name).replace(".", "_")))
