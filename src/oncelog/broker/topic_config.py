"""A topic's settings: what there is, what is legal, and where each value comes from.

The table is Kafka's `LogConfig` and `ServerTopicConfigSynonyms` (4.3): a topic's own value, else the broker's under
another name, else the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from msgspec import Meta

from oncelog.broker.config import (
    INT_MAX,
    LONG_MAX,
    BrokerConfig,
    CleanupPolicies,
    ConfigError,
    Key,
    check_value,
    keys,
)
from oncelog.log.config import LogConfig
from oncelog.protocol.errors import ErrorCode, ProtocolError

INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka's own setting for tests that need many segments: `segment.bytes` without its lower limit; not shown."""


class ConfigType(IntEnum):
    """`ConfigType` of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """`ConfigSource` of DescribeConfigs (KIP-226)."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


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
    type: ConfigType
    read_only: bool
    synonyms: tuple[Synonym, ...]
    documentation: str | None


@dataclass(frozen=True, slots=True)
class TopicKey:
    """One setting of a topic: the broker's key of the same meaning, and what it does."""

    name: str
    broker_key: str
    doc: str


TOPIC_KEYS: dict[str, TopicKey] = {
    key.name: key
    for key in (
        TopicKey(
            "cleanup.policy",
            "log.cleanup.policy",
            "What becomes of old records: `delete` drops whole segments by age and size, `compact` keeps the"
            " last record of each key; both may be given.",
        ),
        TopicKey(
            "compression.gzip.level",
            "compression.gzip.level",
            "Level when compression.type is gzip; -1 is zlib's own.",
        ),
        TopicKey("compression.lz4.level", "compression.lz4.level", "Level when compression.type is lz4."),
        TopicKey(
            "compression.type",
            "compression.type",
            "Codec that batches are stored with; `producer` keeps each as it came.",
        ),
        TopicKey("compression.zstd.level", "compression.zstd.level", "Level when compression.type is zstd."),
        TopicKey(
            "delete.retention.ms",
            "log.cleaner.delete.retention.ms",
            "How long a compacted topic keeps the record that deletes a key, and transaction markers.",
        ),
        TopicKey(
            "file.delete.delay.ms",
            "log.segment.delete.delay.ms",
            "How long a segment that is no longer part of the log stays on disk.",
        ),
        TopicKey(
            "flush.messages",
            "log.flush.interval.messages",
            "fsync after so many records; by default the operating system writes when it likes.",
        ),
        TopicKey("flush.ms", "log.flush.interval.ms", "fsync records that are older than this."),
        TopicKey(
            "index.interval.bytes",
            "log.index.interval.bytes",
            "An index entry is made for every so many bytes of log.",
        ),
        TopicKey(
            "max.compaction.lag.ms",
            "log.cleaner.max.compaction.lag.ms",
            "A record is open to compaction after this time at the latest.",
        ),
        TopicKey("max.message.bytes", "message.max.bytes", "Largest record batch that is taken, as it was sent."),
        TopicKey(
            "message.timestamp.after.max.ms",
            "log.message.timestamp.after.max.ms",
            "How far a record's time may be ahead of the broker's clock (CreateTime only).",
        ),
        TopicKey(
            "message.timestamp.before.max.ms",
            "log.message.timestamp.before.max.ms",
            "How far a record's time may be behind the broker's clock (CreateTime only).",
        ),
        TopicKey(
            "message.timestamp.type",
            "log.message.timestamp.type",
            "Whose time records carry: the producer's (CreateTime) or the broker's (LogAppendTime).",
        ),
        TopicKey(
            "min.cleanable.dirty.ratio",
            "log.cleaner.min.cleanable.ratio",
            "Compaction starts when this part of the log has not been through it.",
        ),
        TopicKey(
            "min.compaction.lag.ms",
            "log.cleaner.min.compaction.lag.ms",
            "A record stays as it is for at least this time.",
        ),
        TopicKey(
            "min.insync.replicas",
            "min.insync.replicas",
            "A produce request with acks=all is refused while fewer replicas than this are in sync.",
        ),
        TopicKey("preallocate", "log.preallocate", "Whether a new segment's file takes its full size at once."),
        TopicKey(
            "retention.bytes",
            "log.retention.bytes",
            "Size of a partition above which its oldest segments are deleted; -1 for no limit.",
        ),
        TopicKey(
            "retention.ms",
            "log.retention.ms",
            "Age above which segments are deleted; -1 keeps them for ever.",
        ),
        TopicKey("segment.bytes", "log.segment.bytes", "Size at which a new segment is begun."),
        TopicKey(
            "segment.index.bytes",
            "log.index.size.max.bytes",
            "Size at which an index makes a new segment begin.",
        ),
        TopicKey(
            "segment.jitter.ms",
            "log.roll.jitter.ms",
            "Random part taken off segment.ms, against all at once.",
        ),
        TopicKey("segment.ms", "log.roll.ms", "Age at which a new segment is begun though the old one is not full."),
        TopicKey(
            "unclean.leader.election.enable",
            "unclean.leader.election.enable",
            "Whether a replica that is out of sync may lead when no other is left: available, with records lost.",
        ),
    )
}
"""All settings of a topic, by name."""


