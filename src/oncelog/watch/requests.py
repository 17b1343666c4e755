"""Requests to one broker about many keys, and their results. No request is repeated.

Each function returns the results it has. Errors of single keys are values, so that one forbidden topic or group does
not hide the others. Errors of a whole request are raised: KafkaError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from oncelog import errors
from oncelog.client.admin.transactions import ProducerInfo, producers_in
from oncelog.client.connections.versions import ByVersion
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests.broker_fanout import ask_once
from oncelog.client.requests.offsets import DEBUGGING, EARLIEST, LATEST
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.topics import TopicPartition
from oncelog.watch.readings import Ends, WatchedGroup, WatchedTransaction

P = TypeVar("P")
GROUPS_OFFSET_FETCH = range(8, 10)
"""The versions of OffsetFetch that take several groups, and name their topics."""


class Failed(NamedTuple):
    """The error of one key: its code, and a text for people."""

    code: ErrorCode
    text: str


def failed(code: int) -> Failed:
    """Return the error of a code."""
    known = ErrorCode.of(code)
    return Failed(known, f"{known.text.rstrip('.')} ({known.name})")


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[int]]]:
    for topic, found in groupby(sorted(partitions), key=lambda tp: tp[0]):
        yield topic, [index for _, index in found]


Committed = dict[str, dict[TopicPartition, int] | Failed]
"""Group -> its committed offsets."""


class Offsets(NamedTuple):
    """The offsets of a partition."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int


async def ends(
    cluster: ClusterClient, node: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Ends | Failed]:
    """Return the ends of partitions that `node` leads."""
    mine = list(partitions)
    # The LSOs after them: so records that arrive meanwhile do not look uncommitted.
    high = await _offsets(cluster, node, mine, LATEST)
    stable = await _offsets(cluster, node, mine, LATEST, isolation_level=1)
    return _together(Ends, high, stable)


async def offsets(
    cluster: ClusterClient, node: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Offsets | Failed]:
    """Return the offsets of partitions that `node` leads."""
    mine = list(partitions)
    first = await _offsets(cluster, node, mine, EARLIEST)
    both = await ends(cluster, node, mine)
    last = await _offsets(cluster, node, mine, LATEST, replica_id=DEBUGGING)
    return _together(
        lambda start, both, end: Offsets(start, both.high_watermark, both.last_stable_offset, end), first, both, last
    )


def _together(make: Callable[..., P], *answers: Mapping[TopicPartition, Any]) -> dict[TopicPartition, P | Failed]:
    """Return what `make` makes of a partition's values in all answers, or its first error."""
    found: dict[TopicPartition, P | Failed] = {}
    for tp in answers[0]:
        numbers = [answer[tp] for answer in answers if tp in answer]
        wrong = [each for each in numbers if isinstance(each, Failed)]
        if wrong:
            found[tp] = wrong[0]
        elif len(numbers) == len(answers):
            found[tp] = make(*numbers)
    return found


async def _offsets(
    cluster: ClusterClient,
    node: int,
    partitions: list[TopicPartition],
    timestamp: int,
    *,
    isolation_level: int = 0,
    replica_id: int = -1,
) -> dict[TopicPartition, int | Failed]:
    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in indexes],
        )
        for topic, indexes in _by_topic(partitions)
    ]
    request = ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation_level, topics=topics)
    response = await ask_once(cluster, node, request)
    return {
        (topic.name, item.partition_index): failed(item.error_code) if item.error_code else item.offset
        for topic in response.topics
        for item in topic.partitions
    }


class Directory(NamedTuple):
    """A log directory of a broker: whether it is online, and the bytes of the replicas in it."""

    online: bool
    sizes: dict[TopicPartition, int]


