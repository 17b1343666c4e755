"""Offsets by time, and what groups have committed: requests over many partitions, by leader or coordinator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.cluster import ClusterClient
from oncelog.client.committed import OffsetAndMetadata
from oncelog.client.group_metadata import GroupMetadata
from oncelog.client.outcomes import raise_for_error
from oncelog.client.types import TopicPartition
from oncelog.client.versions import ByVersion
from oncelog.net.connection import ConnectionLostError
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

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
CONSUMER = -1
DEBUGGING = -2
"""Replica id with which the end is the log end offset, whatever the isolation level."""

COMMIT_VERSION = 9
FETCH_VERSION = 9
"""The last versions in which topics go by name."""


class Listed(NamedTuple):
    """An offset found; `offset` -1 if there is none (no record at or after a time)."""

    offset: int
    timestamp: int
    leader_epoch: int


async def list_offsets(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: int = 0,
    replica_id: int = CONSUMER,
    timeout_ms: float | None = None,
    patience_ms: float | None = None,
    into: dict[TopicPartition, Listed] | None = None,
) -> dict[TopicPartition, Listed]:
    """Offset by partition for a timestamp each (`EARLIEST`, `LATEST` or ms); leaders are asked at the same time.

    What passes by itself is tried again; other errors are raised, as is what is left when `timeout_ms` are over
    (default: the cluster's api_timeout_ms), TimedOutError if that is nothing but time. For `patience_ms` it is tried
    again: an answer under way is waited for beyond them. What was found goes to `into` as it comes: it is there though
    others fail.
    """
    loop = asyncio.get_running_loop()
    within_ms = cluster.api_timeout_ms if timeout_ms is None else timeout_ms
    limit = loop.time() + within_ms / 1000
    patient_until = limit if patience_ms is None else loop.time() + patience_ms / 1000
    found: dict[TopicPartition, Listed] = {} if into is None else into
    left = dict(wanted)
    backoff = Backoff(50, 1000)
    failure: errors.KafkaError | None = None
    try:
        async with asyncio.timeout_at(limit) as scope:
            while left:
                metadata_ms = None if timeout_ms is None else max(0.0, (limit - loop.time()) * 1000)
                failure = await _ask_leaders(cluster, left, found, isolation_level, replica_id, metadata_ms)
                if failure is not None:
                    delay = backoff.next_ms(random.random()) / 1000
                    if loop.time() + delay > min(limit, patient_until):
                        raise failure
                    await asyncio.sleep(delay)
    except TimeoutError:
        if not scope.expired():
            raise
        why = cluster.unreachable and f": {cluster.unreachable}"
        raise failure or errors.TimedOutError(
            f"the offsets of {_named(left)} are not known in {within_ms:.0f} ms{why}"
        ) from None
    return found


async def _ask_leaders(
    cluster: ClusterClient,
    left: dict[TopicPartition, int],
    found: dict[TopicPartition, Listed],
    isolation_level: int,
    replica_id: int,
    metadata_ms: float | None,
) -> errors.KafkaError | None:
    """Once, each leader; what was answered goes from `left` to `found`. Why something is left, if it is."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for tp in left:
        by_leader.setdefault((await cluster.partition(*tp, timeout_ms=metadata_ms)).leader, []).append(tp)
    answers = await asyncio.gather(
        *(_ask(cluster, node, {tp: left[tp] for tp in tps}, isolation_level, replica_id)
          for node, tps in by_leader.items()),
        return_exceptions=True,
    )  # fmt: skip
    failure: errors.KafkaError | None = None
    for answer, (node, tps) in zip(answers, by_leader.items(), strict=True):
        if isinstance(answer, ConnectionLostError | errors.RetriableError):
            failure = answer if isinstance(answer, errors.KafkaError) else errors.ConnectionFailedError(str(answer))
            _forget(cluster, tps)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            failure = _take(cluster, answer, found, left) or failure
            missing = [tp for tp in tps if tp in left]
            if missing and failure is None:
                failure = errors.KafkaError(f"broker {node} left {_named(missing)} out of its answer")
                _forget(cluster, missing)
    return failure


def _named(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))