def check_topic_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the settings for a topic to be made or altered; INVALID_CONFIG names the first that is wrong."""
    checked = {}
    for name, value in configs.items():
        key = TOPIC_KEYS.get(name)
        if key is None and name != INTERNAL_SEGMENT_BYTES:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"unknown topic setting {name!r}{_nearest(name)}")
        if value is None:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"topic setting {name} needs a value")
        try:
            check_value(name, value, _spec(key.broker_key) if key else _INTERNAL_SEGMENT)
        except ConfigError as error:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, str(error)) from error
        checked[name] = value.strip()
    low, high = (
        int(checked.get("min.compaction.lag.ms", 0)),
        int(checked.get("max.compaction.lag.ms", LONG_MAX)),
    )
    if low > high:
        message = f"min.compaction.lag.ms ({low}) must not be above max.compaction.lag.ms ({high})"
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
    return checked


def log_config(config: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """The settings of a topic's logs: the broker's, with the topic's own over them."""
    settings = {name: _text(getattr(config, _spec(key.broker_key).attribute)) for name, key in TOPIC_KEYS.items()}
    settings.update(overrides)
    if INTERNAL_SEGMENT_BYTES in overrides:
        settings["segment.bytes"] = overrides[INTERNAL_SEGMENT_BYTES]
    base = LogConfig(
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        full_record_validation=config.record_validation == "full",
    )
    return base.with_overrides(settings)


def effective(config: BrokerConfig, overrides: Mapping[str, str], name: str) -> str:
    """The value of one topic setting, as text."""
    if name in overrides:
        return overrides[name]
    return _text(getattr(config, _spec(TOPIC_KEYS[name].broker_key).attribute))


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """All settings of a topic, by name."""
    entries = []
    for name, key in TOPIC_KEYS.items():
        spec = _spec(key.broker_key)
        synonyms = _broker_synonyms(config, key.broker_key, spec)
        if name in overrides:
            synonyms.insert(0, Synonym(name, overrides[name], ConfigSource.TOPIC))
        first = synonyms[0]
        entry = ConfigEntry(name, first.value, first.source, _type(spec), False, tuple(synonyms), key.doc)
        entries.append(entry)
    return entries


def describe_broker(config: BrokerConfig) -> list[ConfigEntry]:
    """All settings of a broker, by name; they cannot be changed while it runs."""
    docs = {key.broker_key: key.doc for key in TOPIC_KEYS.values()}
    entries = []
    for name, spec in sorted(keys().items()):
        synonyms = tuple(_broker_synonyms(config, name, spec))
        first = synonyms[0]
        entries.append(ConfigEntry(name, first.value, first.source, _type(spec), True, synonyms, docs.get(name)))
    return entries


def _broker_synonyms(config: BrokerConfig, name: str, spec: Key) -> list[Synonym]:
    value, default = getattr(config, spec.attribute), spec.default
    found = [Synonym(name, _text(default), ConfigSource.DEFAULT)]
    if name in config.given or value != default:
        found.insert(0, Synonym(name, _text(value), ConfigSource.STATIC_BROKER))
    return found


def _spec(broker_key: str) -> Key:
    return keys()[broker_key]


_INTERNAL_SEGMENT = Key("internal_segment_bytes", int, Meta(ge=1, le=INT_MAX), None)


def _type(spec: Key) -> ConfigType:
    if spec.type is tuple or spec.meta is CleanupPolicies.__metadata__[0]:  # type: ignore[attr-defined]
        return ConfigType.LIST
    if spec.type is int:
        limit = spec.meta.le if spec.meta is not None else None
        return {LONG_MAX: ConfigType.LONG, 2**15 - 1: ConfigType.SHORT}.get(int(limit or 0), ConfigType.INT)
    if spec.type is bool:
        return ConfigType.BOOLEAN
    return ConfigType.DOUBLE if spec.type is float else ConfigType.STRING


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _nearest(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, TOPIC_KEYS, n=1)
    return f", did you mean {near[0]}?" if near else ""
