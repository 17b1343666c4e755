"""Query many transactions or partitions with few requests, limited in size and in flight."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from oncelog import errors
from oncelog.client.discovery.cluster import COORDINATOR_MOVED, ClusterClient
from oncelog.client.requests import offsets
from oncelog.client.requests.broker_fanout import BrokerFanout, ask_by_node, find_coordinators
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages import describe_producers as dp
from oncelog.protocol.messages import describe_transactions as dt
from oncelog.protocol.messages import end_txn as et
from oncelog.protocol.schema import NO_UUID
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import End, Owner

TRANSACTIONS_AT_ONCE = 500
"""Transactional ids in one DescribeTransactions: the response names all partitions of each."""
PARTITIONS_AT_FIRST, PARTITIONS_AT_ONCE = 16, 1_000
"""Partitions in the first DescribeProducers, and at most in each later one."""
PRODUCERS_AT_ONCE = 100_000
"""Producers that one round of DescribeProducers returns, if partitions have as many as those of the rounds before.
A partition remembers each producer for a day: for the sink, tasks times sixteen plans."""
ENDS_IN_FLIGHT = 100
"""Maximum number of EndTxn requests in flight per coordinator."""


async def describe_transactions(cluster: ClusterClient, ids: Sequence[str]) -> dict[str, dt.TransactionState | None]:
    """Send DescribeTransactions of each id. Return None for an id that its coordinator does not know."""
    await find_coordinators(cluster, "transaction", ids)
    found: dict[str, dt.TransactionState | None] = {}
    for start in range(0, len(ids), TRANSACTIONS_AT_ONCE):
        some = ids[start : start + TRANSACTIONS_AT_ONCE]
        await ask_by_node(cluster, transactions(cluster), some, into=found)
    return found


async def describe_producers(
    cluster: ClusterClient, wanted: Iterable[TopicPartition]
) -> dict[TopicPartition, list[dp.ProducerState]]:
    """Send DescribeProducers of each partition that exists. Return its producers with an open transaction."""
    left = list(dict.fromkeys(wanted))
    found: dict[TopicPartition, list[dp.ProducerState]] = {}
    seen: dict[TopicPartition, int] = {}
    count = PARTITIONS_AT_FIRST
    while left:
        some, left = left[:count], left[count:]
        await ask_by_node(cluster, producers(cluster, seen), some, into=found)
        each = sum(seen.values()) / max(1, len(seen))
        count = max(1, min(PARTITIONS_AT_ONCE, int(PRODUCERS_AT_ONCE / max(1.0, each))))
    return found


async def find_ends(cluster: ClusterClient, wanted: Iterable[TopicPartition]) -> tuple[End, ...]:
    """Return the high watermark of each partition that exists, and the id of its topic. Request new metadata first."""
    places = list(dict.fromkeys(wanted))
    await cluster.refresh({at.topic for at in places}, patient=True)
    # All at the same time: each partition of a deleted topic is waited for.
    ids = await asyncio.gather(*(_topic_id(cluster, at) for at in places))
    known = {at: topic_id for at, topic_id in zip(places, ids, strict=True) if topic_id is not None}
    asked: dict[tuple[str, int], int] = dict.fromkeys(known, offsets.LATEST)
    found = await offsets.list_offsets(cluster, asked)
    return tuple(End(at, found[at].offset, known[at]) for at in sorted(known) if at in found)


async def _topic_id(cluster: ClusterClient, at: TopicPartition) -> str | None:
    """Return the id of a partition's topic, "" if brokers do not report it, None if there is no such partition."""
    try:
        topic_id = (await cluster.topic(at.topic, partition=at.partition)).topic_id
    except errors.UnknownTopicError:
        return None
    return "" if topic_id == NO_UUID else str(topic_id)


async def end_all(cluster: ClusterClient, owners: Sequence[Owner], commit: bool, version: int | None) -> list[Any]:
    """Send EndTxn for each owner's transaction, some at a time to each coordinator; return the responses in order.

    If a coordinator is down, only its own transactions wait. Its error is raised after the others have ended.
    """
    await find_coordinators(cluster, "transaction", [owner.id for owner in owners])
    free: defaultdict[int | None, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(ENDS_IN_FLIGHT))

    async def end(owner: Owner) -> Any:
        request = et.EndTxnRequest(
            transactional_id=owner.id, producer_id=owner.pid, producer_epoch=owner.epoch, committed=commit
        )
        async with free[cluster.known_coordinator("transaction", owner.id)]:
            return await cluster.call_coordinator("transaction", owner.id, request, version)

    responses = await asyncio.gather(*map(end, owners), return_exceptions=True)
    for response in responses:
        if isinstance(response, BaseException):
            raise response
    return responses


def transactions(cluster: ClusterClient) -> BrokerFanout[str, dt.TransactionState | None]:
    """Return DescribeTransactions by transactional id, None for an id that its coordinator does not know."""

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

    return BrokerFanout(
        where=where,
        make=lambda ids: dt.DescribeTransactionsRequest(transactional_ids=ids),
        read=read,
        moved=moved,
        name=lambda name: f"DescribeTransactions of {name}",
    )


def producers(
    cluster: ClusterClient, seen: dict[TopicPartition, int]
) -> BrokerFanout[TopicPartition, list[dp.ProducerState]]:
    """Return a query for a partition's producers with open transactions. A deleted partition has none.

    `seen` gets the number of all its producers.
    """

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
                seen[at] = len(answer.active_producers)
                opened = [p for p in answer.active_producers if p.current_txn_start_offset >= 0]
                yield at, ErrorCode.of(answer.error_code), opened

    return BrokerFanout(
        where=where,
        make=make,
        read=read,
        moved=lambda at, code: cluster.topology.forget(at.topic),
        name=lambda at: f"DescribeProducers of {at.topic}-{at.partition}",
    )
