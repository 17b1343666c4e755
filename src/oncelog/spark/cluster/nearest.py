"""Fetch a partition from the replica in this rack, if its leader names one (KIP-392)."""

from __future__ import annotations

import time

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests.partition_fetch import fetch_partition
from oncelog.net.connection import NoCommonVersionError
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.topics import TopicPartition


class NearestReplica:
    """Where to fetch one partition: the leader, or for `age_s` seconds the follower that it has named for `rack`.

    If the follower fails, the leader serves the partition for `age_s` seconds.
    """

    def __init__(self, rack: str, age_s: float) -> None:
        self._rack = rack
        self._age = age_s
        self._follower: int | None = None
        self._until = 0.0

    async def fetch(
        self, cluster: ClusterClient, at: TopicPartition, offset: int, isolation: int, max_bytes: int, max_wait_ms: int
    ) -> PartitionData:
        """Send one Fetch, as `fetch_partition` does. A leader that names a follower costs a second one."""

        async def send(rack: str = "", node: int | None = None) -> PartitionData:
            return await fetch_partition(
                cluster,
                at,
                offset,
                isolation_level=isolation,
                max_bytes=max_bytes,
                max_wait_ms=max_wait_ms,
                rack=rack,
                node=node,
            )

        fresh = time.monotonic() < self._until
        if self._follower is None or not fresh:
            answer = await send("" if fresh else self._rack)
            named = answer.preferred_read_replica
            if answer.error_code or named < 0 or answer.records:
                return answer
            self._follower, self._until = named, time.monotonic() + self._age
        try:
            answer = await send(self._rack, self._follower)
            if not answer.error_code:  # a follower may lag behind: for an error, only the leader's response counts
                return answer
        except (ConnectionLostError, NoCommonVersionError, errors.KafkaError):
            pass
        self._follower, self._until = None, time.monotonic() + self._age
        return await send()
