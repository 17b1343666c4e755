"""Reading one partition without a consumer: no session, no position, no group."""

from __future__ import annotations

from oncelog import errors
from oncelog.client.cluster import ClusterClient
from oncelog.client.types import TopicPartition
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState
from oncelog.protocol.schema import NO_UUID

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
) -> PartitionData:
    """One Fetch from an offset on; its error code is left in the answer where the offset is out of range."""
    topic, number = at
    partition = FetchPartition(
        partition=number, fetch_offset=offset, partition_max_bytes=max_bytes, replica_directory_id=NO_UUID
    )
    request = FetchRequest(
        replica_id=-1,
        replica_state=ReplicaState(replica_id=-1, replica_epoch=-1),
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        forgotten_topics_data=[],
        rack_id="",
        topics=[FetchTopic(topic=topic, topic_id=NO_UUID, partitions=[partition])],
    )
    response = await cluster.call_leader(topic, number, request, FETCH_VERSION)
    answer: PartitionData = response.responses[0].partitions[0]
    if answer.error_code and answer.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        raise errors.error_for(answer.error_code, f"Fetch of {topic}-{number} at {offset}")
    return answer
