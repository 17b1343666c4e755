"""Groups and offsets as records of `__consumer_offsets`, in the versions that Kafka 4.3 writes.

OffsetCommitValue is written as v4, or as v1 if the client sent a retention time. GroupMetadataValue is written as v3,
although v4 exists and can be read. Source: Kafka's `GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.group import Group, Member
from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.schema import NO_UUID, Message, read_version

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3
OFFSET_VALUE_VERSION = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1


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


def group_record(
    group: Group,
    assignments: Mapping[str, bytes],
    *,
    members: Iterable[Member] | None = None,
    leader: str | None = None,
) -> CoordinatorRecord:
    """Return the record of a group's generation. `members` and `leader` replace those of the group."""
    protocol = group.protocol
    return _group_record(
        group.group_id,
        GroupMetadataValue(
            protocol_type=group.protocol_type or "",
            generation=group.generation,
            protocol=protocol,
            leader=leader or group.leader,
            current_state_timestamp=group.state_timestamp_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(protocol) if protocol is not None else b"",
                    assignment=assignments[member.member_id],
                )
                for member in (group.members.values() if members is None else members)
            ],
        ),
    )


def new_group_record(group: Group) -> CoordinatorRecord:
    """Return the record of a group that has had no generation."""
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=group.state_timestamp_ms,
    )
    return _group_record(group.group_id, value)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the record that deletes a group."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION, None)


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Decode a record of the topic. Return None for unknown versions (KIP-848 groups, newer brokers)."""
    key_version = read_version(key)
    if key_version == GROUP_KEY_VERSION:
        decoded_key: Message = GroupMetadataKey.decode(key[2:], key_version)
        value_type: type[Message] = GroupMetadataValue
    elif key_version in (0, OFFSET_KEY_VERSION):
        decoded_key = OffsetCommitKey.decode(key[2:], key_version)
        value_type = OffsetCommitValue
    else:
        return None
    if value is None:
        return CoordinatorRecord(decoded_key, key_version, None)
    version = read_version(value)
    if not value_type.MIN_VERSION <= version <= value_type.MAX_VERSION:
        return None
    return CoordinatorRecord(decoded_key, key_version, value_type.decode(value[2:], version), version)


def _offset_key(group_id: str, topic: str, partition: int) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition)


def _group_record(group_id: str, value: GroupMetadataValue) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION, value, GROUP_VALUE_VERSION)
