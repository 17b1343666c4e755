"""Committed offsets of topics that are missing from new metadata on old log directories."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from oncelog.broker.broker import Broker
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.topic_nodes import erase_topic, read_topic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support.broker_fixtures import NOW, Life, live


async def loaded(broker: Broker) -> None:
    """Wait until the only group coordinator is loaded."""
    await broker.topics.ensure_internal(CONSUMER_OFFSETS)
    while not list(broker.groups.shell.terms.shards()):
        await asyncio.sleep(0.005)


async def commit(broker: Broker, topic: str, offset: int) -> None:
    """Create a topic, and commit an offset of it."""
    created = await broker.topics.create(topic, partitions=1)
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    topics = [OffsetCommitRequestTopic(name=topic, topic_id=created.topic_id, partitions=partitions)]
    await broker.groups.commit_offsets(OffsetCommitRequest(group_id="g", topics=topics), 8, list)


async def committed(broker: Broker, topic: str) -> int:
    """Return the committed offset of a topic, or -1."""
    asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    group = await broker.groups.fetch_offsets(OffsetFetchRequestGroup(group_id="g", topics=[asked]), False)
    return group.topics[0].partitions[0].committed_offset


def test_offsets_of_topics_that_a_restore_lacks_are_kept(tmp_path: Path) -> None:
    """A later restore may find such a topic, for example on a missing disk. Offsets of deleted topics are deleted."""
    data = tmp_path / "data"

    async def before(broker: Broker) -> None:
        await loaded(broker)
        await commit(broker, "a-lost", 5)

    async def restored(broker: Broker) -> None:
        await loaded(broker)
        assert broker.metadata.image.topic("a-lost") is None
        assert await committed(broker, "a-lost") == 5
        await commit(broker, "b-deleted", 7)

    async def after(broker: Broker) -> None:
        await loaded(broker)
        while await committed(broker, "b-deleted") != -1:
            await asyncio.sleep(0.005)
        assert await committed(broker, "a-lost") == 5

    def run(folder: Path, life: Life | None = None, **settings: str) -> None:
        now = next(times)
        live(folder, store, life, now_ms=lambda: now, offsets_topic_num_partitions="1", **settings)

    times = count(NOW)
    store = MemoryStore(lambda: NOW)
    run(data, before)
    store = MemoryStore(lambda: NOW)
    run(data, restore_metadata="true")
    run(data, restored)
    run(tmp_path / "second", node_id="2")
    erase_topic(ChangeLog(store), read_topic(store, "b-deleted"))
    run(data, after)
