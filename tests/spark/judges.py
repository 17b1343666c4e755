"""Read what read_committed shows and what is still open, for the sink's tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from oncelog.client.blocking import BlockingCluster
from oncelog.client.response_errors import raise_for_error
from oncelog.columns.decode import decode_batches
from oncelog.protocol.messages import create_topics as ct
from oncelog.spark.cluster import partitions
from oncelog.spark.cluster.brokers import Brokers
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.operations import DescribeProducers


def create(bootstrap: str, topic: str, count: int = 2) -> None:
    with BlockingCluster(bootstrap) as cluster:
        wanted = ct.CreatableTopic(name=topic, num_partitions=count, replication_factor=1)
        raise_for_error(cluster.call_controller(ct.CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)))
        cluster.topic(topic)


def values(bootstrap: str, topic: str, read: Callable[[bytes], str] = bytes.decode) -> Counter[str]:
    """Return how often each value is visible to read_committed, in all partitions up to their last stable offsets.

    `read` decodes a value.
    """
    seen: Counter[str] = Counter()
    with BlockingCluster(bootstrap) as cluster:
        for number in cluster.topic(topic).partitions:
            at = TopicPartition(topic, number)
            ends = partitions.list_offsets(cluster, {at: partitions.LATEST}, partitions.READ_COMMITTED)
            position = 0
            while position < ends[at]:
                answer = partitions.fetch(cluster, at, position, isolation=partitions.READ_COMMITTED)
                table, position = decode_batches(
                    [answer.records or b""],
                    topic=topic,
                    partition=number,
                    start_offset=position,
                    aborted=[(a.producer_id, a.first_offset) for a in answer.aborted_transactions or ()],
                )
                seen.update(read(value) for value in table.column("value").to_pylist())
    return seen


def open_producers(bootstrap: str, *topics: str) -> list[TopicPartition]:
    """Return the partitions with an open transaction, once for each transaction."""
    with BlockingCluster(bootstrap) as cluster:
        wanted = [TopicPartition(topic, number) for topic in topics for number in cluster.topic(topic).partitions]
        return [found.at for found in Brokers(cluster).answer(DescribeProducers(tuple(wanted)))]
