"""Ask each broker of a topic for the end and the high watermark of its own replicas."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from oncelog import errors
from oncelog.client.connections.versions import ByVersion
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.requests.broker_fanout import UNANSWERED_WAIT_MS, BrokerFanout, ask_by_node
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from oncelog.protocol.topics import TopicPartition

LAST_BY_NAME = 12
"""The last version of Fetch that has names of topics. From version 11 on, a client may fetch from a follower."""
PATIENCE_MS = 1_000
"""How long the request to a broker is repeated, for example because its replica has just been created."""


@in_notebooks()
class ReplicaOffsets(NamedTuple):
    """The end of a replica: its broker's node id, and the offsets that this broker knows, or -1 if it did not answer.

    Both offsets are exclusive: they are those of the next record.
    """

    partition: int
    broker: int
    high_watermark: int
    log_end_offset: int


async def describe_replica_offsets(cluster: ClusterClient, topic: str) -> list[ReplicaOffsets]:
    """Return the high watermark and log end offset of each replica of a topic, as its own broker knows them.

    The brokers are asked at the same time, but they do not answer at the same moment. A broker gets two
    requests, and each one waits at most 10 s if it hangs. The result is in order of partitions and brokers. Needs READ
    on the topic. Raises UnknownTopicError.
    """
    partitions = (await cluster.topic(topic)).partitions
    running = await cluster.brokers()
    places = sorted((index, node) for index, found in partitions.items() for node in found.replicas)
    by_node: dict[int, list[TopicPartition]] = {node: [] for _, node in places if node in running}
    for index, node in places:
        if node in by_node:
            by_node[node].append((topic, index))
    answers = await asyncio.gather(*(_of_broker(cluster, node, mine) for node, mine in by_node.items()))
    found = dict(zip(by_node, answers, strict=True))
    return [ReplicaOffsets(index, node, *found.get(node, {}).get((topic, index), (-1, -1))) for index, node in places]


async def _of_broker(
    cluster: ClusterClient, node: int, partitions: list[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return (high watermark, log end offset) of those replicas of a broker for which it returns both."""
    ends: dict[TopicPartition, offset_calls.Listed] = {}
    marks: dict[TopicPartition, int] = {}
    with contextlib.suppress(errors.RetriableError):  # what the broker has answered is in `ends`
        await offset_calls.list_offsets(
            cluster,
            dict.fromkeys(partitions, offset_calls.LATEST),
            replica_id=offset_calls.DEBUGGING,
            node=node,
            timeout_ms=UNANSWERED_WAIT_MS,
            patience_ms=PATIENCE_MS,
            into=ends,
        )
    with contextlib.suppress(errors.RetriableError):
        await _high_watermarks(cluster, node, ends, marks)
    # The log may have grown between the two requests.
    return {tp: (mark, max(mark, ends[tp].offset)) for tp, mark in marks.items()}


async def _high_watermarks(
    cluster: ClusterClient,
    node: int,
    ends: dict[TopicPartition, offset_calls.Listed],
    into: dict[TopicPartition, int],
) -> None:
    """Fetch nothing from the end of each replica, because the response has the high watermark."""

    async def where(_: TopicPartition) -> int:
        return node

    def make(partitions: list[TopicPartition]) -> ByVersion:
        asked = [FetchPartition(partition=index, fetch_offset=ends[topic, index].offset) for topic, index in partitions]
        topics = [FetchTopic(topic=partitions[0][0], partitions=asked)]
        return ByVersion(FetchRequest, lambda _: FetchRequest(max_wait_ms=0, topics=topics), LAST_BY_NAME)

    fanout = BrokerFanout(
        where=where,
        make=make,
        read=_marks,
        moved=lambda _tp, _code: None,
        name=lambda tp: f"the high watermark of {tp[0]}-{tp[1]} on broker {node}",
    )
    await ask_by_node(cluster, fanout, ends, timeout_ms=UNANSWERED_WAIT_MS, patience_ms=PATIENCE_MS, into=into)


def _marks(response: FetchResponse) -> Iterator[tuple[TopicPartition, ErrorCode, int]]:
    for topic in response.responses:
        for item in topic.partitions:
            code = ErrorCode.of(item.error_code)
            # The log was truncated between the two requests.
            moved = code is ErrorCode.OFFSET_OUT_OF_RANGE
            yield (
                (topic.topic, item.partition_index),
                ErrorCode.NOT_LEADER_OR_FOLLOWER if moved else code,
                item.high_watermark,
            )
