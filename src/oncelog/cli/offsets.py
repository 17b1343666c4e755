"""Where partitions begin and end, asked of their leaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncelog.cli.common import check
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from oncelog.client.cluster import ClusterClient

LATEST = -1
EARLIEST = -2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CONSUMER, TOOL = -1, -2
"""Replica ids: a tool sees what is in the log though it is not committed yet."""


async def list_offset(
    cluster: ClusterClient,
    topic: str,
    partition: int,
    timestamp: int,
    isolation: int = READ_UNCOMMITTED,
    replica_id: int = CONSUMER,
) -> int:
    """The offset of a timestamp (ms, `LATEST`, `EARLIEST`) in a partition; -1: no record is so late."""
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=replica_id, isolation_level=isolation, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]
    )
    response: ListOffsetsResponse = await cluster.call_leader(topic, partition, request)
    answer = response.topics[0].partitions[0]
    check(answer.error_code, f"{topic}-{partition}")
    return answer.offset


async def list_offsets(
    cluster: ClusterClient,
    topic: str,
    partitions: Sequence[int],
    timestamp: int,
    isolation: int = READ_UNCOMMITTED,
    replica_id: int = CONSUMER,
) -> dict[int, int]:
    """The same for several partitions at a time."""
    import asyncio

    found = await asyncio.gather(
        *(list_offset(cluster, topic, partition, timestamp, isolation, replica_id) for partition in partitions)
    )
    return dict(zip(partitions, found, strict=True))
