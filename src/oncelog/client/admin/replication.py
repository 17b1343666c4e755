"""Describe how many in-sync replicas partitions have, and which partitions clients cannot use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oncelog.client.admin._shared import names
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

_MIN_ISR = "min.insync.replicas"
_SKIPPED = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""The topic was deleted meanwhile, or the client may not read its settings."""
_BATCH = 500
"""The most topics in one DescribeConfigs request."""


@in_notebooks()
class PartitionReplication(NamedTuple):
    """A partition: its topic and number, leader, replicas and in-sync replicas, all as node ids.

    `leader` is -1 if the partition has none. `min_isr` is the topic's `min.insync.replicas`, or None if the client is
    not authorized to read the topic's settings.
    """

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int | None

    @property
    def offline(self) -> bool:
        """Whether the partition has no leader, so that clients can neither write nor read it."""
        return self.leader < 0

    @property
    def under_min_isr(self) -> bool:
        """Whether the leader rejects writes with `acks=all`, or there is none."""
        return self.offline or (self.min_isr is not None and len(self.isr) < self.min_isr)

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is not in sync."""
        return len(self.isr) < len(self.replicas)


async def describe_replication(
    cluster: ClusterClient, topics: str | Iterable[str] | None = None
) -> list[PartitionReplication]:
    """Return the leader, replicas and in-sync replicas of partitions, without a request to their leaders.

    `topics` is a name or several. None means all topics, also the internal ones. The partitions are sorted by topic and
    number. Raises UnknownTopicError.
    """
    if topics is None:
        found = await cluster.topics(internal=True)
    else:
        wanted = names(topics)
        for name in wanted:
            cluster.topology.forget(name)
        found = {name: await cluster.topic(name) for name in wanted}
    minimums = await _min_isr(cluster, sorted(found))
    return [
        PartitionReplication(name, index, partition.leader, partition.replicas, partition.isr, minimums.get(name))
        for name, topic in sorted(found.items())
        for index, partition in topic.partitions.items()
    ]


async def _min_isr(cluster: ClusterClient, topics: Sequence[str]) -> dict[str, int]:
    """Return `min.insync.replicas` by topic, for the topics whose settings the client may read."""
    found = {}
    for first in range(0, len(topics), _BATCH):
        resources = [
            DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=[_MIN_ISR])
            for name in topics[first : first + _BATCH]
        ]
        response = await cluster.call_any(DescribeConfigsRequest(resources=resources))
        for result in response.results:
            if ErrorCode.of(result.error_code) in _SKIPPED:
                continue
            raise_for_error(result, f"settings of topic {result.resource_name!r}")
            for each in result.configs:
                if each.value:
                    found[result.resource_name] = int(each.value)
    return found
