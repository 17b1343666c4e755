"""Administer topics, offsets and brokers with a `ClusterClient`.

Other subjects have their own modules. The functions of all of them are the methods of `Admin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from oncelog import errors
from oncelog.client.admin._shared import names
from oncelog.client.connections.versions import ByVersion
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.topology import Partition
from oncelog.client.notebooks import in_notebooks
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.response_errors import raise_for_error, require_answers
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from oncelog.protocol.topics import TopicPartition

LAST_BY_NAME = 5
"""The last version of DeleteTopics that has only names of topics."""


@in_notebooks()
class BrokerInfo(NamedTuple):
    """A broker: its node id, address and rack (None if it has none)."""

    node_id: int
    host: str
    port: int
    rack: str | None


@in_notebooks()
class ClusterInfo(NamedTuple):
    """A cluster: its id, the node id of the controller, the brokers, and the level of each finalized feature."""

    cluster_id: str
    controller_id: int
    brokers: list[BrokerInfo]
    features: dict[str, int]


@in_notebooks()
class PartitionInfo(NamedTuple):
    """A partition: its number, leader, leader epoch, replicas, in-sync replicas and offsets.

    `leader` is a node id, or -1 if the partition has none. Then the offsets are -1, too. The offsets are the first one
    in the log, the high watermark, the last stable offset and the log end offset. `elr` are the eligible leader
    replicas: they are not in sync, but have all committed records (KIP-966).
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_end_offset: int = -1
    elr: tuple[int, ...] = ()


@in_notebooks()
class TopicInfo(NamedTuple):
    """A topic with its partitions in order. `internal` is true for the topics of the coordinators."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: list[PartitionInfo]


@in_notebooks()
class TopicListing(NamedTuple):
    """A topic in a list: its name, id, number of partitions and replication factor, and whether it is internal."""

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int
    internal: bool


@in_notebooks()
class CreatedTopic(NamedTuple):
    """A topic that was created. The numbers are -1 if the client is not authorized to read the topic's settings."""

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int


async def create_topics(
    cluster: ClusterClient,
    topics: str | Iterable[str],
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    *,
    assignments: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
) -> list[CreatedTopic]:
    """Create one or more topics, and wait until the brokers know them (Kafka's CreateTopics).

    `topics` is a name or several. All of them get the same number of partitions, replication factor and settings
    (`configs`, by Kafka's names). -1 means the broker's default. `assignments` replaces both numbers: it has, for each
    partition, the node ids of its brokers, leader first. With `validate_only`, the broker validates the request and
    creates nothing.

    If the broker rejects a topic, the others are created nevertheless. Then the first error is raised: RequestError
    (TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG).
    """
    settings = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
    placed = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
        for index, brokers in enumerate(assignments or ())
    ]
    wanted = [
        CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=placed,
            configs=settings,
        )
        for name in names(topics)
    ]
    request = CreateTopicsRequest(topics=wanted, timeout_ms=cluster.request_timeout_ms, validate_only=validate_only)
    response = await cluster.call_controller(request)
    for item in response.topics:
        if item.error_code:
            text = item.error_message or ErrorCode.of(item.error_code).text
            about = text if item.name in text else f"topic {item.name!r}: {text}"
            raise errors.error_for(item.error_code, about)
    require_answers([topic.name for topic in wanted], [item.name for item in response.topics], "CreateTopics")
    for item in response.topics if not validate_only else ():
        await _until_known(cluster, item.name)
    return [CreatedTopic(i.name, i.topic_id, i.num_partitions, i.replication_factor) for i in response.topics]


async def _until_known(cluster: ClusterClient, name: str) -> None:
    """Wait until the brokers know a topic that the controller has created. Raises TimedOutError."""
    cluster.topology.forget(name)
    try:
        await cluster.topic(name, missing_ms=cluster.api_timeout_ms)
    except errors.UnknownTopicError as error:
        raise errors.TimedOutError(f"topic {name!r} was created, but the brokers do not know it yet") from error


async def create_partitions(
    cluster: ClusterClient,
    topic: str,
    count: int,
    *,
    assignments: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
) -> None:
    """Increase the number of a topic's partitions to `count` (Kafka's CreatePartitions).

    After that, a key may belong to another partition than before. `assignments` has the node ids of the brokers of each
    new partition, leader first. With `validate_only`, nothing changes. Raises UnknownTopicError, and RequestError
    (INVALID_PARTITIONS) if the topic has `count` partitions or more.
    """
    placed = None
    if assignments is not None:
        placed = [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments]
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=placed)
    request = CreatePartitionsRequest(
        topics=[wanted], timeout_ms=cluster.request_timeout_ms, validate_only=validate_only
    )
    response = await cluster.call_controller(request)
    cluster.topology.forget(topic)
    raise_for_error(response, f"topic {topic!r}")
    require_answers([topic], [item.name for item in response.results], "CreatePartitions")


async def delete_topics(cluster: ClusterClient, topics: str | Iterable[str]) -> None:
    """Delete one or more topics and their records. `topics` is a name or several (Kafka's DeleteTopics).

    If the broker rejects a topic, the others are deleted nevertheless. Then the first error is raised:
    UnknownTopicError, or RequestError (TOPIC_DELETION_DISABLED).
    """
    wanted = names(topics)

    def request(version: int) -> DeleteTopicsRequest:
        made = DeleteTopicsRequest(timeout_ms=cluster.request_timeout_ms)
        if version <= LAST_BY_NAME:
            made.topic_names = wanted
        else:
            made.topics = [DeleteTopicState(name=name) for name in wanted]
        return made

    response = await cluster.call_controller(ByVersion(DeleteTopicsRequest, request))
    for name in wanted:
        cluster.topology.forget(name)
    for item in response.responses:
        if item.error_code:
            text = item.error_message or ErrorCode.of(item.error_code).text
            about = text if (item.name or "") in text else f"topic {item.name!r}: {text}"
            raise errors.error_for(item.error_code, about)
    require_answers(wanted, [item.name for item in response.responses], "DeleteTopics")


