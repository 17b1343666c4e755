"""Settings as DescribeConfigs and CreateTopics show them: with value, type and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from oncelog.broker.config.connection_limits import limit_of
from oncelog.broker.config.dynamic import DYNAMIC, DynamicConfig
from oncelog.broker.config.dynamic_listeners import base_name
from oncelog.broker.config.group_configs import GROUP_KEYS, broker_key
from oncelog.broker.config.setting_types import LONG_MAX, CleanupPolicies, Key, TextList
from oncelog.broker.config.settings import keys, names_of
from oncelog.broker.config.topics import TOPIC_KEYS, plain_text
from oncelog.net.credentials import Secret


class ConfigType(IntEnum):
    """`ConfigType` of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


UNKNOWN_TYPE = 0
"""The type of a logger's level."""


class ConfigSource(IntEnum):
    """`ConfigSource` of DescribeConfigs (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """The value of a setting in one of the layers."""

    name: str
    value: str | None
    """None if it is a secret."""
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as DescribeConfigs shows it. `synonyms` are the value in force, then the values that it overrides."""

    name: str
    value: str | None
    source: ConfigSource
    type: int
    read_only: bool
    synonyms: tuple[Synonym, ...]
    documentation: str | None


def describe_topic(layers: DynamicConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all settings of a topic, sorted by name."""
    entries = []
    for name, key in TOPIC_KEYS.items():
        value, synonyms = _of_broker(layers, key.broker_key)
        if name in overrides:
            value = overrides[name]
            synonyms.insert(0, Synonym(name, value, ConfigSource.TOPIC))
        kind = type_of(keys()[key.broker_key])
        entries.append(ConfigEntry(name, value, _source(synonyms), kind, False, tuple(synonyms), key.doc))
    return entries


def describe_group(layers: DynamicConfig, own: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all settings of a group, sorted by name. One that has none of its own has those of the broker."""
    entries = []
    for name, key in sorted(GROUP_KEYS.items()):
        of_broker = broker_key(name)
        value, synonyms = _of_broker(layers, of_broker)
        if name in own:
            value = own[name]
            synonyms.insert(0, Synonym(name, value, ConfigSource.GROUP))
        kind = type_of(keys()[of_broker])
        entries.append(ConfigEntry(name, value, _source(synonyms), kind, False, tuple(synonyms), key.doc))
    return entries


def describe_broker(layers: DynamicConfig) -> list[ConfigEntry]:
    """Return all settings of this broker, sorted by name."""
    entries = []
    for name, spec in sorted(keys().items()):
        value, synonyms = _of_broker(layers, name)
        fixed = name not in DYNAMIC
        entries.append(
            ConfigEntry(name, value, _source(synonyms), type_of(spec), fixed, tuple(synonyms), _DOCS.get(name))
        )
    entries += [_listener_limit(layers, name) for name in layers.of_listeners()]
    return sorted([*entries, *_of_listeners(layers)], key=lambda entry: entry.name)


def _listener_limit(layers: DynamicConfig, name: str) -> ConfigEntry:
    """Return a limit of one listener. Its synonyms include those of the broker's limit, which it overrides."""
    base = limit_of(name)
    own = [
        Synonym(name, layer[name].strip(), source)
        for layer, source in (
            (layers.own, ConfigSource.DYNAMIC_BROKER),
            (layers.of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (layers.static.given, ConfigSource.STATIC_BROKER),
        )
        if name in layer
    ]
    synonyms = (*own, *_of_broker(layers, base)[1])
    return ConfigEntry(name, own[0].value, own[0].source, type_of(keys()[base]), False, synonyms, _DOCS.get(base))


def _of_listeners(layers: DynamicConfig) -> list[ConfigEntry]:
    """Return this broker's dynamic settings of listeners. Each overrides the one of the same listener in the file."""
    entries = []
    for name, text in layers.own.items():
        base = base_name(name)
        if base is None:
            continue
        spec = keys()[base]
        value = None if spec.type is Secret else text
        synonyms = [Synonym(name, value, ConfigSource.DYNAMIC_BROKER)]
        if name in layers.static.given:  # which has no secrets
            synonyms.append(Synonym(name, layers.static.given[name].strip(), ConfigSource.STATIC_BROKER))
        synonyms += _of_broker(layers, base)[1]
        read_only = True  # as Kafka says, although it can change
        entries.append(ConfigEntry(name, value, _source(synonyms), type_of(spec), read_only, tuple(synonyms), None))
    return entries


def describe_all_brokers(layers: DynamicConfig) -> list[ConfigEntry]:
    """Return the dynamic settings of all brokers, sorted by name."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    return [
        ConfigEntry(
            name,
            value,
            source,
            type_of(keys()[limit_of(name)]),
            False,
            (Synonym(name, value, source),),
            _DOCS.get(limit_of(name)),
        )
        for name, value in sorted(layers.of_all.items())
    ]


def _source(synonyms: list[Synonym]) -> ConfigSource:
    return synonyms[0].source if synonyms else ConfigSource.DEFAULT


def _of_broker(layers: DynamicConfig, name: str) -> tuple[str | None, list[Synonym]]:
    """Return the value in force, or None if there is none, and the value in each layer that has one.

    A value that was given under another name (`log.retention.hours`) keeps that name and its unit among the synonyms.
    """
    spec = keys()[name]
    if spec.type is Secret:
        given = getattr(layers.static, spec.attribute)
        return None, [Synonym(name, None, ConfigSource.STATIC_BROKER)] if given else []
    found = [
        Synonym(name, layer[name], source)
        for layer, source in (
            (layers.own, ConfigSource.DYNAMIC_BROKER),
            (layers.of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        )
        if name in layer
    ]
    static = layers.static
    value = plain_text(getattr(static, spec.attribute))
    default = plain_text(spec.default)
    named = next((each for each in names_of(name) if each in static.given), None)
    if named is not None or value != default:
        text = value if named in (None, name) else static.given[named].strip()
        found.append(Synonym(named or name, text, ConfigSource.STATIC_BROKER))
    if default:
        found.append(Synonym(name, default, ConfigSource.DEFAULT))
    dynamic = layers.own.get(name, layers.of_all.get(name))
    in_force = value if dynamic is None else dynamic
    return in_force if found else None, found


def type_of(spec: Key) -> ConfigType:
    """Return the type that DescribeConfigs reports."""
    if spec.type is Secret:
        return ConfigType.PASSWORD
    if spec.type is tuple or spec.meta in _LISTS:
        return ConfigType.LIST
    if spec.type is int:
        limit = spec.meta.le if spec.meta is not None else None
        return {LONG_MAX: ConfigType.LONG, 2**15 - 1: ConfigType.SHORT}.get(int(limit or 0), ConfigType.INT)
    if spec.type is bool:
        return ConfigType.BOOLEAN
    return ConfigType.DOUBLE if spec.type is float else ConfigType.STRING


_LISTS = tuple(hint.__metadata__[0] for hint in (CleanupPolicies, TextList))  # type: ignore[attr-defined]

_DOCS = {key.broker_key: key.doc for key in TOPIC_KEYS.values()}
