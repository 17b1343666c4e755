"""How transactions have ended, read from the control markers in the log: the one place that never forgets it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from oncelog import errors
from oncelog.client.cluster import ClusterClient
from oncelog.client.outcomes import raise_for_error
from oncelog.client.types import TopicPartition
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages import fetch as fe
from oncelog.protocol.messages import list_offsets as lo
from oncelog.protocol.records import decode_control, iter_batches
from oncelog.protocol.schema import NO_UUID

EARLIEST = -2
FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 50
FETCH_VERSION = 12
"""The newest version of Fetch with topic names."""


class Marker(StrEnum):
    """What the first control marker of a producer behind an offset says."""

    COMMIT = "commit"
    ABORT = "abort"
    MISSING = "missing"
    """There is none, and waiting did not bring it."""
    GONE = "gone"
    """The log begins behind that offset (retention, DeleteRecords, topic deleted)."""


class Place(NamedTuple):
    """Where a producer's marker is looked for: the first one behind `after`."""

    at: TopicPartition
    producer_id: int
    after: int


async def find_markers(cluster: ClusterClient, places: Iterable[Place], wait_ms: float) -> list[Marker]:
    """For each place the first control marker of its producer, waiting for those that have not come yet."""
    wanted = list(places)
    by_partition: dict[TopicPartition, list[Place]] = {}
    for place in wanted:
        by_partition.setdefault(place.at, []).append(place)
    until = asyncio.get_running_loop().time() + wait_ms / 1000
    found: dict[Place, Marker] = {}
    await asyncio.gather(*(_search(cluster, at, mine, found, until) for at, mine in by_partition.items()))
    return [found.get(place, Marker.MISSING) for place in wanted]


async def _search(
    cluster: ClusterClient, at: TopicPartition, places: list[Place], found: dict[Place, Marker], until: float
) -> None:
    now = asyncio.get_running_loop().time
    position = min(place.after for place in places) + 1
    while any(place not in found for place in places):
        try:
            answer = await _fetch(cluster, at, position)
            if answer.error_code:
                position = await _earliest(cluster, at)
                found.update({p: Marker.GONE for p in places if p not in found and p.after < position})
                continue
        except errors.UnknownTopicError:
            found.update({place: Marker.GONE for place in places if place not in found})
            return
        for header, view in iter_batches(answer.records or b"", partial_ok=True):
            position = max(position, header.next_offset)
            if header.is_control and header.count:  # compaction may leave the batch for its producer, not the marker
                commit, _ = decode_control(view)
                for place in places:
                    if place.producer_id == header.producer_id and place.after < header.base_offset:
                        found.setdefault(place, Marker.COMMIT if commit else Marker.ABORT)
        if position >= answer.high_watermark and now() > until:
            return


async def _fetch(cluster: ClusterClient, at: TopicPartition, offset: int) -> fe.PartitionData:
    """One Fetch of everything, committed or not; its error code is left there where the offset is out of range."""
    partition = fe.FetchPartition(
        partition=at[1], fetch_offset=offset, partition_max_bytes=FETCH_BYTES, replica_directory_id=NO_UUID
    )
    request = fe.FetchRequest(
        replica_id=-1,
        replica_state=fe.ReplicaState(replica_id=-1, replica_epoch=-1),
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=0,
        session_id=0,
        forgotten_topics_data=[],
        rack_id="",
        topics=[fe.FetchTopic(topic=at[0], topic_id=NO_UUID, partitions=[partition])],
    )
    response = await cluster.call_leader(*at, request, FETCH_VERSION)
    answer: fe.PartitionData = response.responses[0].partitions[0]
    if answer.error_code and answer.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        raise errors.error_for(answer.error_code, f"Fetch of {at[0]}-{at[1]} at {offset}")
    return answer


async def _earliest(cluster: ClusterClient, at: TopicPartition) -> int:
    topic = lo.ListOffsetsTopic(
        name=at[0], partitions=[lo.ListOffsetsPartition(partition_index=at[1], timestamp=EARLIEST)]
    )
    request = lo.ListOffsetsRequest(replica_id=-1, isolation_level=0, timeout_ms=30_000, topics=[topic])
    response = await cluster.call_leader(*at, request)
    raise_for_error(response, f"ListOffsets of {at[0]}-{at[1]}")
    offset: int = response.topics[0].partitions[0].offset
    return offset
