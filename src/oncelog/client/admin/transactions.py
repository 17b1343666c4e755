"""Describe and end transactions, through their coordinators and the leaders of partitions (KIP-664, 994, 1152).

A transaction hangs if a partition holds it open for longer than the longest time-out, and no coordinator will end it
there. Then read_committed readers wait for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from oncelog import errors
from oncelog.client.admin._shared import names
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests.broker_fanout import gather_brokers
from oncelog.client.response_errors import partition_answer, raise_for_error, require_answers
from oncelog.client.types import TopicPartition
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

PARTITIONS_A_REQUEST = 500
MAX_TRANSACTION_TIMEOUT_MS = 900_000
"""Kafka's default of the brokers' transaction.max.timeout.ms."""
FIRST_COORDINATOR_EPOCH = 0
"""For a producer that no marker has ended yet: no coordinator's epoch is lower."""


class TransactionListing(NamedTuple):
    """A transaction in the list of transactions; `coordinator` is the broker that reported it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int = -1


class TransactionInfo(NamedTuple):
    """The coordinator's view of a transactional id. `start_time` is in ms since the epoch, or -1 if none is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time: int
    partitions: list[TopicPartition]
    coordinator: int = -1


class ProducerInfo(NamedTuple):
    """A producer that a partition remembers. `transaction_start` is the first offset of its open transaction, or -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


class HangingTransaction(NamedTuple):
    """An open transaction in one partition that no coordinator will end. `last_timestamp` (ms) is its last record's."""

    topic: str
    partition: int
    producer: ProducerInfo


async def list_transactions(
    cluster: ClusterClient,
    states: Sequence[str] = (),
    *,
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """Return transactional ids by name, filtered by state ("Ongoing"), producer, age or pattern.

    `longer_than_ms` selects transactions that are open for longer. `pattern` is in RE2's syntax and must match the
    whole id. Raises ConfigError for an unknown state, KafkaError (INVALID_REGULAR_EXPRESSION) and UnsupportedError.
    """
    answers = await gather_brokers(
        cluster,
        lambda: ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=longer_than_ms,
            transactional_id_pattern=pattern or None,
        ),
    )
    found = []
    for node, response in answers.items():
        if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            about = f"{pattern!r} is no regular expression in RE2's syntax"
            raise errors.error_for(response.error_code, about)
        raise_for_error(response, f"transactions of broker {node}")
        if response.unknown_state_filters:
            raise errors.ConfigError(f"there is no state {response.unknown_state_filters[0]!r} of transactions")
        found += [
            TransactionListing(item.transactional_id, item.producer_id, item.transaction_state, node)
            for item in response.transaction_states
        ]
    return sorted(found)


async def describe_transaction(cluster: ClusterClient, transactional_id: str) -> TransactionInfo:
    """Return what the coordinator knows of a transactional id. Raises KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = await cluster.call_coordinator("transaction", transactional_id, request)
    answered = [item.transactional_id for item in response.transaction_states]
    require_answers([transactional_id], answered, "description of a transaction")
    [item] = response.transaction_states
    if item.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise errors.error_for(item.error_code, f"there is no transactional id {transactional_id!r}")
    raise_for_error(response, f"transactional id {transactional_id!r}")
    return TransactionInfo(
        transactional_id,
        item.transaction_state,
        item.producer_id,
        item.producer_epoch,
        item.transaction_timeout_ms,
        item.transaction_start_time_ms,
        sorted((topic.topic, partition) for topic in item.topics for partition in topic.partitions),
        await cluster.coordinator("transaction", transactional_id),
    )


def _producers(found: Any) -> list[ProducerInfo]:
    return sorted(
        ProducerInfo(
            item.producer_id,
            item.producer_epoch,
            item.last_sequence,
            item.last_timestamp,
            item.coordinator_epoch,
            item.current_txn_start_offset,
        )
        for item in found.active_producers
    )


async def describe_producers(
    cluster: ClusterClient, topic: str, partition: int, *, broker: int | None = None
) -> list[ProducerInfo]:
    """Return what a partition's leader, or the replica on `broker`, knows of producers. Raises UnknownTopicError."""
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    if broker is None:
        response = await cluster.call_leader(topic, partition, request)
    else:
        await cluster.require_broker(broker)
        await cluster.partition(topic, partition)
        response = await cluster.call_broker(broker, request)
    what = f"producers of {topic}-{partition}"
    raise_for_error(response, what)
    return _producers(partition_answer(response.topics, (topic, partition), what))


