"""Tombstones of groups and offsets: deleted on request, expired, or of a deleted topic (KIP-211, KIP-229, KIP-496).

A coordinator may have a million offsets. Functions that check all of them are generators (`Tombstones`), so that the
caller can pause. The coordinator may change during a pause. Source: Kafka's `GroupCoordinatorShard.deleteGroups` and
`OffsetMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.group import Group
from oncelog.coordinator.groups.offsets import OffsetStore
from oncelog.coordinator.groups.records import CommittedOffset, offset_tombstone
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.delete_groups import DeletableGroupResult
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from oncelog.protocol.schema import NO_UUID

Groups = Mapping[str, Group]
Tombstones = Iterator[Sequence[CoordinatorRecord]]
"""The tombstones of each offset or group that is checked, none if it stays. Those of a group belong in one batch.

If a crash kept only some records of a group, the others would be loaded as a damaged group.
"""

# -- requests -------------------------------------------------------------------------------------------------------


def delete_groups(
    groups: Groups, store: OffsetStore, group_ids: Iterable[str]
) -> tuple[list[DeletableGroupResult], list[CoordinatorRecord]]:
    """Delete groups without members, and their offsets. Each group has its own error."""
    results = []
    records: list[CoordinatorRecord] = []
    for group_id in group_ids:
        result = DeletableGroupResult(group_id=group_id)
        results.append(result)
        group = groups.get(group_id)
        if group is None:
            result.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        elif not group.is_empty:
            result.error_code = ErrorCode.NON_EMPTY_GROUP
        else:
            records += _all_offsets(store, group_id)
            records += group.tombstones()
    return results, records


def delete_some_offsets(
    groups: Groups, store: OffsetStore, group_id: str, most: int
) -> tuple[int, list[CoordinatorRecord]]:
    """Delete up to `most` offsets of an empty group that has more. Return the number that it had, 0 for other groups.

    The deletion of a group is one batch. This makes it small, so that other clients do not wait for it.
    """
    group = groups.get(group_id)
    if group is None or not group.is_empty:
        return 0, []
    count = len(store.committed(group_id))
    return count, list(islice(_all_offsets(store, group_id), most)) if count > most else []


def delete_offsets(
    groups: Groups, store: OffsetStore, request: OffsetDeleteRequest
) -> tuple[OffsetDeleteResponse, list[CoordinatorRecord]]:
    """Delete the offsets of topics that no member reads, pending ones too. Raise an error of the whole group."""
    group = groups.get(request.group_id)
    if group is None:
        raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
    group.check_offset_deletion()
    response = OffsetDeleteResponse()
    records = []
    for topic in request.topics:
        answer = OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answer)
        subscribed = group.is_subscribed(topic.name)
        for partition in topic.partitions:
            index = partition.partition_index
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            answer.partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=error))
            if not subscribed and store.has(request.group_id, (topic.name, index)):
                records.append(offset_tombstone(request.group_id, topic.name, index))
    return response, records


def _all_offsets(store: OffsetStore, group_id: str) -> Iterator[CoordinatorRecord]:
    """Yield one tombstone for each partition with an offset, committed or pending or both."""
    committed = store.committed(group_id)
    for partition in committed:
        yield offset_tombstone(group_id, *partition)
    for partition in store.unstable(group_id):
        if partition not in committed:
            yield offset_tombstone(group_id, *partition)


# -- expiry ---------------------------------------------------------------------------------------------------------


def expired_offsets(groups: Groups, store: OffsetStore, retention_ms: int, now_ms: Callable[[], int]) -> Tombstones:
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
                yield ()
            else:
                yield (offset_tombstone(group_id, *partition),)
        yield ()


def empty_groups(groups: Groups, store: OffsetStore) -> Tombstones:
    """Yield tombstones for each group without members and offsets."""
    for group_id in tuple(groups):
        group = groups.get(group_id)
        if (
            group is None
            or not group.is_unused
            or store.committed(group_id)
            or any(True for _ in store.unstable(group_id))
        ):
            yield ()
        else:
            yield group.tombstones()


def _is_expired(group: Group, committed: CommittedOffset, retention_ms: int, now_ms: int) -> bool:
    since_ms = group.expires_since(committed.commit_timestamp_ms)
    if since_ms is None:
        return False
    if committed.expire_timestamp_ms is not None:
        return now_ms >= committed.expire_timestamp_ms
    return now_ms - since_ms >= retention_ms


# -- deleted topics -------------------------------------------------------------------------------------------------


def offsets_of_deleted_topic(store: OffsetStore, topic: str, topic_id: UUID) -> Tombstones:
    """Yield a tombstone for each offset of a deleted topic, committed or pending.

    Keep the offsets that a group commits after this call: they belong to a new topic of the same name.
    """
    return _older_offsets(store, topic, lambda offset: offset.topic_id in (NO_UUID, topic_id), store.newest)


def offsets_committed_since(store: OffsetStore, topic: str, since_ms: int) -> Tombstones:
    """Yield a tombstone for each partition of a name for which a group has committed an offset after `since_ms`.

    Keep the offsets that a group commits after this call, like `offsets_of_deleted_topic`.
    """
    return _older_offsets(store, topic, lambda offset: offset.commit_timestamp_ms > since_ms, store.newest)


def topics_with_offsets(store: OffsetStore) -> Iterator[str]:
    """Yield the topic of each offset, committed or pending."""
    for group_id in sorted(store.group_ids()):
        for topic, _ in (*store.committed(group_id), *store.unstable(group_id)):
            yield topic


def _older_offsets(
    store: OffsetStore, topic: str, is_deleted: Callable[[CommittedOffset], bool], newest: int
) -> Tombstones:
    """Yield a tombstone for each partition of a topic with a deleted offset and no newer one."""
    for group_id in sorted(store.group_ids()):
        for partition in dict.fromkeys((*store.committed(group_id), *store.unstable(group_id))):
            offsets = tuple(store.offsets_of(group_id, partition)) if partition[0] == topic else ()
            if any(map(is_deleted, offsets)) and all(offset.sequence <= newest for offset in offsets):
                yield (offset_tombstone(group_id, *partition),)
            else:
                yield ()
