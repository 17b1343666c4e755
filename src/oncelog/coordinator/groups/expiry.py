"""Offsets that nobody needs any more (KIP-211), and groups without offsets."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.group import CONSUMER_PROTOCOL, Group
from oncelog.coordinator.groups.offsets import OffsetStore, TopicPartition
from oncelog.coordinator.groups.records import CommittedOffset, group_tombstone, offset_tombstone
from oncelog.coordinator.groups.states import GroupState
from oncelog.protocol.schema import NO_UUID


def expired(group: Group, store: OffsetStore, retention_ms: int, now_ms: int) -> Iterator[CoordinatorRecord]:
    """Tombstones for the group's expired offsets, and for the group when it is empty and nothing is left of it.

    Not while a transaction has an offset pending for the partition (KAFKA-14505), nor while a member reads the topic.
    """
    group_id = group.group_id
    offsets = store.committed(group_id)
    left = len(offsets)
    for partition, committed in tuple(offsets.items()):
        if _is_expired(group, committed, retention_ms, now_ms) and not (
            group.is_subscribed(partition[0]) or store.is_unstable(group_id, partition)
        ):
            left -= 1
            yield offset_tombstone(group_id, *partition)
    unstable = any(True for _ in store.unstable(group_id))
    if not left and not unstable and group.state is GroupState.EMPTY and not group.pending_joins:
        yield group_tombstone(group_id)


def _is_expired(group: Group, committed: CommittedOffset, retention_ms: int, now_ms: int) -> bool:
    since_ms = committed.commit_timestamp_ms
    if group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            if group.state_timestamp_ms != -1:
                since_ms = group.state_timestamp_ms
        elif not (
            group.protocol_type == CONSUMER_PROTOCOL
            and group.subscribed_topics is not None
            and group.state is GroupState.STABLE
        ):
            return False
    if committed.expire_timestamp_ms is not None:
        return now_ms >= committed.expire_timestamp_ms
    return now_ms - since_ms >= retention_ms


def of_deleted_topic(store: OffsetStore, topic: str, topic_id: UUID) -> Iterator[CoordinatorRecord]:
    """Tombstones for every offset of a topic that is gone, pending ones too."""
    for group_id in sorted(store.group_ids()):
        found: set[TopicPartition] = set()
        candidates = list(store.committed(group_id).items())
        for groups in store.open_transactions().values():
            candidates += groups.get(group_id, {}).items()
        for partition, committed in candidates:
            if partition[0] == topic and committed.topic_id in (NO_UUID, topic_id):
                found.add(partition)
        for partition in sorted(found):
            yield offset_tombstone(group_id, *partition)
