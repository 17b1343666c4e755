"""Describe and end transactions, through their coordinators and the leaders of partitions (KIP-664, 994, 1152)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oncelog import errors
from oncelog.client.admin._shared import names
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.requests.broker_fanout import gather_brokers
from oncelog.client.response_errors import partition_answer, raise_for_error, require_answers
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    ProducerState,
    TopicRequest,
)
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from oncelog.protocol.topics import TopicPartition

MAX_TRANSACTION_TIMEOUT_MS = 900_000
"""Kafka's default of transaction.max.timeout.ms, 15 minutes."""
FIRST_COORDINATOR_EPOCH = 0
"""The lowest coordinator epoch, for a producer whose transactions have no marker yet."""


@in_notebooks()
class TransactionListing(NamedTuple):
    """A transactional id in a list, with its producer id and state ("Ongoing", "CompleteCommit", ...).

    `coordinator` is the node id of the broker that reported it.
    """

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int = -1


@in_notebooks()
class TransactionInfo(NamedTuple):
    """A transactional id, as its coordinator knows it. `partitions` are those of the open transaction.

    `start_time` is the begin of the open transaction in ms since the epoch, or -1 if none is open.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time: int
    partitions: list[TopicPartition]
    coordinator: int = -1


@in_notebooks()
class ProducerInfo(NamedTuple):
    """The state of a producer in a partition. `transaction_start` is the first offset of its open transaction, or -1.

    `last_timestamp` is in ms since the epoch. `coordinator_epoch` is that of its last marker, or -1.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


async def list_transactions(
    cluster: ClusterClient,
    states: Sequence[str] = (),
    *,
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
    unanswered: dict[int, errors.RetriableError] | None = None,
) -> list[TransactionListing]:
    """Return the transactional ids of all coordinators, in order of their names (Kafka's ListTransactions).

    Each argument is a filter: `states` such as "Ongoing", `producer_ids`, `longer_than_ms` for transactions that have
    been open for longer, and `pattern` in RE2's syntax, which must match the whole id.

    A broker that does not answer fails the call. If you pass a dict as `unanswered`, the call waits for 10 s, and
    returns the ids of the brokers that have answered. The dict then has the error of each other broker by its node id.

    Raises ConfigError for an unknown state, and RequestError (INVALID_REGULAR_EXPRESSION). Raises UnsupportedError if
    the broker does not support a filter.
    """
    answers = await gather_brokers(
        cluster,
        lambda: ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=longer_than_ms,
            transactional_id_pattern=pattern or None,
        ),
        unanswered=unanswered,
    )
    found = []
    for node, response in answers.items():
        if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            about = f"{pattern!r} is not a regular expression in RE2's syntax"
            raise errors.error_for(response.error_code, about)
        raise_for_error(response, f"transactions of broker {node}")
        if response.unknown_state_filters:
            raise errors.ConfigError(f"unknown transaction state {response.unknown_state_filters[0]!r}")
        found += [
            TransactionListing(item.transactional_id, item.producer_id, item.transaction_state, node)
            for item in response.transaction_states
        ]
    return sorted(found)


async def describe_transaction(cluster: ClusterClient, transactional_id: str) -> TransactionInfo:
    """Return the state, producer, timeout and open partitions of a transactional id.

    Raises RequestError (TRANSACTIONAL_ID_NOT_FOUND).
    """
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = await cluster.call_coordinator("transaction", transactional_id, request)
    answered = [item.transactional_id for item in response.transaction_states]
    require_answers([transactional_id], answered, "description of a transaction")
    [item] = response.transaction_states
    if item.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise errors.error_for(item.error_code, f"transactional id {transactional_id!r} does not exist")
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


def producer_info(item: ProducerState) -> ProducerInfo:
    """Return a producer of DescribeProducers as the result of a call."""
    return ProducerInfo(
        item.producer_id,
        item.producer_epoch,
        item.last_sequence,
        item.last_timestamp,
        item.coordinator_epoch,
        item.current_txn_start_offset,
    )


