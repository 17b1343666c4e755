"""Delete the offsets that no group needs any more (KIP-211), and groups without offsets.

A coordinator may have a million offsets. So each function is a generator that yields None for each offset that stays:
its caller may pause there, and the coordinator may change meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.group import CONSUMER_PROTOCOL, Group
from oncelog.coordinator.groups.offsets import OffsetStore, TopicPartition
from oncelog.coordinator.groups.records import CommittedOffset, group_tombstone, offset_tombstone
from oncelog.coordinator.groups.states import GroupState
from oncelog.protocol.schema import NO_UUID


def expired_offsets(
    groups: Mapping[str, Group], store: OffsetStore, retention_ms: int, now_ms: Callable[[], int]
) -> Iterator[CoordinatorRecord | None]:
    """Yield a tombstone for each expired offset.

    Keep an offset while a transaction has an offset pending for the partition (KAFKA-14505), and while a member reads
    the topic.
    """
    for group_id in tuple(groups):
        for partition in tuple(store.committed(group_id)):
            group, committed = groups.get(group_id), store.committed(group_id).get(partition)
            if (
                group is None
                or committed is None
                or not _is_expired(group, committed, retention_ms, now_ms())
                or group.is_subscribed(partition[0])
                or store.is_unstable(group_id, partition)
            ):
                yield None
            else:
                yield offset_tombstone(group_id, *partition)
        yield None


def empty_groups(groups: Mapping[str, Group], store: OffsetStore) -> Iterator[CoordinatorRecord | None]:
    """Yield a tombstone for each group without members and offsets."""
    for group_id in tuple(groups):
        group = groups.get(group_id)
        if (
            group is None
            or group.state is not GroupState.EMPTY
            or group.pending_joins
            or store.committed(group_id)
            or any(True for _ in store.unstable(group_id))
        ):
            yield None
        else:
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


def of_deleted_topic(store: OffsetStore, topic: str, topic_id: UUID) -> Iterator[CoordinatorRecord | None]:
    """Yield a tombstone for each offset of a deleted topic, committed or pending.

    Keep the offsets that a group commits after this call: they belong to a new topic of the same name.
    """
    return _older_offsets(store, topic, topic_id, store.newest)


def _older_offsets(store: OffsetStore, topic: str, topic_id: UUID, newest: int) -> Iterator[CoordinatorRecord | None]:
    for group_id in sorted(store.group_ids()):
        for partition in dict.fromkeys((*store.committed(group_id), *store.unstable(group_id))):
            if partition[0] == topic and _is_of_topic(store, group_id, partition, topic_id, newest):
                yield offset_tombstone(group_id, *partition)
            else:
                yield None


def _is_of_topic(store: OffsetStore, group_id: str, partition: TopicPartition, topic_id: UUID, newest: int) -> bool:
    """Return whether a partition has offsets of the topic, and no newer ones."""
    offsets = tuple(store.offsets_of(group_id, partition))
    return any(offset.topic_id in (NO_UUID, topic_id) for offset in offsets) and all(
        offset.sequence <= newest for offset in offsets
    )
