"""Find transactions that hang (KIP-664).

A transaction hangs if it is open in a partition for longer than the largest timeout, and no coordinator will end it
there. Consumers with read_committed then wait forever.

Coordinators omit what the client may not see, and a coordinator that is down shows nothing, both without an error. To
abort a transaction that goes on loses records whose commit is acknowledged. So a transaction counts as hanging only if
nothing can be missing. Kafka's `kafka-transactions.sh find-hanging` does not check this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oncelog import errors
from oncelog.client.admin.transactions import (
    MAX_TRANSACTION_TIMEOUT_MS,
    ProducerInfo,
    coordinated,
    describe_producers,
    producers_in,
)
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.requests.broker_fanout import ask_once
from oncelog.client.response_errors import raise_for_error, require_answers
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.topics import TRANSACTION_STATE, TopicPartition

PARTITIONS_A_REQUEST = 500
UNUSED_IDS = tuple(f"{start}5b0f9e0c-6a3c-4b8e-9d52-1d1f6a0f7c11" for start in ("oncelog ", "", "~"))
"""Transactional ids that nobody uses. No ACL for a prefix has all of them, because their first characters differ."""


@in_notebooks()
class HangingTransaction(NamedTuple):
    """An open transaction in a partition that no coordinator will end, with the producer that began it."""

    topic: str
    partition: int
    producer: ProducerInfo


async def find_hanging(
    cluster: ClusterClient,
    topic: str | None = None,
    partition: int | None = None,
    *,
    broker: int | None = None,
    older_than_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
) -> list[HangingTransaction]:
    """Return open transactions that no coordinator will end (KIP-664). They block consumers with read_committed.

    Search a topic, one `partition` of it, or the replicas on `broker` (a node id). Without these, search all topics.
    `older_than_ms` is the brokers' transaction.max.timeout.ms. The result omits producers that have written within that
    time. End a hanging transaction with `abort_transaction`.

    If the search finds an open transaction that no coordinator shows, all coordinators must be online, and the client
    needs DESCRIBE on all transactional ids and on the topic `__transaction_state`. Otherwise, nobody can tell whether
    it hangs: raises AuthorizationError, or RetriableError. A DENY for some transactional ids is not noticed. Raises
    UnknownTopicError, or RequestError (BROKER_ID_NOT_REGISTERED).
    """
    where = await _places(cluster, topic, partition, broker)
    now_ms = int(time.time() * 1000)
    asked = [
        (node, mine[begin : begin + PARTITIONS_A_REQUEST])
        for node in sorted(set(where.values()))
        for mine in [[tp for tp, at in where.items() if at == node]]
        for begin in range(0, len(mine), PARTITIONS_A_REQUEST)
    ]
    answers = await asyncio.gather(*(_open_in(cluster, node, some) for node, some in asked))
    old = [item for some in answers for item in some if now_ms - item.producer.last_timestamp > older_than_ms]
    return await without_coordinator(cluster, old)


async def _places(
    cluster: ClusterClient, topic: str | None, partition: int | None, broker: int | None
) -> dict[TopicPartition, int]:
    """Return partition -> the broker to send its request to."""
    if broker is not None:
        await cluster.require_broker(broker)
    if topic is None:
        topics = await cluster.topics(internal=True)
    else:
        topics = {topic: await cluster.topic(topic)}
        if partition is not None:
            await cluster.partition(topic, partition)
    return {
        (name, index): found.leader if broker is None else broker
        for name, each in sorted(topics.items())
        for index, found in sorted(each.partitions.items())
        if (found.leader >= 0 if broker is None else broker in found.replicas)
        and (partition is None or partition == index)
    }


async def _open_in(cluster: ClusterClient, node: int, partitions: Sequence[TopicPartition]) -> list[HangingTransaction]:
    """Return all open transactions in these partitions of one broker."""
    by_topic: dict[str, list[int]] = {}
    for name, index in partitions:
        by_topic.setdefault(name, []).append(index)
    response = await cluster.call_broker(
        node,
        DescribeProducersRequest(
            topics=[TopicRequest(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()]
        ),
    )
    found = []
    for topic in response.topics:
        for each in topic.partitions:
            raise_for_error(each, f"producers of {topic.name}-{each.partition_index}")
            found += [
                HangingTransaction(topic.name, each.partition_index, producer)
                for producer in producers_in(each)
                if producer.transaction_start >= 0
            ]
    answered = [(topic.name, each.partition_index) for topic in response.topics for each in topic.partitions]
    require_answers(partitions, answered, "producers of partitions")
    return found


async def without_coordinator(
    cluster: ClusterClient, candidates: Iterable[HangingTransaction]
) -> list[HangingTransaction]:
    """Return the candidates that no coordinator will end in that partition.

    Raises the errors of `all_coordinators` if a candidate is left that no coordinator shows. The leaders are asked
    after the coordinators, because a transaction may have ended meanwhile, and its producer begun the next one.
    """
    left = await _not_shown(cluster, candidates)
    if not left:
        return []
    coordinators = await all_coordinators(cluster)
    left = await _not_shown(cluster, left)
    if await all_coordinators(cluster) != coordinators:  # one that moves may be in no list
        about = "transaction coordinators have moved during the search, so it is not known which transactions hang"
        raise errors.error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, about)
    places = sorted({(item.topic, item.partition) for item in left})
    answers = await asyncio.gather(*(describe_producers(cluster, *tp) for tp in places))
    still = {_identity(*tp, each) for tp, some in zip(places, answers, strict=True) for each in some}
    return sorted(item for item in left if _identity(*item) in still)


async def _not_shown(cluster: ClusterClient, candidates: Iterable[HangingTransaction]) -> list[HangingTransaction]:
    """Return the candidates that no coordinator shows with their partition."""
    some = list(candidates)
    shown = {
        (info.producer_id, *tp)
        for info in await coordinated(cluster, {item.producer.producer_id for item in some})
        for tp in info.partitions
    }
    return [item for item in some if (item.producer.producer_id, item.topic, item.partition) not in shown]


def _identity(topic: str, partition: int, producer: ProducerInfo) -> tuple[str, int, int, int, int]:
    """Return what stays the same while a transaction is open."""
    return topic, partition, producer.producer_id, producer.producer_epoch, producer.transaction_start


async def all_coordinators(cluster: ClusterClient) -> dict[int, tuple[int, int]]:
    """Return the leader and its epoch of each partition of `__transaction_state`: they show this client everything.

    Raises AuthorizationError if the client may not see all transactional ids, or not the topic. Raises RetriableError
    (COORDINATOR_NOT_AVAILABLE) while a partition has no leader. A DENY for some ids is not noticed.
    """
    await cluster.refresh([TRANSACTION_STATE], patient=True)
    known, brokers = cluster.topology, cluster.topology.brokers
    topic, failure = known.topics.get(TRANSACTION_STATE), known.failures.get(TRANSACTION_STATE)
    response = await ask_once(
        cluster, min(brokers, default=-1), DescribeTransactionsRequest(transactional_ids=list(UNUSED_IDS))
    )
    answers = {item.transactional_id: ErrorCode.of(item.error_code) for item in response.transaction_states}
    require_answers(UNUSED_IDS, answers, "permission to describe all transactional ids")
    for name, code in answers.items():  # brokers check the permission first
        if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise _forbidden(code, "all transactional ids", "all transactional ids ('*')")
        if code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND and not code.retriable:
            raise errors.error_for(code, f"transactional id {name!r}: {code.text}")
    if failure is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return {}  # the cluster has no transactional id yet
    if failure is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise _forbidden(failure, f"the topic {TRANSACTION_STATE!r}", f"the topic {TRANSACTION_STATE!r}")
    offline = [] if topic is None else [key for key, each in topic.partitions.items() if each.leader not in brokers]
    if topic is None or offline:
        where = f": {TRANSACTION_STATE}-{offline[0]} has no leader" if offline else ""
        about = f"transaction coordinators are offline, so it is not known which transactions hang{where}"
        raise errors.error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, about)
    return {index: (each.leader, each.leader_epoch) for index, each in topic.partitions.items()}


def _forbidden(code: ErrorCode, hidden: str, needed: str) -> errors.KafkaError:
    about = f"this client may not describe {hidden}, so it cannot tell which transactions hang. It needs DESCRIBE on "
    return errors.error_for(code, about + needed)
