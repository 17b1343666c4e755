"""Describe the log directories of brokers (KIP-113, 827)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oncelog.client.admin.topics import describe_cluster
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.requests.broker_fanout import gather_brokers
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from oncelog.protocol.topics import TopicPartition


@in_notebooks()
class ReplicaSize(NamedTuple):
    """A replica in a log directory: the bytes of its segments, and the offsets from its end to the high watermark."""

    size_bytes: int
    offset_lag: int


@in_notebooks()
class LogDir(NamedTuple):
    """A log directory of a broker, with the size of each replica in it, by (topic, partition).

    `online` is false after its disk has failed. `total_bytes` and `usable_bytes` are those of the file system, or -1 if
    unknown.
    """

    broker: int
    path: str
    online: bool
    total_bytes: int
    usable_bytes: int
    replicas: dict[TopicPartition, ReplicaSize]


async def describe_log_dirs(
    cluster: ClusterClient,
    brokers: Sequence[int] | None = None,
    partitions: Iterable[TopicPartition] | None = None,
) -> list[LogDir]:
    """Return the log directories of brokers: file system space, replicas with their sizes, and whether each is online.

    `brokers` are node ids (default: all running brokers). With `partitions`, return only replicas of these (topic,
    partition) pairs. Raises RequestError (BROKER_ID_NOT_REGISTERED).
    """
    for broker in brokers or ():
        await cluster.require_broker(broker)
    asked: list[DescribableLogDirTopic] | None = None
    if partitions is not None:
        indexes: dict[str, list[int]] = {}
        for topic, index in partitions:
            indexes.setdefault(topic, []).append(index)
        asked = [DescribableLogDirTopic(topic=topic, partitions=found) for topic, found in indexes.items()]
    # Metadata responses also list a broker that has just stopped, and gather_brokers() would wait for it.
    if brokers is None:
        brokers = [item.node_id for item in (await describe_cluster(cluster)).brokers]
    answers = await gather_brokers(cluster, lambda: DescribeLogDirsRequest(topics=asked), brokers)
    found = []
    for node, response in answers.items():
        for result in response.results:
            offline = result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            if not offline:
                raise_for_error(result, f"log directory {result.log_dir} of broker {node}")
            replicas = {
                (topic.name, each.partition_index): ReplicaSize(each.partition_size, each.offset_lag)
                for topic in result.topics
                for each in topic.partitions
            }
            found.append(LogDir(node, result.log_dir, not offline, result.total_bytes, result.usable_bytes, replicas))
    return found
