"""OffsetCommit and TxnOffsetCommit: let the group check the client, and return the records of the offsets.

The broker has checked before that the topics exist. It has filled in their names, and their ids if they are known.
Source: Kafka's `OffsetMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.group import Group
from oncelog.coordinator.groups.records import CommittedOffset, offset_record
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
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


def check_commit(group: Group | None, request: OffsetCommitRequest, version: int) -> None:
    """Raise ProtocolError unless the client may commit to the group, which may not exist yet."""
    if group is not None:
        group.check_commit(request, version)
    elif request.generation_id_or_member_epoch >= 0:
        known = version >= _KNOWS_GROUP_NOT_FOUND
        raise _no_group(request.group_id, ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)


def check_transactional_commit(
    group: Group | None, request: TxnOffsetCommitRequest, id_of: Callable[[str], UUID | None]
) -> None:
    """Raise ProtocolError unless the client may commit to the group, which may not exist yet."""
    if group is not None:
        group.check_transactional_commit(request, id_of)
    elif request.generation_id >= 0:
        raise _no_group(request.group_id, ErrorCode.ILLEGAL_GENERATION)


def accept(
    request: OffsetCommitRequest, metadata_max_bytes: int, now_ms: int
) -> tuple[OffsetCommitResponse, list[CoordinatorRecord]]:
    """Return the response to an OffsetCommit, and the records of the offsets that it accepts."""
    expire_ms = None
    if request.retention_time_ms != NO_RETENTION_TIME:
        expire_ms = min(now_ms + request.retention_time_ms, _LATEST_MS)
    response = OffsetCommitResponse()
    records = []
    for topic in request.topics:
        answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answer)
        for partition in topic.partitions:
            error = _metadata_error(partition.committed_metadata, metadata_max_bytes)
            answer.partitions.append(
                OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            )
            if error is ErrorCode.NONE:
                offset = _offset(partition, now_ms, expire_ms, topic.topic_id)
                records.append(offset_record(request.group_id, topic.name, partition.partition_index, offset))
    return response, records


def accept_transactional(
    request: TxnOffsetCommitRequest, metadata_max_bytes: int, now_ms: int
) -> tuple[TxnOffsetCommitResponse, list[CoordinatorRecord]]:
    """Return the response to a TxnOffsetCommit, and the records of the offsets that it accepts."""
    response = TxnOffsetCommitResponse()
    records = []
    for topic in request.topics:
        answer = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(answer)
        for partition in topic.partitions:
            error = _metadata_error(partition.committed_metadata, metadata_max_bytes)
            answer.partitions.append(
                TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            )
            if error is ErrorCode.NONE:
                offset = _offset(partition, now_ms)
                records.append(offset_record(request.group_id, topic.name, partition.partition_index, offset))
    return response, records


def _no_group(group_id: str, code: ErrorCode) -> ProtocolError:
    return ProtocolError(code, f"group {group_id!r} does not exist")


def _metadata_error(metadata: str | None, max_bytes: int) -> ErrorCode:
    if metadata is not None and _utf16_length(metadata) > max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _utf16_length(text: str) -> int:
    """Return the length as Java's `String.length` does, which Kafka uses."""
    return len(text) + sum(character > "\uffff" for character in text)


def _offset(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    now_ms: int,
    expire_ms: int | None = None,
    topic_id: UUID = NO_UUID,
) -> CommittedOffset:
    return CommittedOffset(
        partition.committed_offset,
        max(-1, partition.committed_leader_epoch),
        partition.committed_metadata or "",
        now_ms,
        expire_ms,
        topic_id,
    )
