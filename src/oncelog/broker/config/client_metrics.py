"""The settings of client metrics subscriptions: `metrics`, `interval.ms` and `match` (KIP-714).

Source of names, limits and errors: Kafka's `ClientMetricsConfigs`. Its patterns are those of Java; ours have RE2's
syntax, as `coordinator.patterns` says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from oncelog.broker.config.entries import ConfigEntry, ConfigSource, ConfigType, Synonym
from oncelog.coordinator.patterns import Pattern
from oncelog.protocol.errors import ErrorCode, ProtocolError

METRICS, INTERVAL_MS, MATCH = "metrics", "interval.ms", "match"
ALL_METRICS = "*"
DEFAULT_INTERVAL_MS = 300_000
MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 3_600_000
MOST_SUBSCRIPTIONS = 100
"""The maximum number of subscriptions of a cluster. Each new client is compared with all of them."""
LONGEST_NAME = 255
"""The maximum number of characters of a subscription's name. Kafka has no limit."""

ATTRIBUTES = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What `match` compares with its patterns."""


class _Setting(NamedTuple):
    type: ConfigType
    default: str
    text: str


_SETTINGS = {
    INTERVAL_MS: _Setting(ConfigType.INT, str(DEFAULT_INTERVAL_MS), "Time between two pushes of a client, in ms."),
    MATCH: _Setting(ConfigType.LIST, "", "Clients, as ATTRIBUTE=PATTERN. Without it, all clients match."),
    METRICS: _Setting(ConfigType.LIST, "", "Prefixes of metrics' names. * stands for all metrics."),
}

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")


class Subscription(NamedTuple):
    """What matching clients push."""

    metrics: frozenset[str]
    interval_ms: int
    match: Mapping[str, Pattern]
    """By attribute of a client: the pattern that the whole value must match."""

    def selects(self, attributes: Mapping[str, str]) -> bool:
        """Return whether a client with these attributes matches."""
        return all(pattern.matches(attributes[name]) for name, pattern in self.match.items())


def check_name(name: str) -> None:
    """Raise INVALID_REQUEST if a subscription cannot have this name."""
    if not name:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    if len(name) > LONGEST_NAME:
        message = f"the name of a subscription may have at most {LONGEST_NAME} characters, not {len(name)}"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)


def check_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as plain text. Raises INVALID_REQUEST for unknown ones and intervals out of range.

    Raises INVALID_CONFIG for values that cannot be parsed.
    """
    parse(settings)
    return {
        name: text.strip() if name == INTERVAL_MS else ",".join(_items(name, text)) for name, text in settings.items()
    }


def check_changed_settings(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Check a change as `check_settings` does. Existing settings that only another version knows stay.

    If none of the others is left, none stays, so that the subscription can be deleted.
    """
    foreign = {name: text for name, text in before.items() if name not in _SETTINGS and after.get(name) == text}
    wanted = check_settings({name: text for name, text in after.items() if name not in foreign})
    return {**foreign, **wanted} if wanted else {}


def parse(settings: Mapping[str, str]) -> Subscription:
    """Return the subscription with these settings. Raises the errors of `check_settings`."""
    for name in settings:
        if name not in _SETTINGS:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    interval_ms = _interval_ms(settings.get(INTERVAL_MS, _SETTINGS[INTERVAL_MS].default))
    metrics = frozenset(_items(METRICS, settings.get(METRICS, "")))
    return Subscription(metrics, interval_ms, dict(map(_pattern, _items(MATCH, settings.get(MATCH, "")))))


def _interval_ms(text: str) -> int:
    if not _INTEGER.fullmatch(text.strip()) or not -(2**31) <= int(text) < 2**31:
        message = f"Invalid value {text} for configuration {INTERVAL_MS}: Not a number of type INT"
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
    if not MIN_INTERVAL_MS <= int(text) <= MAX_INTERVAL_MS:
        message = (
            f"Invalid value {int(text)} for {INTERVAL_MS}, interval must be between {MIN_INTERVAL_MS} and "
            f"{MAX_INTERVAL_MS} (1 hour)"
        )
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
    return int(text)


def _items(name: str, text: str) -> list[str]:
    """Return the parts of a list, each once. Raises INVALID_CONFIG if one is empty."""
    if not text.strip():
        return []
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Configuration '{name}' values must not be empty.")
    return list(dict.fromkeys(items))


def _pattern(item: str) -> tuple[str, Pattern]:
    """Return the attribute and the pattern of `ATTRIBUTE=PATTERN`. Raises INVALID_CONFIG."""
    name, _, text = item.rstrip("=").partition("=")
    name, text = name.strip(), text.strip()
    if name not in ATTRIBUTES or not text or "=" in text:
        raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {item}")
    try:
        return name, Pattern(text)
    except ProtocolError as error:
        message = f"Illegal client matching pattern: {item}; {error}"
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message) from error


def describe(settings: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all settings of a subscription, sorted by name. One that does not exist has the defaults, as in Kafka."""
    entries = []
    for name, (kind, default, text) in _SETTINGS.items():
        given = settings.get(name)
        source = ConfigSource.DEFAULT if given is None else ConfigSource.CLIENT_METRICS
        value = default if given is None else given
        synonyms = () if given is None else (Synonym(name, given, source),)
        entries.append(ConfigEntry(name, value, source, kind, False, synonyms, text))
    return entries
