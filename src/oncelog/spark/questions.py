"""What the protocol asks about many transactions or partitions at once, each with its coordinator or leader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from oncelog import errors
from oncelog.client.by_node import Question
from oncelog.client.cluster import COORDINATOR_MOVED, ClusterClient
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages import describe_producers as dp
from oncelog.protocol.messages import describe_transactions as dt
from oncelog.spark.commit.names import TopicPartition


def transactions(cluster: ClusterClient) -> Question[str, dt.TransactionState | None]:
    """DescribeTransactions by transactional id; None for one that its coordinator does not know."""

    async def where(name: str) -> int:
        return await cluster.coordinator("transaction", name)

    def moved(name: str, code: ErrorCode) -> None:
        if code in COORDINATOR_MOVED or code is ErrorCode.NETWORK_EXCEPTION:
            cluster.forget_coordinator("transaction", name)

    def read(
        response: dt.DescribeTransactionsResponse,
    ) -> Iterator[tuple[str, ErrorCode, dt.TransactionState | None]]:
        for state in response.transaction_states:
            if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                yield state.transactional_id, ErrorCode.NONE, None
            else:
                yield state.transactional_id, ErrorCode.of(state.error_code), state

    return Question(
        where=where,
        make=lambda ids: dt.DescribeTransactionsRequest(transactional_ids=ids),
        read=read,
        moved=moved,
        name=lambda name: f"DescribeTransactions of {name}",
    )


def producers(cluster: ClusterClient) -> Question[TopicPartition, list[dp.ProducerState]]:
    """DescribeProducers by partition; one that is deleted has no answer: nothing can be open there."""

    async def where(at: TopicPartition) -> int | None:
        try:
            return (await cluster.partition(*at)).leader
        except errors.UnknownTopicError:
            return None

    def make(partitions: list[TopicPartition]) -> dp.DescribeProducersRequest:
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, partition in partitions:
            topics[topic].append(partition)
        return dp.DescribeProducersRequest(
            topics=[dp.TopicRequest(name=t, partition_indexes=p) for t, p in topics.items()]
        )

    def read(
        response: dp.DescribeProducersResponse,
    ) -> Iterator[tuple[TopicPartition, ErrorCode, list[dp.ProducerState]]]:
        for topic in response.topics:
            for answer in topic.partitions:
                at = TopicPartition(topic.name, answer.partition_index)
                yield at, ErrorCode.of(answer.error_code), answer.active_producers

    return Question(
        where=where,
        make=make,
        read=read,
        moved=lambda at, code: cluster.topology.forget(at.topic),
        name=lambda at: f"DescribeProducers of {at.topic}-{at.partition}",
    )
