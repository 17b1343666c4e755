"""DeleteGroups and OffsetDelete (KIP-229, KIP-496), after Kafka's `GroupCoordinatorShard.deleteGroups` and
`OffsetMetadataManager.deleteOffsets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from oncelog.coordinator.effects import CoordinatorRecord, Effects
from oncelog.coordinator.groups.group import CONSUMER_PROTOCOL, Group
from oncelog.coordinator.groups.offsets import OffsetStore
from oncelog.coordinator.groups.records import group_tombstone, offset_tombstone
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.groups.states import GroupState
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.delete_groups import DeletableGroupResult
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def delete_groups(
    registry: Registry, store: OffsetStore, group_ids: Iterable[str], effects: Effects
) -> list[DeletableGroupResult]:
    """Forgets groups without members, with their offsets; each has its own error."""
    results = []
    for group_id in group_ids:
        result = DeletableGroupResult(group_id=group_id)
        results.append(result)
        try:
            if _existing(registry, group_id).state is not GroupState.EMPTY:
                raise ProtocolError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members")
        except ProtocolError as error:
            result.error_code = error.code
            continue
        effects.records += _all_offsets(store, group_id)
        effects.records.append(group_tombstone(group_id))
    return results


def delete_some_offsets(registry: Registry, store: OffsetStore, group_id: str, most: int, effects: Effects) -> int:
    """Delete up to `most` offsets of an empty group that has more. Return the number that it had, 0 for other groups.

    The deletion of a group is one batch. This makes it small, so that other clients do not wait for it.
    """
    group = registry.groups.get(group_id)
    if group is None or group.state is not GroupState.EMPTY:
        return 0
    count = len(store.committed(group_id))
    if count > most:
        effects.records += islice(_all_offsets(store, group_id), most)
    return count


def delete_offsets(
    registry: Registry, store: OffsetStore, request: OffsetDeleteRequest, effects: Effects
) -> OffsetDeleteResponse:
    """Forgets the offsets of topics that no member reads, pending ones too; an error of the group is raised."""
    group = _existing(registry, request.group_id)
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
        raise ProtocolError(ErrorCode.NON_EMPTY_GROUP, f"what the members of {request.group_id} read is not known")
    response = OffsetDeleteResponse()
    for topic in request.topics:
        answer = OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answer)
        subscribed = group.is_subscribed(topic.name)
        for partition in topic.partitions:
            index = partition.partition_index
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            answer.partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=error))
            if not subscribed and store.has(request.group_id, (topic.name, index)):
                effects.records.append(offset_tombstone(request.group_id, topic.name, index))
    return response


def _existing(registry: Registry, group_id: str) -> Group:
    group = registry.groups.get(group_id)
    if group is None:
        raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    return group


def _all_offsets(store: OffsetStore, group_id: str) -> Iterator[CoordinatorRecord]:
    """Yield one tombstone for each partition, whether its offset is committed, pending or both."""
    committed = store.committed(group_id)
    for partition in committed:
        yield offset_tombstone(group_id, *partition)
    for partition in store.unstable(group_id):
        if partition not in committed:
            yield offset_tombstone(group_id, *partition)
