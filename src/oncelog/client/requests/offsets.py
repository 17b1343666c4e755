"""Requests for offsets by time and for groups' committed offsets, by leader or coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from oncelog import errors
from oncelog.client.connections.versions import ByVersion
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.group_offsets import GroupMetadata, OffsetAndMetadata
from oncelog.client.requests.broker_fanout import BrokerFanout, ask_by_node
from oncelog.client.response_errors import partition_answer, raise_for_error, require_answers
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from oncelog.protocol.topics import TopicPartition

LATEST = -1
EARLIEST = -2
CONSUMER = -1
DEBUGGING = -2
"""Replica id with which the end is the log end offset, whatever the isolation level."""

COMMIT_VERSION = 9
FETCH_VERSION = 9
"""The last versions in which topics go by name."""


class Listed(NamedTuple):
    """The offset of a record at or after a time, with the record's timestamp (ms) and leader epoch.

    `offset` is -1 if there is no such record.
    """

    offset: int
    timestamp: int
    leader_epoch: int


async def list_offsets(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: int = 0,
    replica_id: int = CONSUMER,
    node: int | None = None,
    timeout_ms: float | None = None,
    patience_ms: float | None = None,
    into: dict[TopicPartition, Listed] | None = None,
) -> dict[TopicPartition, Listed]:
    """Return an offset by partition for a timestamp each (`EARLIEST`, `LATEST` or ms), from all leaders at once.

    With the replica id `DEBUGGING`, the replicas of the broker `node` can be asked instead of the leaders.
    Errors, `timeout_ms`, `patience_ms` and `into` are those of `ask_by_node`.
    """
    now = asyncio.get_running_loop().time
    limit = now() + (cluster.api_timeout_ms if timeout_ms is None else timeout_ms) / 1000

    async def where(tp: TopicPartition) -> int:
        if node is not None:
            return node
        left_ms = None if timeout_ms is None else max(0.0, (limit - now()) * 1000)
        return (await cluster.partition(*tp, timeout_ms=left_ms)).leader

    def make(partitions: list[TopicPartition]) -> ListOffsetsRequest:
        topics = [
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=tp[1], timestamp=wanted[tp]) for tp in tps],
            )
            for topic, tps in groupby(sorted(partitions), key=lambda tp: tp[0])
        ]
        return ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation_level, topics=topics)

    fanout = BrokerFanout(
        where=where,
        make=make,
        read=_listed,
        moved=lambda tp, code: cluster.topology.forget(tp[0]),
        name=lambda tp: f"the offset of {tp[0]}-{tp[1]}",
    )
    return await ask_by_node(cluster, fanout, wanted, timeout_ms=timeout_ms, patience_ms=patience_ms, into=into)


def _listed(response: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, ErrorCode, Listed]]:
    for topic in response.topics:
        for item in topic.partitions:
            found = Listed(item.offset, item.timestamp, item.leader_epoch)
            yield (topic.name, item.partition_index), ErrorCode.of(item.error_code), found


async def fetch_committed(
    cluster: ClusterClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    member: GroupMetadata | None = None,
    require_stable: bool = True,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a group's committed offsets, of these partitions or of all. Omit partitions without an offset.

    With `require_stable`, wait for transactions that have pending offsets of the group (KIP-447). Raise KafkaError if
    the response lacks a partition, because that does not mean that the partition has no offset.
    """
    wanted = None if partitions is None else set(partitions)
    topics = None
    if wanted is not None:
        topics = [(topic, [p for _, p in tps]) for topic, tps in groupby(sorted(wanted), key=lambda tp: tp[0])]

    def request(version: int) -> OffsetFetchRequest:
        made = OffsetFetchRequest(require_stable=require_stable and version >= 7)
        if version < 8:
            made.group_id, made.topics = group_id, None
            if topics is not None:
                made.topics = [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in topics]
            return made
        named = None if topics is None else [OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in topics]
        asked = OffsetFetchRequestGroup(group_id=group_id, topics=named)
        if version >= 9 and member is not None and member.member_id:
            asked.member_id, asked.member_epoch = member.member_id, -1
        made.groups = [asked]
        return made

    response = await cluster.call_coordinator(
        "group", group_id, ByVersion(OffsetFetchRequest, request, FETCH_VERSION), timeout_ms=timeout_ms
    )
    return _committed(response, group_id, wanted or ())


def _committed(
    response: OffsetFetchResponse, group_id: str, wanted: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    answer = response.groups[0] if response.groups else response  # several groups a request since version 8
    code = ErrorCode.of(answer.error_code)
    if code is not ErrorCode.NONE:
        raise errors.error_for(code, f"committed offsets of group {group_id!r}: {code.text}")
    found = {}
    answered = set()
    for topic in answer.topics:
        for item in topic.partitions:
            answered.add((topic.name, item.partition_index))
            code = ErrorCode.of(item.error_code)
            if code is not ErrorCode.NONE:
                raise errors.error_for(code, f"committed offset of {topic.name}-{item.partition_index}: {code.text}")
            if item.committed_offset >= 0:
                found[topic.name, item.partition_index] = OffsetAndMetadata(
                    item.committed_offset, item.committed_leader_epoch, item.metadata or ""
                )
    require_answers(wanted, answered, f"committed offsets of group {group_id!r}")
    return found


async def commit(
    cluster: ClusterClient,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, int],
    *,
    timeout_ms: float | None = None,
) -> None:
    """Commit offsets of a group. Raises KafkaError; GroupError if the membership has ended."""
    if not offsets:
        return
    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[_commit_of(tp[1], OffsetAndMetadata.of(offsets[tp])) for tp in tps],
        )
        for topic, tps in groupby(sorted(offsets), key=lambda tp: tp[0])
    ]
    request = OffsetCommitRequest(
        group_id=group.group_id,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=topics,
    )
    response = await cluster.call_coordinator("group", group.group_id, request, COMMIT_VERSION, timeout_ms=timeout_ms)
    answered = set()
    for answer in response.topics:
        for item in answer.partitions:
            answered.add((answer.name, item.partition_index))
            code = ErrorCode.of(item.error_code)
            if code is not ErrorCode.NONE:
                raise errors.error_for(
                    code, f"commit of {answer.name}-{item.partition_index} by group {group.group_id!r}: {code.text}"
                )
    require_answers(offsets, answered, f"commit by group {group.group_id!r}")


def _commit_of(partition: int, offset: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


async def delete_records(cluster: ClusterClient, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records before an offset in each partition. Return (topic, partition) -> new first offset.

    `offsets` maps (topic, partition) to an offset, or to -1 for all current records (Kafka's DeleteRecords). Raises
    OffsetOutOfRangeError if the offset is after the high watermark, RequestError (POLICY_VIOLATION) if the topic is
    compacted only, and UnknownTopicError.
    """

    async def one(topic: str, partition: int, offset: int) -> int:
        wanted = DeleteRecordsTopic(
            name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=offset)]
        )
        request = DeleteRecordsRequest(topics=[wanted], timeout_ms=cluster.request_timeout_ms)
        response: DeleteRecordsResponse = await cluster.call_leader(topic, partition, request)
        raise_for_error(response, f"{topic}-{partition}")
        low_watermark: int = partition_answer(response.topics, (topic, partition), "DeleteRecords").low_watermark
        return low_watermark

    starts = await asyncio.gather(*(one(*tp, offset) for tp, offset in offsets.items()))
    return dict(zip(offsets, starts, strict=True))
