"""OffsetCommit, TxnOffsetCommit and OffsetFetch.

Topics come with their names, and ids where they are known, and exist: the broker has looked. After Kafka's
`OffsetMetadataManager` and `ClassicGroup.validateOffsetCommit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from oncelog.coordinator.clock import Now
from oncelog.coordinator.effects import Effects
from oncelog.coordinator.groups.group import Group
from oncelog.coordinator.groups.offsets import OffsetStore
from oncelog.coordinator.groups.records import CommittedOffset, offset_record
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.groups.states import GroupState
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from oncelog.protocol.schema import NO_UUID

NO_RETENTION_TIME = -1
_LATEST_MS = 2**63 - 1
_KNOWS_GROUP_NOT_FOUND = 9


def commit(
    registry: Registry, request: OffsetCommitRequest, version: int, effects: Effects, now: Now
) -> OffsetCommitResponse:
    """Commits what it may; an error of the group is raised, and is every partition's."""
    generation = request.generation_id_or_member_epoch
    group = registry.groups.get(request.group_id)
    if group is None and generation >= 0:
        code = ErrorCode.GROUP_ID_NOT_FOUND if version >= _KNOWS_GROUP_NOT_FOUND else ErrorCode.ILLEGAL_GENERATION
        raise ProtocolError(code, f"there is no group {request.group_id}")
    if group is not None:
        check_commit(group, request.member_id, request.group_instance_id, generation, transactional=False)
        member = group.members.get(request.member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            registry.heard(group, member, now)
    expire_ms = None
    if request.retention_time_ms != NO_RETENTION_TIME:
        expire_ms = min(now.wall_ms + request.retention_time_ms, _LATEST_MS)
    response = OffsetCommitResponse()
    for topic in request.topics:
        answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answer)
        for partition in topic.partitions:
            error = _metadata_error(registry, partition.committed_metadata)
            answer.partitions.append(
                OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            )
            if error is ErrorCode.NONE:
                committed = _committed(partition, now, expire_ms, topic.topic_id)
                effects.records.append(
                    offset_record(request.group_id, topic.name, partition.partition_index, committed)
                )
    return response


def commit_transactional(
    registry: Registry, request: TxnOffsetCommitRequest, effects: Effects, now: Now
) -> TxnOffsetCommitResponse:
    """Offsets that stay pending until the producer's marker; a member of a former generation is refused (KIP-447)."""
    group = registry.groups.get(request.group_id)
    if group is None and request.generation_id >= 0:
        raise ProtocolError(ErrorCode.ILLEGAL_GENERATION, f"there is no group {request.group_id}")
    if group is not None:
        check_commit(group, request.member_id, request.group_instance_id, request.generation_id, transactional=True)
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        answer = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(answer)
        for partition in topic.partitions:
            error = _metadata_error(registry, partition.committed_metadata)
            answer.partitions.append(
                TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            )
            if error is ErrorCode.NONE:
                committed = _committed(partition, now)
                effects.records.append(
                    offset_record(request.group_id, topic.name, partition.partition_index, committed)
                )
    return response


def check_commit(
    group: Group, member_id: str, group_instance_id: str | None, generation: int, *, transactional: bool
) -> None:
    """Whether who commits belongs to the group as it is now; raises what is wrong.

    Generation -1 is somebody who assigns by hand (group empty), or an old transactional producer that does not say.
    """
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation >= 0 or member_id or group_instance_id is not None:
        group.check_member(member_id, group_instance_id)
        if generation != group.generation:
            message = f"generation {generation}, but the group is in {group.generation}"
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION, message)
    elif not transactional and group.state is not GroupState.EMPTY:
        raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} has members; who commits is none")
    if not transactional and group.state is GroupState.COMPLETING_REBALANCE:
        message = f"group {group.group_id} waits for its assignment"
        raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS, message)


def fetch(store: OffsetStore, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
    """The committed offsets that are asked for (all when `topics` is None); -1 where there is none."""
    offsets = store.committed(request.group_id)
    topics = request.topics
    if topics is None:
        topics = all_topics(offsets)
    response = OffsetFetchResponseGroup(group_id=request.group_id)
    for topic in topics:
        answer = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answer)
        for index in topic.partition_indexes:
            partition = topic.name, index
            if require_stable and store.is_unstable(request.group_id, partition):
                answer.partitions.append(no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                continue
            committed = offsets.get(partition)
            if committed is None or _is_of_another_topic(committed, topic):
                answer.partitions.append(no_offset(index))
            else:
                answer.partitions.append(
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        metadata=committed.metadata,
                    )
                )
    return response


def no_offset(index: int, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    """What stands for a partition without a committed offset, or with an error."""
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=error
    )


def all_topics(offsets: Iterable[tuple[str, int]]) -> list[OffsetFetchRequestTopics]:
    """Return the partitions grouped by topic."""
    partitions: dict[str, list[int]] = {}
    for name, index in offsets:
        partitions.setdefault(name, []).append(index)
    return [OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in partitions.items()]


def _is_of_another_topic(committed: CommittedOffset, topic: OffsetFetchRequestTopics) -> bool:
    """Whether the offset is that of a deleted topic of the same name."""
    return NO_UUID not in (committed.topic_id, topic.topic_id) and committed.topic_id != topic.topic_id


def _metadata_error(registry: Registry, metadata: str | None) -> ErrorCode:
    if metadata is not None and _utf16_length(metadata) > registry.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _utf16_length(text: str) -> int:
    """Kafka measures with Java's `String.length`."""
    return len(text) + sum(character > "\uffff" for character in text)


def _committed(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    now: Now,
    expire_ms: int | None = None,
    topic_id: UUID = NO_UUID,
) -> CommittedOffset:
    return CommittedOffset(
        partition.committed_offset,
        max(-1, partition.committed_leader_epoch),
        partition.committed_metadata or "",
        now.wall_ms,
        expire_ms,
        topic_id,
    )