async def find_hanging(
    cluster: ClusterClient,
    topic: str | None = None,
    partition: int | None = None,
    *,
    broker: int | None = None,
    older_than_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
) -> list[HangingTransaction]:
    """Return open transactions that no coordinator will end: in a topic, a partition, or the replicas of `broker`.

    `older_than_ms` is the brokers' transaction.max.timeout.ms. Producers that have written since then are left out.
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
    """Return which broker to ask about each partition."""
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
    """Return every open transaction in these partitions, as one broker knows them."""
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
                for producer in _producers(each)
                if producer.transaction_start >= 0
            ]
    answered = [(topic.name, each.partition_index) for topic in response.topics for each in topic.partitions]
    require_answers(partitions, answered, "producers of partitions")
    return found


async def without_coordinator(
    cluster: ClusterClient, candidates: Sequence[HangingTransaction]
) -> list[HangingTransaction]:
    """Return the candidates that no coordinator will end in that partition."""
    known = {
        (info.producer_id, *tp)
        for info in await coordinated(cluster, {item.producer.producer_id for item in candidates})
        for tp in info.partitions
    }
    return sorted(item for item in candidates if (item.producer.producer_id, item.topic, item.partition) not in known)


async def coordinated(cluster: ClusterClient, producer_ids: Iterable[int]) -> list[TransactionInfo]:
    """Return what coordinators know of the transactions of some producers: they will end these."""
    wanted = sorted(set(producer_ids))
    found = []
    for listing in await list_transactions(cluster, producer_ids=wanted) if wanted else ():
        try:
            info = await describe_transaction(cluster, listing.transactional_id)
        except errors.KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # it has expired meanwhile
                raise
            continue
        found.append(info._replace(producer_id=listing.producer_id))
    return found


async def abort_transaction(
    cluster: ClusterClient,
    topic: str,
    partition: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = FIRST_COORDINATOR_EPOCH,
) -> None:
    """Abort a hanging transaction in one partition, without its coordinator. Not for one that a coordinator knows.

    The numbers are those of `describe_producers`. Raises KafkaError (INVALID_PRODUCER_EPOCH,
    TRANSACTION_COORDINATOR_FENCED).
    """
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(coordinator_epoch, FIRST_COORDINATOR_EPOCH),
    )
    response = await cluster.call_leader(topic, partition, WriteTxnMarkersRequest(markers=[marker]))
    what = f"aborting the transaction of producer {producer_id} in {topic}-{partition}"
    raise_for_error(response, what)
    answered = [
        (found.name, item.partition_index)
        for each in response.markers
        for found in each.topics
        for item in found.partitions
    ]
    require_answers([(topic, partition)], answered, what)


async def fence_producers(cluster: ClusterClient, transactional_ids: str | Iterable[str]) -> dict[str, tuple[int, int]]:
    """Fence the producers of these ids and abort their open transactions. Return the new (producer id, epoch) of each.

    Ids that do not exist yet are created, as in Kafka.
    """

    async def one(transactional_id: str) -> tuple[int, int]:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=cluster.request_timeout_ms
        )
        response = await cluster.call_coordinator("transaction", transactional_id, request)
        raise_for_error(response, f"fencing {transactional_id!r}")
        return response.producer_id, response.producer_epoch

    wanted = list(dict.fromkeys(names(transactional_ids)))
    return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))


async def terminate_transaction(cluster: ClusterClient, transactional_id: str) -> None:
    """Abort the open transaction of an id, and fence its producer. Raises KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
    await describe_transaction(cluster, transactional_id)  # Kafka's tool makes an id that was only mistyped
    await fence_producers(cluster, [transactional_id])