def _forget(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> None:
    for topic, _ in partitions:
        cluster.topology.forget(topic)


async def _ask(
    cluster: ClusterClient, node: int, wanted: Mapping[TopicPartition, int], isolation_level: int, replica_id: int
) -> ListOffsetsResponse:
    if node < 0:
        raise errors.error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader for {_named(wanted)}")
    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[ListOffsetsPartition(partition_index=tp[1], timestamp=wanted[tp]) for tp in tps],
        )
        for topic, tps in groupby(sorted(wanted), key=lambda tp: tp[0])
    ]
    request = ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation_level, topics=topics)
    connection = await cluster.connection(node)
    response: ListOffsetsResponse = await connection.call(request)
    return response


def _take(
    cluster: ClusterClient,
    response: ListOffsetsResponse,
    found: dict[TopicPartition, Listed],
    left: dict[TopicPartition, int],
) -> errors.KafkaError | None:
    """Move what was answered from `left` to `found`; the last error that passes by itself."""
    failure = None
    for topic in response.topics:
        for item in topic.partitions:
            tp = (topic.name, item.partition_index)
            code = ErrorCode.of(item.error_code)
            if code is ErrorCode.NONE:
                if left.pop(tp, None) is not None:
                    found[tp] = Listed(item.offset, item.timestamp, item.leader_epoch)
                continue
            error = errors.error_for(code, f"offsets of {tp[0]}-{tp[1]}: {code.text}")
            if not code.retriable:
                raise error
            failure = error
            cluster.topology.forget(topic.name)
    return failure


async def fetch_committed(
    cluster: ClusterClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    member: GroupMetadata | None = None,
    require_stable: bool = True,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """A group's committed offsets, of some partitions or all; those without one are left out.

    With `require_stable` it waits for transactions that hold offsets of the group (KIP-447).
    """
    topics = None
    if partitions is not None:
        topics = [(topic, [p for _, p in tps]) for topic, tps in groupby(sorted(set(partitions)), key=lambda tp: tp[0])]

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
    return _committed(response, group_id)


def _committed(response: OffsetFetchResponse, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
    answer = response.groups[0] if response.groups else response  # several groups a request since version 8
    code = ErrorCode.of(answer.error_code)
    if code is not ErrorCode.NONE:
        raise errors.error_for(code, f"committed offsets of {group_id!r}: {code.text}")
    found = {}
    for topic in answer.topics:
        for item in topic.partitions:
            code = ErrorCode.of(item.error_code)
            if code is not ErrorCode.NONE:
                raise errors.error_for(code, f"committed offset of {topic.name}-{item.partition_index}: {code.text}")
            if item.committed_offset >= 0:
                found[topic.name, item.partition_index] = OffsetAndMetadata(
                    item.committed_offset, item.committed_leader_epoch, item.metadata or ""
                )
    return found


async def commit(
    cluster: ClusterClient,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, int],
    *,
    timeout_ms: float | None = None,
) -> None:
    """Commit offsets of a group; KafkaError (GroupError when the membership has ended)."""
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
    for answer in response.topics:
        for item in answer.partitions:
            code = ErrorCode.of(item.error_code)
            if code is not ErrorCode.NONE:
                raise errors.error_for(
                    code, f"commit of {answer.name}-{item.partition_index} by {group.group_id!r}: {code.text}"
                )


def _commit_of(partition: int, offset: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


async def delete_records(cluster: ClusterClient, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records before an offset in each partition (-1: all that is committed); where each begins now.

    OffsetOutOfRangeError; KafkaError (POLICY_VIOLATION) for a topic that is only compacted.
    """

    async def one(topic: str, partition: int, offset: int) -> int:
        wanted = DeleteRecordsTopic(
            name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=offset)]
        )
        request = DeleteRecordsRequest(topics=[wanted], timeout_ms=cluster.request_timeout_ms)
        response: DeleteRecordsResponse = await cluster.call_leader(topic, partition, request)
        raise_for_error(response, f"{topic}-{partition}")
        return response.topics[0].partitions[0].low_watermark

    starts = await asyncio.gather(*(one(*tp, offset) for tp, offset in offsets.items()))
    return dict(zip(offsets, starts, strict=True))
