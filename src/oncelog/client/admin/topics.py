"""Administer topics, offsets and brokers: coroutines over `ClusterClient`.

Other subjects have their own modules. `Admin` is made of their functions.
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
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.response_errors import raise_for_error, require_answers
from oncelog.client.types import TopicPartition
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

LAST_BY_NAME = 5
"""The last version of DeleteTopics in which topics are plain names."""


class BrokerInfo(NamedTuple):
    """One broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


class ClusterInfo(NamedTuple):
    """The cluster."""

    cluster_id: str
    controller_id: int
    brokers: list[BrokerInfo]
    features: dict[str, int]


class PartitionInfo(NamedTuple):
    """One partition, with its first offset, high watermark, last stable offset and log end; -1 if it has no leader."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_end_offset: int = -1


class TopicInfo(NamedTuple):
    """One topic with its partitions."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: list[PartitionInfo]


class TopicListing(NamedTuple):
    """A topic in the list of topics."""

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int
    internal: bool


class CreatedTopic(NamedTuple):
    """A topic that was created. The numbers are -1 if the client may not read its settings."""

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
    """Create one or more topics alike, and wait until the brokers know them. -1 is the broker's default.

    `assignments` are the brokers of each partition, its leader first; they replace the two numbers. With
    `validate_only`, the broker checks the request and creates nothing. After all topics were tried, raise KafkaError
    (TOPIC_ALREADY_EXISTS, INVALID_CONFIG, INVALID_REPLICATION_FACTOR ...).
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
    require_answers([topic.name for topic in wanted], [item.name for item in response.topics], "creation of topics")
    for item in response.topics if not validate_only else ():
        await _until_known(cluster, item.name)
    return [CreatedTopic(i.name, i.topic_id, i.num_partitions, i.replication_factor) for i in response.topics]


async def _until_known(cluster: ClusterClient, name: str) -> None:
    """Wait until the brokers know a topic that the controller has created. Raises TimedOutError."""
    cluster.topology.forget(name)
    try:
        await cluster.topic(name, missing_ms=cluster.api_timeout_ms)
    except errors.UnknownTopicError:
        raise errors.TimedOutError(f"topic {name!r} was created, but the brokers do not know of it yet") from None


async def create_partitions(
    cluster: ClusterClient,
    topic: str,
    count: int,
    *,
    assignments: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
) -> None:
    """Increase a topic's partitions to `count`. Keys may map to other partitions than before.

    `assignments` are the brokers of each new partition. Raises UnknownTopicError and KafkaError (INVALID_PARTITIONS).
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
    require_answers([topic], [item.name for item in response.results], "more partitions")


async def delete_topics(cluster: ClusterClient, topics: str | Iterable[str]) -> None:
    """Delete one or more topics.

    After all were tried, raise KafkaError (UnknownTopicError, TOPIC_DELETION_DISABLED).
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
    require_answers(wanted, [item.name for item in response.responses], "deletion of topics")


async def list_topics(cluster: ClusterClient, *, internal: bool = False) -> list[TopicListing]:
    """Return all topics by name, with ids and replication factors; with `internal`, also those of the coordinators."""
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
    """Return the number of partitions by topic; with `internal`, also of the coordinators' topics."""
    return {item.name: item.partitions for item in await list_topics(cluster, internal=internal)}


async def describe_topics(cluster: ClusterClient, topics: str | Iterable[str]) -> list[TopicInfo]:
    """Return topics with leader, ISR, first offset, HW, LSO and LEO of each partition. Raises UnknownTopicError."""
    return list(await asyncio.gather(*(_describe_topic(cluster, name) for name in names(topics))))


async def _describe_topic(cluster: ClusterClient, name: str) -> TopicInfo:
    cluster.topology.forget(name)
    topic = await cluster.topic(name)
    led = [(name, p) for p, partition in topic.partitions.items() if partition.leader >= 0]
    start = dict.fromkeys(led, offset_calls.EARLIEST)
    end = dict.fromkeys(led, offset_calls.LATEST)
    found = await asyncio.gather(
        offset_calls.list_offsets(cluster, start),
        offset_calls.list_offsets(cluster, end),
        offset_calls.list_offsets(cluster, end, isolation_level=1),
        offset_calls.list_offsets(cluster, end, replica_id=offset_calls.DEBUGGING),
    )
    partitions = [
        PartitionInfo(
            index,
            partition.leader,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
            *(where[name, index].offset if (name, index) in where else -1 for where in found),
        )
        for index, partition in topic.partitions.items()
    ]
    return TopicInfo(name, topic.topic_id, topic.internal, partitions)


async def describe_cluster(cluster: ClusterClient) -> ClusterInfo:
    """Return brokers, controller, and finalized features."""
    response = await cluster.call_any(DescribeClusterRequest())
    raise_for_error(response, "cluster")
    brokers = [BrokerInfo(item.broker_id, item.host, item.port, item.rack) for item in response.brokers]
    return ClusterInfo(response.cluster_id, response.controller_id, sorted(brokers), await cluster.features())


async def offsets_for(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], *, committed_only: bool = False
) -> dict[TopicPartition, int]:
    """Return an offset by partition for a timestamp each: ms since the epoch, or -2, -1, -3.

    -2 is the first offset, -1 the end, -3 the record with the highest timestamp. The offset is -1 if no record has
    the timestamp or a later one. With `committed_only`, the end is the last stable offset.
    """
    found = await offset_calls.list_offsets(cluster, wanted, isolation_level=int(committed_only))
    return {tp: item.offset for tp, item in found.items()}
