"""What changes of topics do to groups.

The broker deletes the committed offsets of a topic together with the topic, also during a long commit. It tells the
group coordinators which topics have changed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.coordinators.request_parts import ITEMS_A_PART
from oncelog.broker.handlers.offset_commit import bind as offset_commit
from oncelog.broker.handlers.txn_offset_commit import bind as txn_offset_commit
from oncelog.broker.requests.context import RequestContext
from oncelog.cluster.topics import TopicInfo
from oncelog.coordinator.effects import Effects
from oncelog.coordinator.groups.coordinator import GroupCoordinator
from oncelog.coordinator.timers import Now
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support.broker_fixtures import BrokerStorage


def replace_topic_after_first_part(broker: Broker, topic: TopicInfo) -> None:
    """Delete the topic and create it again after the coordinator has written the first part of a request."""
    shell = broker.groups.shell
    request = shell.request

    async def interrupted(*arguments: Any, **options: Any) -> Any:
        shell.request = request  # type: ignore[method-assign]
        answer = await request(*arguments, **options)
        await broker.topics.delete(topic)
        await broker.topics.create(topic.name, partitions=1)
        return answer

    shell.request = interrupted  # type: ignore[method-assign]


async def committed_offset(broker: Broker) -> int:
    """Return the offset that the group `g` has in the topic `t`, whether or not its transaction has ended."""
    asked = OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])])
    (partition,) = (await broker.groups.fetch_offsets(asked, require_stable=True)).topics[0].partitions
    assert partition.error_code == ErrorCode.NONE
    return int(partition.committed_offset)


@pytest.mark.parametrize("version", [9, 10])
def test_long_commit_leaves_no_offset_of_a_topic_deleted_meanwhile(storage: BrokerStorage, version: int) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.ensure_internal("__consumer_offsets")
        topic = await broker.topics.create("t", partitions=1)
        commit = OffsetCommitRequestTopic(
            name="t" if version < 10 else "",
            topic_id=topic.topic_id,
            partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=42)] * 3 * ITEMS_A_PART,
        )
        replace_topic_after_first_part(broker, topic)
        context = RequestContext(8, version, 1, "test", Session())
        answer = await offset_commit(broker.services)(OffsetCommitRequest(group_id="g", topics=[commit]), context)
        (answered,) = answer.topics
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID
        codes = [partition.error_code for partition in answered.partitions]
        assert codes == [ErrorCode.NONE] * ITEMS_A_PART + [unknown] * 2 * ITEMS_A_PART
        assert await committed_offset(broker) == -1

    storage.run_broker(life)


def test_long_transactional_commit_leaves_no_offset_of_a_topic_deleted_meanwhile(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.ensure_internal("__consumer_offsets")
        topic = await broker.topics.create("t", partitions=1)
        partitions = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=42)] * 3 * ITEMS_A_PART
        request = TxnOffsetCommitRequest(
            transactional_id="etl",
            group_id="g",
            producer_id=1,
            producer_epoch=0,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=partitions)],
        )
        replace_topic_after_first_part(broker, topic)
        answer = await txn_offset_commit(broker.services)(request, RequestContext(28, 3, 1, "test", Session()))
        (answered,) = answer.topics
        codes = [partition.error_code for partition in answered.partitions]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [ErrorCode.NONE] * ITEMS_A_PART + [unknown] * 2 * ITEMS_A_PART
        assert await committed_offset(broker) == -1

    storage.run_broker(life, transaction_partition_verification_enable="false")


def test_offsets_of_groups_are_deleted_with_the_topic(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.ensure_internal("__consumer_offsets")
        topic = await broker.topics.create("t", partitions=1)
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=42)]
        commit = OffsetCommitRequestTopic(name="t", topic_id=topic.topic_id, partitions=partitions)
        await broker.groups.commit_offsets(OffsetCommitRequest(group_id="g", topics=[commit]), 8, list)
        assert await committed_offset(broker) == 42
        await broker.topics.delete(topic)
        assert await committed_offset(broker) == -1

    storage.run_broker(life)


def test_loaded_coordinators_learn_which_topics_have_other_partitions(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[GroupCoordinator, frozenset[str]]] = []

    def topics_changed(shard: GroupCoordinator, topics: frozenset[str], now: Now) -> Effects:
        told.append((shard, topics))
        return Effects()

    async def life(broker: Broker) -> None:
        await broker.topics.ensure_internal(CONSUMER_OFFSETS)
        while len(shards := dict(broker.groups.shell.terms.shards())) < 2:
            await asyncio.sleep(0.005)
        monkeypatch.setattr(GroupCoordinator, "topics_changed", topics_changed)
        each = [(shard, frozenset({"t"})) for shard in shards.values()]
        topic = await broker.topics.create("t", partitions=1)
        assert told == each
        await broker.settings.alter_topic("t", lambda _: {"retention.ms": "77"}, validate_only=False)
        assert told == each
        await broker.topics.add_partitions(topic, [(broker.node_id,)])
        assert told == 2 * each
        await broker.topics.delete(topic)
        assert told == 3 * each

    storage.run_broker(life, offsets_topic_num_partitions="2")
