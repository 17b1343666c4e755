"""The settings of topics: the known settings, their valid values, and the source of each value.

A value is the topic's own, otherwise the broker's, under the broker's name of the setting, otherwise the default. The
table is Kafka's `LogConfig` and `ServerTopicConfigSynonyms` (4.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Meta

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.setting_types import INT_MAX, Key, check_value
from oncelog.broker.config.settings import BrokerConfig, keys
from oncelog.log.config import LogConfig
from oncelog.protocol.errors import ErrorCode, ProtocolError

INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka's setting for tests that need many segments: `segment.bytes` without its lower limit. It is not shown."""


@dataclass(frozen=True, slots=True)
class TopicKey:
    """One setting of a topic. `broker_key` is the broker's key with the same meaning. `doc` is shown to users."""

    name: str
    broker_key: str
    doc: str


TOPIC_KEYS: dict[str, TopicKey] = {
    key.name: key
    for key in (
        TopicKey(
            "cleanup.policy",
            "log.cleanup.policy",
            "How old records are removed: `delete` drops whole segments by age and size, `compact` keeps the last"
            " record of each key. Both may be set.",
        ),
        TopicKey(
            "compression.gzip.level",
            "compression.gzip.level",
            "Compression level for compression.type=gzip; -1 is zlib's default.",
        ),
        TopicKey("compression.lz4.level", "compression.lz4.level", "Compression level for compression.type=lz4."),
        TopicKey(
            "compression.type",
            "compression.type",
            "Codec of stored batches; `producer` keeps the codec that the producer chose.",
        ),
        TopicKey("compression.zstd.level", "compression.zstd.level", "Compression level for compression.type=zstd."),
        TopicKey(
            "delete.retention.ms",
            "log.cleaner.delete.retention.ms",
            "How long a compacted topic keeps tombstones and transaction markers.",
        ),
        TopicKey(
            "file.delete.delay.ms",
            "log.segment.delete.delay.ms",
            "How long the files of a deleted segment remain on disk, with the suffix `.deleted`.",
        ),
        TopicKey(
            "flush.messages",
            "log.flush.interval.messages",
            "fsync after this many records. By default, the operating system decides when to write.",
        ),
        TopicKey("flush.ms", "log.flush.interval.ms", "fsync records older than this."),
        TopicKey(
            "index.interval.bytes",
            "log.index.interval.bytes",
            "Bytes of log between two entries of the offset index.",
        ),
        TopicKey(
            "max.compaction.lag.ms",
            "log.cleaner.max.compaction.lag.ms",
            "Maximum time before a record becomes eligible for compaction.",
        ),
        TopicKey("max.message.bytes", "message.max.bytes", "Largest accepted record batch, as the producer sent it."),
        TopicKey(
            "message.timestamp.after.max.ms",
            "log.message.timestamp.after.max.ms",
            "How far a record's timestamp may be after the broker's clock (CreateTime only).",
        ),
        TopicKey(
            "message.timestamp.before.max.ms",
            "log.message.timestamp.before.max.ms",
            "How far a record's timestamp may be before the broker's clock (CreateTime only).",
        ),
        TopicKey(
            "message.timestamp.type",
            "log.message.timestamp.type",
            "Timestamp of records: set by the producer (CreateTime) or by the broker (LogAppendTime).",
        ),
        TopicKey(
            "min.cleanable.dirty.ratio",
            "log.cleaner.min.cleanable.ratio",
            "Compact the log when at least this part of it has not been compacted.",
        ),
        TopicKey(
            "min.compaction.lag.ms",
            "log.cleaner.min.compaction.lag.ms",
            "Minimum time before a record may be compacted.",
        ),
        TopicKey(
            "min.insync.replicas",
            "min.insync.replicas",
            "Reject a Produce request with acks=all while fewer replicas than this are in sync. A value above the "
            "number of replicas counts as that number, as in Kafka.",
        ),
        TopicKey("preallocate", "log.preallocate", "Whether to allocate the file of a new segment at its full size."),
        TopicKey(
            "retention.bytes",
            "log.retention.bytes",
            "Delete the oldest segments of a partition above this size; -1 means no limit.",
        ),
        TopicKey(
            "retention.ms",
            "log.retention.ms",
            "Delete segments older than this; -1 keeps them forever.",
        ),
        TopicKey("segment.bytes", "log.segment.bytes", "Size at which a new segment is started."),
        TopicKey(
            "segment.index.bytes",
            "log.index.size.max.bytes",
            "Index size at which a new segment is started.",
        ),
        TopicKey(
            "segment.jitter.ms",
            "log.roll.jitter.ms",
            "Random time subtracted from segment.ms, so that segments do not all roll at once.",
        ),
        TopicKey("segment.ms", "log.roll.ms", "Age at which a new segment is started even if the old one is not full."),
        TopicKey(
            "unclean.leader.election.enable",
            "unclean.leader.election.enable",
            "Whether an out-of-sync replica may lead if no in-sync one is left. Records may be lost.",
        ),
    )
}
"""All settings of a topic, by name."""

