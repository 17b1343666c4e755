"""Settings as DescribeConfigs and CreateTopics show them: value, type, and where each value comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from oncelog.broker.config import LONG_MAX, CleanupPolicies, Key, keys
from oncelog.broker.dynamic_config import DYNAMIC, DynamicConfig
from oncelog.broker.topic_config import TOPIC_KEYS, plain_text


class ConfigType(IntEnum):
    """`ConfigType` of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


UNKNOWN_TYPE = 0
"""What loggers have."""


class ConfigSource(IntEnum):
    """`ConfigSource` of DescribeConfigs (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


@dataclass(frozen=True, slots=True)
class Synonym:
    """One of the places that a value could come from."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as DescribeConfigs shows it; `synonyms` from the one that counts down to the default."""

    name: str
    value: str | None
    source: ConfigSource
    type: int
    read_only: bool
    synonyms: tuple[Synonym, ...]
    documentation: str | None


def describe_topic(layers: DynamicConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """All settings of a topic, by name."""
    entries = []
    for name, key in TOPIC_KEYS.items():
        synonyms = _broker_synonyms(layers, key.broker_key)
        if name in overrides:
            synonyms.insert(0, Synonym(name, overrides[name], ConfigSource.TOPIC))
        first = synonyms[0]
        kind = type_of(keys()[key.broker_key])
        entries.append(ConfigEntry(name, first.value, first.source, kind, False, tuple(synonyms), key.doc))
    return entries


def describe_broker(layers: DynamicConfig) -> list[ConfigEntry]:
    """All settings of this broker, by name."""
    entries = []
    for name, spec in sorted(keys().items()):
        synonyms = tuple(_broker_synonyms(layers, name))
        first = synonyms[0]
        fixed = name not in DYNAMIC
        entries.append(ConfigEntry(name, first.value, first.source, type_of(spec), fixed, synonyms, _DOCS.get(name)))
    return entries


def describe_all_brokers(layers: DynamicConfig) -> list[ConfigEntry]:
    """What was set for all brokers while they ran, by name."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    return [
        ConfigEntry(name, value, source, type_of(keys()[name]), False, (Synonym(name, value, source),), _DOCS.get(name))
        for name, value in sorted(layers.of_all.items())
    ]


def _broker_synonyms(layers: DynamicConfig, name: str) -> list[Synonym]:
    spec = keys()[name]
    found = [
        Synonym(name, layer[name], source)
        for layer, source in (
            (layers.own, ConfigSource.DYNAMIC_BROKER),
            (layers.of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        )
        if name in layer
    ]
    static = layers.static
    value = getattr(static, spec.attribute)
    if name in static.given or value != spec.default:
        found.append(Synonym(name, plain_text(value), ConfigSource.STATIC_BROKER))
    found.append(Synonym(name, plain_text(spec.default), ConfigSource.DEFAULT))
    return found


def type_of(spec: Key) -> ConfigType:
    """The type that clients are told."""
    if spec.type is tuple or spec.meta is CleanupPolicies.__metadata__[0]:  # type: ignore[attr-defined]
        return ConfigType.LIST
    if spec.type is int:
        limit = spec.meta.le if spec.meta is not None else None
        return {LONG_MAX: ConfigType.LONG, 2**15 - 1: ConfigType.SHORT}.get(int(limit or 0), ConfigType.INT)
    if spec.type is bool:
        return ConfigType.BOOLEAN
    return ConfigType.DOUBLE if spec.type is float else ConfigType.STRING


_DOCS = {key.broker_key: key.doc for key in TOPIC_KEYS.values()}