async def list_topics(cluster: ClusterClient, *, internal: bool = False) -> list[TopicListing]:
    """Return all topics in order of their names. With `internal`, include the coordinators' topics."""
    found = await cluster.topics(internal=internal)
    return [
        TopicListing(
            name,
            topic.topic_id,
            len(topic.partitions),
            max((len(each.replicas) for each in topic.partitions.values()), default=0),
            topic.internal,
        )
        for name, topic in sorted(found.items())
    ]


async def count_partitions(cluster: ClusterClient, *, internal: bool = False) -> dict[str, int]:
    """Return topic -> number of partitions. With `internal`, include the coordinators' topics."""
    return {item.name: item.partitions for item in await list_topics(cluster, internal=internal)}


async def describe_topics(
    cluster: ClusterClient, topics: str | Iterable[str], *, partitions: Iterable[int] | None = None
) -> list[TopicInfo]:
    """Return topics with their partitions: leader, replicas, in-sync replicas and offsets.

    `topics` is a name or several. With `partitions`, return only partitions with these numbers. Raises
    UnknownTopicError if a topic does not exist.
    """
    wanted = None if partitions is None else frozenset(partitions)
    return list(await asyncio.gather(*(_describe_topic(cluster, name, wanted) for name in names(topics))))


async def _describe_topic(cluster: ClusterClient, name: str, wanted: frozenset[int] | None) -> TopicInfo:
    cluster.topology.forget(name)
    topic = await cluster.topic(name)
    shown = {p: partition for p, partition in topic.partitions.items() if wanted is None or p in wanted}
    led = [(name, p) for p, partition in shown.items() if partition.leader >= 0]
    start = dict.fromkeys(led, offset_calls.EARLIEST)
    end = dict.fromkeys(led, offset_calls.LATEST)
    # One after the other, in the order of the offsets, which only grow: while records are written, an answer that came
    # earlier would show a log end offset before the high watermark.
    first = await offset_calls.list_offsets(cluster, start)
    stable = await offset_calls.list_offsets(cluster, end, isolation_level=1)
    committed = await offset_calls.list_offsets(cluster, end)
    last = await offset_calls.list_offsets(cluster, end, replica_id=offset_calls.DEBUGGING)
    eligible = await _eligible(cluster, name, shown)
    partitions = [
        PartitionInfo(
            index,
            partition.leader,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
            *_in_order(*(_offset(where, (name, index)) for where in (first, stable, committed, last))),
            eligible.get(index, ()),
        )
        for index, partition in shown.items()
    ]
    return TopicInfo(name, topic.topic_id, topic.internal, partitions)


async def _eligible(
    cluster: ClusterClient, name: str, partitions: Mapping[int, Partition]
) -> dict[int, tuple[int, ...]]:
    """Return the eligible leader replicas by partition. If all replicas are in sync, ask no broker: there are none."""
    cursor, found = None, dict[int, tuple[int, ...]]()
    if all(len(partition.isr) == len(partition.replicas) for partition in partitions.values()):
        return found
    while True:
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name)], cursor=cursor)
        try:
            response = await cluster.call_any(request)
        except errors.UnsupportedError:  # before Kafka 3.8
            return found
        for item in (item for topic in response.topics for item in topic.partitions):
            found[item.partition_index] = tuple(item.eligible_leader_replicas or ())
        cursor = response.next_cursor
        if cursor is None:
            return found


def _offset(found: Mapping[TopicPartition, offset_calls.Listed], partition: TopicPartition) -> int:
    return found[partition].offset if partition in found else -1


def _in_order(first: int, stable: int, committed: int, last: int) -> tuple[int, int, int, int]:
    """Return start, high watermark, last stable offset and end. A leader that is elected meanwhile may know less."""
    if min(first, stable, committed, last) < 0:
        return first, committed, stable, last
    stable = max(first, stable)
    committed = max(stable, committed)
    return first, committed, stable, max(committed, last)


async def describe_cluster(cluster: ClusterClient) -> ClusterInfo:
    """Return the cluster's id, controller, brokers and finalized features (Kafka's DescribeCluster)."""
    response = await cluster.call_any(DescribeClusterRequest())
    raise_for_error(response, "cluster")
    brokers = [BrokerInfo(item.broker_id, item.host, item.port, item.rack) for item in response.brokers]
    return ClusterInfo(response.cluster_id, response.controller_id, sorted(brokers), await cluster.features())


async def offsets_for(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], *, committed_only: bool = False
) -> dict[TopicPartition, int]:
    """Return an offset for each partition (Kafka's ListOffsets).

    `wanted` maps each (topic, partition) to a timestamp in ms since the epoch. The result is the offset of the first
    record at or after that time, or -1 if there is none. Special timestamps are -2 for the first offset, -1 for the
    end, and -3 for the record with the highest timestamp. With `committed_only`, the end is the last stable offset,
    otherwise the high watermark. Raises UnknownTopicError.
    """
    found = await offset_calls.list_offsets(cluster, wanted, isolation_level=int(committed_only))
    return {tp: item.offset for tp, item in found.items()}
