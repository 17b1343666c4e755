"""Groups whose coordinator moves to another broker, on three real brokers."""

from __future__ import annotations

import asyncio
from typing import Any

from oncelog.cluster import topic_nodes
from oncelog.cluster.changes import ChangeLog
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support.replica_cluster import ReplicaCluster

ALL = 1, 2, 3


async def committed(cluster: ReplicaCluster, broker: int, topic: str) -> int | ErrorCode:
    """Return the offset that the group has committed, -1 if there is none, or an error."""
    asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[asked])])
    group: Any = (await (await cluster.connection(broker)).call(request, 9)).groups[0]
    if group.error_code:
        return ErrorCode.of(group.error_code)
    offset: int = group.topics[0].partitions[0].committed_offset
    return offset


async def commit(cluster: ReplicaCluster, broker: int, topic: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    request = OffsetCommitRequest(group_id="g", topics=topics)
    async with asyncio.timeout(60):
        while True:
            response: Any = await (await cluster.connection(broker)).call(request, 9)
            if not response.topics[0].partitions[0].error_code:
                return
            await asyncio.sleep(0.01)


def test_offsets_of_a_topic_that_is_deleted_while_the_coordinator_is_away_are_forgotten() -> None:
    """Otherwise, the group would skip records of a new topic of the same name."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("old", ALL)
        await cluster.create("kept", ALL)
        await cluster.create(CONSUMER_OFFSETS, ALL)
        for topic in ("old", "kept"):
            await commit(cluster, 1, topic, 7)
        machine = cluster.world.brokers[1]
        machine.pause()
        topic_nodes.erase_topic(ChangeLog(cluster.world.store), cluster.broker(2).metadata.image.topics_by_name["old"])
        await cluster.eventually(lambda: cluster.state(CONSUMER_OFFSETS).leader in (2, 3))
        leader = cluster.state(CONSUMER_OFFSETS).leader
        async with asyncio.timeout(60):
            while await committed(cluster, leader, "old") != -1:
                await asyncio.sleep(0.1)
        assert await committed(cluster, leader, "kept") == 7
        machine.resume()
        await cluster.agree(CONSUMER_OFFSETS, ALL)

    ReplicaCluster.run(scenario, broker_session_timeout_ms=2000, broker_heartbeat_interval_ms=500)
