"""Settings of one partition's log, under the names of Kafka's topic configuration."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import CREATE_TIME, LOG_APPEND_TIME

NO_LIMIT = 2**63 - 1
_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of a log; sizes in bytes, times in ms. Defaults are Kafka's."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    """The largest reduction of the age at which a segment is rolled, so that not all segments roll at once."""
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1048588
    timestamp_type: int = CREATE_TIME
    timestamp_before_max_ms: int = NO_LIMIT
    timestamp_after_max_ms: int = 60 * 60 * 1000
    compression: Codec | None = None
    """The codec to store with. None (``producer``) keeps the producer's."""
    compression_levels: tuple[tuple[Codec, int], ...] = ()
    """The level of each codec, if it is not the codec's default."""
    compact: bool = False
    delete: bool = True
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    delete_retention_ms: int = _DAY_MS
    """How long compaction keeps tombstones, and markers of transactions without records."""
    min_cleanable_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NO_LIMIT
    flush_messages: int = NO_LIMIT
    """Records after which the log is synced."""
    flush_ms: int = NO_LIMIT
    """Age of unsynced records at which the log is synced."""
    producer_id_expiration_ms: int = _DAY_MS
    file_delete_delay_ms: int = 60_000
    """How long the renamed files of a deleted segment stay."""
    full_record_validation: bool = False
    """Check each record of a produced batch. For compacted topics, this is always done."""

    @property
    def max_segment_ms(self) -> int:
        """The age at which a segment is rolled. A segment that must be compacted may not be active for longer."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @property
    def compression_level(self) -> int | None:
        """Return the compression level (`compression.gzip.level`, ...), or None for the codec's default."""
        return dict(self.compression_levels).get(self.compression) if self.compression is not None else None

    def segment_age_ms(self, path: str) -> int:
        """Return the age at which the segment at ``path`` is rolled: `max_segment_ms` minus a jitter.

        The jitter depends on partition and offset, not on chance, so that a test sees the same in each run.
        """
        age = self.max_segment_ms
        bound = min(self.segment_jitter_ms, self.segment_ms)
        if not bound:
            return age
        folder, name = path.split("/")[-2:]
        return age - zlib.crc32(f"{folder}/{name}".encode()) % bound

    def with_overrides(self, properties: Mapping[str, str]) -> LogConfig:
        """Return these settings, overridden by a topic's ``properties`` (Kafka's dotted names).

        Settings of other components are ignored. Raises INVALID_CONFIG for an invalid value.
        """
        changes: dict[str, object] = {"compression_levels": self._levels(properties)}
        for name, value in properties.items():
            reader = _READERS.get(name)
            if reader is None:
                continue
            try:
                changes.update(reader(value))
            except (ValueError, KeyError) as error:
                raise ProtocolError(
                    ErrorCode.INVALID_CONFIG, f"invalid value {value!r} for configuration {name}"
                ) from error
        return replace(self, **changes)  # type: ignore[arg-type]

    def _levels(self, properties: Mapping[str, str]) -> tuple[tuple[Codec, int], ...]:
        levels = dict(self.compression_levels)
        for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
            name = f"compression.{codec.name.lower()}.level"
            if name in properties:
                levels[codec] = int(properties[name])
        return tuple(levels.items())


def _number(attribute: str, minimum: int) -> Callable[[str], dict[str, object]]:
    def read(value: str) -> dict[str, object]:
        number = int(value)
        if number < minimum:
            raise ValueError(value)
        return {attribute: number}

    return read


def _ratio(value: str) -> dict[str, object]:
    return {"min_cleanable_ratio": float(value)}


def _timestamp_type(value: str) -> dict[str, object]:
    return {"timestamp_type": {"CreateTime": CREATE_TIME, "LogAppendTime": LOG_APPEND_TIME}[value]}


def _compression(value: str) -> dict[str, object]:
    if value == "producer":
        return {"compression": None}
    return {"compression": Codec.NONE if value == "uncompressed" else Codec[value.upper()]}


def _cleanup_policy(value: str) -> dict[str, object]:
    policies = {part.strip() for part in value.split(",") if part.strip()}
    if not policies <= {"compact", "delete"}:
        raise ValueError(value)
    return {"compact": "compact" in policies, "delete": "delete" in policies}


_READERS: dict[str, Callable[[str], dict[str, object]]] = {
    "segment.bytes": _number("segment_bytes", 1),
    "segment.ms": _number("segment_ms", 1),
    "segment.jitter.ms": _number("segment_jitter_ms", 0),
    "segment.index.bytes": _number("segment_index_bytes", 4),
    "index.interval.bytes": _number("index_interval_bytes", 0),
    "max.message.bytes": _number("max_message_bytes", 0),
    "message.timestamp.type": _timestamp_type,
    "message.timestamp.before.max.ms": _number("timestamp_before_max_ms", 0),
    "message.timestamp.after.max.ms": _number("timestamp_after_max_ms", 0),
    "compression.type": _compression,
    "cleanup.policy": _cleanup_policy,
    "retention.ms": _number("retention_ms", -1),
    "retention.bytes": _number("retention_bytes", -1),
    "file.delete.delay.ms": _number("file_delete_delay_ms", 0),
    "flush.messages": _number("flush_messages", 1),
    "flush.ms": _number("flush_ms", 0),
    "delete.retention.ms": _number("delete_retention_ms", 0),
    "min.cleanable.dirty.ratio": _ratio,
    "min.compaction.lag.ms": _number("min_compaction_lag_ms", 0),
    "max.compaction.lag.ms": _number("max_compaction_lag_ms", 1),
}
"""The topic configurations of the log, and the parser of each value."""