async def directories(
    cluster: ClusterClient, node: int, partitions: Iterable[TopicPartition] | None = None
) -> list[Directory]:
    """Return the log directories of `node` with the replicas of `partitions` (default: all) in them."""
    topics = None
    if partitions is not None:
        topics = [DescribableLogDirTopic(topic=topic, partitions=indexes) for topic, indexes in _by_topic(partitions)]
    response = await ask_once(cluster, node, DescribeLogDirsRequest(topics=topics), "sizes")  # a disk may hang
    if response.error_code:
        raise errors.error_for(response.error_code, f"log directories: {ErrorCode.of(response.error_code).text}")
    return [
        Directory(
            not result.error_code,
            {
                (topic.name, item.partition_index): item.partition_size
                for topic in result.topics
                for item in topic.partitions
                if not item.is_future_key
            },
        )
        for result in response.results
    ]


async def sizes(cluster: ClusterClient, node: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the bytes of the replicas on `node`. Replicas in an offline directory are omitted."""
    found = await directories(cluster, node, partitions)
    return {tp: size for each in found if each.online for tp, size in each.sizes.items()}


async def producers(
    cluster: ClusterClient, node: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[ProducerInfo] | Failed]:
    """Return the producers of partitions that `node` leads, in the order of their ids."""
    topics = [TopicRequest(name=topic, partition_indexes=indexes) for topic, indexes in _by_topic(partitions)]
    response = await ask_once(cluster, node, DescribeProducersRequest(topics=topics))
    return {
        (topic.name, item.partition_index): failed(item.error_code) if item.error_code else producers_in(item)
        for topic in response.topics
        for item in topic.partitions
    }


async def groups(cluster: ClusterClient, node: int) -> list[WatchedGroup]:
    """Return the groups that `node` coordinates."""
    response = await ask_once(cluster, node, ListGroupsRequest())
    raise_for_error(response, f"groups of broker {node}")
    return [
        WatchedGroup(item.group_id, item.group_type.title(), item.group_state, node, item.protocol_type)
        for item in response.groups
    ]


def _fetch_of(group_ids: list[str], partitions: Iterable[TopicPartition] | None) -> ByVersion:
    topics = None
    if partitions is not None:
        topics = [OffsetFetchRequestTopics(name=name, partition_indexes=some) for name, some in _by_topic(partitions)]

    def make(version: int) -> OffsetFetchRequest:
        if version not in GROUPS_OFFSET_FETCH:
            raise errors.UnsupportedError("the broker does not take several groups in one OffsetFetch (KIP-709)")
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=topics) for name in group_ids])

    return ByVersion(OffsetFetchRequest, make, GROUPS_OFFSET_FETCH[-1])


async def committed(
    cluster: ClusterClient, node: int, group_ids: list[str], partitions: Iterable[TopicPartition] | None = None
) -> Committed:
    """Return the committed offsets of groups that `node` coordinates, in `partitions` (default: all).

    Partitions without an offset are omitted.
    """
    response = await ask_once(cluster, node, _fetch_of(group_ids, partitions))
    return {
        group.group_id: failed(group.error_code)
        if group.error_code
        else {
            (topic.name, item.partition_index): item.committed_offset
            for topic in group.topics
            for item in topic.partitions
            if not item.error_code and item.committed_offset >= 0
        }
        for group in response.groups
    }


async def transactions(
    cluster: ClusterClient, node: int, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
) -> list[WatchedTransaction]:
    """Return the transactions that `node` coordinates, not yet described. Each argument is a filter."""
    request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))
    response = await ask_once(cluster, node, request)
    raise_for_error(response, f"transactions of broker {node}")
    return [
        WatchedTransaction(item.transactional_id, item.transaction_state, item.producer_id, node)
        for item in response.transaction_states
    ]


async def described(
    cluster: ClusterClient, node: int, transactional_ids: list[str]
) -> dict[str, WatchedTransaction | Failed]:
    """Return transactions with their begin, timeout and partitions."""
    response = await ask_once(cluster, node, DescribeTransactionsRequest(transactional_ids=transactional_ids))
    return {
        item.transactional_id: failed(item.error_code)
        if item.error_code
        else WatchedTransaction(
            item.transactional_id,
            item.transaction_state,
            item.producer_id,
            node,
            item.producer_epoch,
            item.transaction_start_time_ms if item.transaction_start_time_ms >= 0 else None,
            item.transaction_timeout_ms,
            tuple(sorted((topic.topic, index) for topic in item.topics for index in topic.partitions)),
        )
        for item in response.transaction_states
    }
