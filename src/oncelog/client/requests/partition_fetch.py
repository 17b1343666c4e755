"""Read partitions without a consumer: no session, no position, no group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from oncelog import errors
from oncelog.client.connections.versions import ByVersion
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests.broker_fanout import BrokerFanout, ask_by_node
from oncelog.client.response_errors import partition_answer
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from oncelog.protocol.schema import NO_UUID
from oncelog.protocol.topics import TopicPartition

FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 50
FETCH_VERSION = 12
"""The newest version of Fetch with topic names."""


async def fetch_partition(
    cluster: ClusterClient,
    at: TopicPartition,
    offset: int,
    *,
    isolation_level: int = 0,
    max_bytes: int = FETCH_BYTES,
    max_wait_ms: int = FETCH_WAIT_MS,
    rack: str = "",
    node: int | None = None,
) -> PartitionData:
    """Send one Fetch from an offset on. If the offset is out of range, the response has that error code.

    With `node`, send it to that broker instead of the leader, without retries. Raises ConnectionLostError then. With
    `rack`, the leader may name a follower (`preferred_read_replica`) instead of an answer.
    """
    topic, number = at
    request = _request({at: offset}, isolation_level, max_bytes, max_bytes, max_wait_ms)
    request.rack_id = rack
    if node is None:
        response = await cluster.call_leader(topic, number, request, FETCH_VERSION)
    else:
        response = await (await cluster.connection(node)).call(request, FETCH_VERSION)
    answer: PartitionData = partition_answer(response.responses, at, "Fetch")
    if answer.error_code and answer.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        raise errors.error_for(answer.error_code, f"Fetch of {topic}-{number} at offset {offset}")
    return answer


async def fetch_partitions(
    cluster: ClusterClient,
    positions: Mapping[TopicPartition, int],
    *,
    partition_bytes: int,
    max_bytes: int,
    max_wait_ms: int = FETCH_WAIT_MS,
) -> dict[TopicPartition, PartitionData]:
    """Send one Fetch to each leader, for its partitions of `positions`. Skip deleted partitions.

    A response has at most about `max_bytes`, so the last partitions in `positions` may get no records. If an offset is
    out of range, the partition's response has that error code.
    """

    async def where(at: TopicPartition) -> int | None:
        try:
            return (await cluster.partition(*at)).leader
        except errors.UnknownTopicError:
            return None

    def make(partitions: list[TopicPartition]) -> ByVersion:
        wanted = {at: positions[at] for at in partitions}
        return ByVersion(
            FetchRequest, lambda version: _request(wanted, 0, partition_bytes, max_bytes, max_wait_ms), FETCH_VERSION
        )

    fanout = BrokerFanout(
        where=where,
        make=make,
        read=_fetched,
        moved=lambda at, code: cluster.topology.forget(at[0]),
        name=lambda at: f"Fetch of {at[0]}-{at[1]}",
    )
    return await ask_by_node(cluster, fanout, positions)


def _fetched(response: FetchResponse) -> Iterator[tuple[TopicPartition, ErrorCode, PartitionData]]:
    for topic in response.responses:
        for answer in topic.partitions:
            code = ErrorCode.of(answer.error_code)
            known = code is ErrorCode.OFFSET_OUT_OF_RANGE
            yield (topic.topic, answer.partition_index), ErrorCode.NONE if known else code, answer


def _request(
    positions: Mapping[TopicPartition, int],
    isolation_level: int,
    partition_bytes: int,
    max_bytes: int,
    max_wait_ms: int,
) -> FetchRequest:
    topics: dict[str, list[FetchPartition]] = defaultdict(list)
    for (topic, number), offset in positions.items():
        topics[topic].append(
            FetchPartition(
                partition=number,
                fetch_offset=offset,
                partition_max_bytes=partition_bytes,
                replica_directory_id=NO_UUID,
            )
        )
    return FetchRequest(
        replica_id=-1,
        replica_state=ReplicaState(replica_id=-1, replica_epoch=-1),
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        forgotten_topics_data=[],
        rack_id="",
        topics=[FetchTopic(topic=topic, topic_id=NO_UUID, partitions=some) for topic, some in topics.items()],
    )
