"""The requests of a reader, each to one broker about many keys, and their results. No request is repeated.

Each function returns the results it has. Errors of single keys are values, so that one forbidden topic or group does
not hide the others. Errors of a whole request are raised: KafkaError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from oncelog import errors
from oncelog.client.connections.versions import ByVersion
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests.broker_fanout import ask_once
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from oncelog.protocol.topics import TopicPartition
from oncelog.watch.readings import OPEN_STATES, Holder, WatchedGroup, WatchedTransaction

LATEST = -1
GROUPS_OFFSET_FETCH = range(8, 10)
"""The versions of OffsetFetch that take several groups, and name their topics."""


class Failed(NamedTuple):
    """The error of one key: its code, and a text for people."""

    code: ErrorCode
    text: str


def _failed(code: int) -> Failed:
    known = ErrorCode.of(code)
    return Failed(known, f"{known.text.rstrip('.')} ({known.name})")


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[int]]]:
    for topic, found in groupby(sorted(partitions), key=lambda tp: tp[0]):
        yield topic, [index for _, index in found]


async def ends(
    cluster: ClusterClient, node: int, partitions: Iterable[TopicPartition], isolation_level: int
) -> dict[TopicPartition, int | Failed]:
    """Return the end of partitions that `node` leads: the high watermark, with isolation level 1 the LSO."""
    topics = [
        ListOffsetsTopic(
            name=topic, partitions=[ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in indexes]
        )
        for topic, indexes in _by_topic(partitions)
    ]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics)
    response = await ask_once(cluster, node, request)
    return {
        (topic.name, item.partition_index): _failed(item.error_code) if item.error_code else item.offset
        for topic in response.topics
        for item in topic.partitions
    }


async def sizes(cluster: ClusterClient, node: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the bytes of the replicas on `node`. Replicas in an offline directory are omitted."""
    topics = [DescribableLogDirTopic(topic=topic, partitions=indexes) for topic, indexes in _by_topic(partitions)]
    response = await ask_once(cluster, node, DescribeLogDirsRequest(topics=topics), "sizes")  # a disk may hang
    if response.error_code:
        raise errors.error_for(response.error_code, f"log directories: {ErrorCode.of(response.error_code).text}")
    return {
        (topic.name, item.partition_index): item.partition_size
        for result in response.results
        if not result.error_code
        for topic in result.topics
        for item in topic.partitions
        if not item.is_future_key
    }


async def holders(
    cluster: ClusterClient, node: int, stable_offsets: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, Holder], dict[TopicPartition, Failed]]:
    """Return the producers whose transactions begin at the last stable offsets, and the partitions with an error."""
    topics = [TopicRequest(name=topic, partition_indexes=indexes) for topic, indexes in _by_topic(stable_offsets)]
    response = await ask_once(cluster, node, DescribeProducersRequest(topics=topics))
    found: dict[TopicPartition, Holder] = {}
    failed: dict[TopicPartition, Failed] = {}
    for topic in response.topics:
        for item in topic.partitions:
            tp = (topic.name, item.partition_index)
            if item.error_code:
                failed[tp] = _failed(item.error_code)
                continue
            for each in item.active_producers:
                if each.current_txn_start_offset == stable_offsets.get(tp):
                    found[tp] = Holder(each.producer_id, each.producer_epoch, each.last_timestamp)
    return found, failed


async def groups(cluster: ClusterClient, node: int) -> list[WatchedGroup]:
    """Return the groups that `node` coordinates."""
    response = await ask_once(cluster, node, ListGroupsRequest())
    raise_for_error(response, f"groups of broker {node}")
    return [WatchedGroup(item.group_id, item.group_type.title(), item.group_state, node) for item in response.groups]


def _fetch_of(group_ids: list[str]) -> ByVersion:
    def make(version: int) -> OffsetFetchRequest:
        if version not in GROUPS_OFFSET_FETCH:
            raise errors.UnsupportedError("the broker does not take several groups in one OffsetFetch (KIP-709)")
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in group_ids])

    return ByVersion(OffsetFetchRequest, make, GROUPS_OFFSET_FETCH[-1])


async def committed(
    cluster: ClusterClient, node: int, group_ids: list[str]
) -> dict[str, dict[TopicPartition, int] | Failed]:
    """Return the committed offsets of groups that `node` coordinates. Omit partitions without an offset."""
    response = await ask_once(cluster, node, _fetch_of(group_ids))
    return {
        group.group_id: _failed(group.error_code)
        if group.error_code
        else {
            (topic.name, item.partition_index): item.committed_offset
            for topic in group.topics
            for item in topic.partitions
            if not item.error_code and item.committed_offset >= 0
        }
        for group in response.groups
    }


async def transactions(cluster: ClusterClient, node: int) -> list[WatchedTransaction]:
    """Return the open transactions that `node` coordinates, not yet described."""
    response = await ask_once(cluster, node, ListTransactionsRequest(state_filters=list(OPEN_STATES)))
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
        item.transactional_id: _failed(item.error_code)
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
