"""Offsets as records of `__consumer_offsets`, in the versions that Kafka 4.3 writes, and the layouts of all records.

OffsetCommitValue is written as v4, or as v1 if the client sent a retention time. Source: Kafka's
`GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.classic.groups import ClassicGroups
from oncelog.coordinator.groups.consumer.groups import ConsumerGroups
from oncelog.coordinator.groups.group import Layouts
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.schema import NO_UUID, read_version

OFFSET_KEY_VERSION = 1
OFFSET_VALUE_VERSION = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1

_OFFSET = OffsetCommitKey, OffsetCommitValue
LAYOUTS: Layouts = {0: _OFFSET, OFFSET_KEY_VERSION: _OFFSET, **ClassicGroups.layouts, **ConsumerGroups.layouts}


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position; times in ms. `sequence` orders the records of a partition of `__consumer_offsets`."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    topic_id: UUID = NO_UUID
    sequence: int = 0


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> CoordinatorRecord:
    """Return the record of one committed offset."""
    expires = committed.expire_timestamp_ms
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=-1 if expires is None else expires,
        topic_id=committed.topic_id,
    )
    version = OFFSET_VALUE_VERSION if expires is None else OFFSET_VALUE_VERSION_WITH_EXPIRY
    return CoordinatorRecord(_offset_key(group_id, topic, partition), OFFSET_KEY_VERSION, value, version)


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the record that deletes a committed offset, and the pending ones of the same partition."""
    return CoordinatorRecord(_offset_key(group_id, topic, partition), OFFSET_KEY_VERSION, None)


def committed_offset(value: OffsetCommitValue, sequence: int) -> CommittedOffset:
    """Return the offset in a record."""
    return CommittedOffset(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=None if value.expire_timestamp == -1 else value.expire_timestamp,
        topic_id=value.topic_id,
        sequence=sequence,
    )


def decode_record(key: bytes, value: bytes | None, layouts: Layouts = LAYOUTS) -> CoordinatorRecord | None:
    """Decode a record of the topic. Return None for unknown versions: share and streams groups, and newer brokers."""
    key_version = read_version(key)
    if key_version not in layouts:
        return None
    key_type, value_type = layouts[key_version]
    decoded_key = key_type.decode(key[2:], key_version)
    if value is None:
        return CoordinatorRecord(decoded_key, key_version, None)
    version = read_version(value)
    if not value_type.MIN_VERSION <= version <= value_type.MAX_VERSION:
        return None
    return CoordinatorRecord(decoded_key, key_version, value_type.decode(value[2:], version), version)


def _offset_key(group_id: str, topic: str, partition: int) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition)
