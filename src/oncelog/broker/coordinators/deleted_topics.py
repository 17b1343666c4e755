"""Delete the committed offsets of deleted topics, in the background and in parts.

The coordinators that are loaded when a topic is deleted delete its offsets. A coordinator that is loaded later, because
it was away meanwhile, asks the tree which of its topics are deleted. Kafka does not, and keeps such offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from oncelog.broker.coordinators.request_parts import ITEMS_A_PART
from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.broker.turns import KEYS_A_TURN, Yielder
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.image_nodes import created_ms
from oncelog.cluster.store import MetadataStore, StoreError
from oncelog.cluster.topic_nodes import TOPICS
from oncelog.cluster.topics import TopicInfo
from oncelog.coordinator.effects import Effects
from oncelog.coordinator.groups.coordinator import GroupCoordinator
from oncelog.coordinator.groups.deletion import Tombstones


@dataclass(frozen=True, slots=True)
class Deletion:
    """The tombstones of one topic in one coordinator, from `GroupCoordinator`."""

    partition: int
    shard: GroupCoordinator
    tombstones: Tombstones


class DeletedTopics:
    """Delete the offsets of deleted topics from the group coordinators of this broker."""

    def __init__(
        self,
        shell: CoordinatorShell[GroupCoordinator],
        cache: MetadataCache,
        store: MetadataStore,
        runtime: Runtime,
    ) -> None:
        self._shell = shell
        self._cache = cache
        self._store = store
        self._workers = runtime.workers
        self._logger = runtime.logger
        shell.loaded.subscribe(self._loaded)

    def begin(self, topics: Iterable[TopicInfo]) -> list[Deletion]:
        """Begin to delete the offsets of deleted topics. `delete` does the work.

        It keeps offsets that are committed later, because they belong to a new topic of the same name.
        """
        return [
            Deletion(partition, shard, shard.delete_topic_offsets(topic.name, topic.topic_id))
            for topic in topics
            for partition, shard in self._shell.terms.shards()
        ]

    async def delete(self, deletions: Iterable[Deletion]) -> None:
        """Delete the offsets in parts. The loop serves other requests in between."""
        yielder = Yielder(KEYS_A_TURN)
        for deletion in deletions:
            effects = Effects()
            for records in deletion.tombstones:
                await yielder.next()
                effects.records += records
                if len(effects.records) >= ITEMS_A_PART:
                    self._shell.apply_if_served(deletion.partition, deletion.shard, effects)
                    effects = Effects()
                    await asyncio.sleep(0)
            if effects.records:
                self._shell.apply_if_served(deletion.partition, deletion.shard, effects)

    def _loaded(self, partition: int, shard: GroupCoordinator) -> None:
        self._workers.spawn(self._forget(partition, shard), "delete the offsets of deleted topics")

    async def _forget(self, partition: int, shard: GroupCoordinator) -> None:
        """Delete the offsets of topics that were deleted while the groups had no coordinator, or another one.

        Ask the tree, because the image may be older than a topic. A topic that the tree lacks may never have been
        imported or restored. So keep the offsets that were committed before the tree was created.
        """
        unknown = await self._unknown_topics(shard)
        if not unknown:
            return
        try:
            since_ms = await self._workers.read_store(created_ms, self._store)
            if since_ms is None:
                return
            # Begin before the tree is read: a topic may be created afterwards, and groups may commit its offsets.
            tombstones = {topic: shard.delete_offsets_since(topic, since_ms) for topic in unknown}
            deleted = await self._workers.read_store(_deleted, self._store, unknown)
        except StoreError as error:
            self._logger.warning("cannot find out which topics with committed offsets are deleted: %r", error)
            return
        await self.delete(Deletion(partition, shard, tombstones[topic]) for topic in deleted)

    async def _unknown_topics(self, shard: GroupCoordinator) -> list[str]:
        topics: set[str] = set()
        yielder = Yielder(KEYS_A_TURN)
        for topic in shard.topics_with_offsets():
            await yielder.next()
            topics.add(topic)
        return sorted(topic for topic in topics if self._cache.image.topic(topic) is None)


def _deleted(store: MetadataStore, topics: Iterable[str]) -> list[str]:
    """Return the topics that do not exist. Blocks."""
    return [topic for topic in topics if not store.exists(f"{TOPICS}/{topic}")]