def producers_in(found: PartitionResponse) -> list[ProducerInfo]:
    """Return the producers in a partition's part of DescribeProducers, sorted."""
    return sorted(map(producer_info, found.active_producers))


async def describe_producers(
    cluster: ClusterClient, topic: str, partition: int, *, broker: int | None = None
) -> list[ProducerInfo]:
    """Return the state of a partition's producers, from its leader or from the replica on `broker` (a node id).

    Raises UnknownTopicError, or RequestError (BROKER_ID_NOT_REGISTERED).
    """
    return producers_in(await ask_for_producers(cluster, (topic, partition), broker))


async def ask_for_producers(
    cluster: ClusterClient, where: TopicPartition, broker: int | None, *, include_batches: bool = False
) -> PartitionResponse:
    """Return the response to DescribeProducers of one partition. Raises the errors of `describe_producers`."""
    topic, partition = where
    wanted = [TopicRequest(name=topic, partition_indexes=[partition])]
    request = DescribeProducersRequest(topics=wanted, include_batches=include_batches)
    if broker is None:
        response = await cluster.call_leader(topic, partition, request)
    else:
        await cluster.require_broker(broker)
        await cluster.partition(topic, partition)
        response = await cluster.call_broker(broker, request)
    what = f"producers of {topic}-{partition}"
    raise_for_error(response, what)
    found: PartitionResponse = partition_answer(response.topics, where, what)
    return found


async def coordinated(cluster: ClusterClient, producer_ids: Iterable[int]) -> list[TransactionInfo]:
    """Return the transactions of these producer ids that a coordinator shows to this client, and will end.

    Coordinators omit the transactional ids that the client may not describe (KIP-664): see `find_hanging_transactions`.
    """
    wanted = sorted(set(producer_ids))
    found = []
    for listing in await list_transactions(cluster, producer_ids=wanted) if wanted else ():
        try:
            info = await describe_transaction(cluster, listing.transactional_id)
        except errors.KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # otherwise the id has expired meanwhile
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
    """Abort a hanging transaction in one partition, without its coordinator (Kafka's WriteTxnMarkers).

    Take the numbers from `find_hanging_transactions`: this call does not check whether the transaction hangs. Do not
    abort a transaction that a coordinator knows of, because its other partitions may be committed. Use
    `terminate_transaction` instead.

    Raises UnknownTopicError, RequestError (INVALID_PRODUCER_EPOCH), or FencedError (TRANSACTION_COORDINATOR_FENCED).
    """
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(coordinator_epoch, FIRST_COORDINATOR_EPOCH),
    )
    response = await cluster.call_leader(topic, partition, WriteTxnMarkersRequest(markers=[marker]))
    what = f"abort of the transaction of producer {producer_id} in {topic}-{partition}"
    raise_for_error(response, what)
    answered = [
        (found.name, item.partition_index)
        for each in response.markers
        for found in each.topics
        for item in found.partitions
    ]
    require_answers([(topic, partition)], answered, what)


async def fence_producers(cluster: ClusterClient, transactional_ids: str | Iterable[str]) -> dict[str, tuple[int, int]]:
    """Fence the producers of transactional ids, and abort their open transactions (Kafka's InitProducerId).

    `transactional_ids` is an id or several. Return id -> (producer id, epoch) for the next producer. An id that does
    not exist is created, as in Kafka.
    """

    async def one(transactional_id: str) -> tuple[int, int]:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=cluster.request_timeout_ms
        )
        response = await cluster.call_coordinator("transaction", transactional_id, request)
        raise_for_error(response, f"fencing of transactional id {transactional_id!r}")
        return response.producer_id, response.producer_epoch

    wanted = list(dict.fromkeys(names(transactional_ids)))
    return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))


async def terminate_transaction(cluster: ClusterClient, transactional_id: str) -> None:
    """Abort the open transaction of a transactional id in all its partitions, and fence its producer.

    Raises RequestError (TRANSACTIONAL_ID_NOT_FOUND).
    """
    await describe_transaction(cluster, transactional_id)  # reject a mistyped id, which Kafka's tool would create
    await fence_producers(cluster, [transactional_id])