_LONGEST_NAME = max(map(len, TOPIC_KEYS))

WITHOUT_EFFECT: dict[str, str] = {
    "preallocate": "oncelog never preallocates files",
}
"""The settings that are checked, stored and shown, but have no effect, with the reason."""


def check_topic_configs(config: BrokerConfig, configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return a topic's own settings as text in Kafka's notation. Raises INVALID_CONFIG for the first invalid one.

    `config` is the broker's configuration. It has the values of settings that the topic does not set, because some
    settings must fit each other (`LogConfig.validate`).
    """
    checked = {}
    for name, value in configs.items():
        key = TOPIC_KEYS.get(name)
        if key is None and name != INTERNAL_SEGMENT_BYTES:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"unknown topic setting {name!r}{_nearest(name)}")
        if value is None:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"topic setting {name} needs a value")
        try:
            typed = check_value(name, value, _spec(key.broker_key) if key else _INTERNAL_SEGMENT)
        except ConfigError as error:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, str(error)) from error
        checked[name] = _as_list(typed) if name == "cleanup.policy" else plain_text(typed)
    low, high = (int(effective(config, checked, name)) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms"))
    if low > high:
        message = f"min.compaction.lag.ms ({low}) must not be above max.compaction.lag.ms ({high})"
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
    return checked


def check_changed_configs(
    config: BrokerConfig, before: Mapping[str, str], after: Mapping[str, str | None]
) -> dict[str, str]:
    """Check a change as `check_topic_configs` does. Existing settings that this version does not know stay."""
    foreign = {name: value for name, value in before.items() if not _is_known(name) and after.get(name) == value}
    ours = {name: value for name, value in after.items() if name not in foreign}
    return check_topic_configs(config, ours) | foreign


def _is_known(name: str) -> bool:
    return name in TOPIC_KEYS or name == INTERNAL_SEGMENT_BYTES


def without_effect(configs: Iterable[str]) -> list[str]:
    """Return a sentence for each of these settings that has no effect here."""
    return [f"{name} has no effect in oncelog: {WITHOUT_EFFECT[name]}" for name in configs if name in WITHOUT_EFFECT]


def log_config(config: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """Return the settings of a topic's logs: the broker's, overridden by the topic's own."""
    settings = {name: plain_text(getattr(config, _spec(key.broker_key).attribute)) for name, key in TOPIC_KEYS.items()}
    settings.update(overrides)
    if INTERNAL_SEGMENT_BYTES in overrides:
        settings["segment.bytes"] = overrides[INTERNAL_SEGMENT_BYTES]
    base = LogConfig(
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        full_record_validation=config.record_validation == "full",
    )
    return base.with_overrides(settings)


def effective(config: BrokerConfig, overrides: Mapping[str, str], name: str) -> str:
    """Return the value of one topic setting, as text."""
    if name in overrides:
        return overrides[name]
    return plain_text(getattr(config, _spec(TOPIC_KEYS[name].broker_key).attribute))


def _spec(broker_key: str) -> Key:
    return keys()[broker_key]


_INTERNAL_SEGMENT = Key("internal_segment_bytes", int, Meta(ge=1, le=INT_MAX), None)


def plain_text(value: Any) -> str:
    """Return a typed value as text in Kafka's notation."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _as_list(text: str) -> str:
    return ",".join(part.strip() for part in text.split(","))


def _nearest(name: str) -> str:
    if len(name) > 2 * _LONGEST_NAME:
        return ""  # the comparison takes about a microsecond for each character
    import difflib

    near = difflib.get_close_matches(name, TOPIC_KEYS, n=1)
    return f", did you mean {near[0]}?" if near else ""
