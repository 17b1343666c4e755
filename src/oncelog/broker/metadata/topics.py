"""Create, extend and delete topics. Each change only writes to the tree, and the broker's parts follow the tree."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.metadata.loader import Deadline, MetadataLoader
from oncelog.broker.workers import Runtime
from oncelog.cluster import topic_nodes
from oncelog.cluster.brokers import read_racks
from oncelog.cluster.changes import cannot_write
from oncelog.cluster.controller.placement import place
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.store import MetadataStore, StoreError
from oncelog.cluster.topics import INTERNAL_TOPICS, PartitionInfo, TopicInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import CONSUMER_OFFSETS

MISSING_WAIT_S = 1.0
"""How long a Metadata request waits for the creation of a missing topic. Other requests of the client wait for it."""
MISSING_PAUSE_S = 5.0
"""How long Metadata requests create no topics after one of them has waited in vain."""

RandomBits = Callable[[int], int]
"""Return a random number with the given number of bits."""


def new_topic_id(random_bits: RandomBits) -> UUID:
    """Return a random id whose text does not begin with '-'."""
    while True:
        topic_id = UUID(int=random_bits(128), version=4)
        if topic_id.bytes[0] >> 2 != 62:
            return topic_id


def new_cluster_id(random_bits: RandomBits) -> str:
    """Return a random id as text, in the form of Kafka's `Uuid`."""
    return base64.urlsafe_b64encode(new_topic_id(random_bits).bytes).rstrip(b"=").decode()


class TopicAdministration:
    """Carry out the changes of topics that clients request, and create the internal topics."""

    def __init__(
        self,
        store: MetadataStore,
        loader: MetadataLoader,
        cache: MetadataCache,
        config: DynamicConfig,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._loader = loader
        self._cache = cache
        self._config = config
        self._workers = runtime.workers
        self._random_bits = runtime.random_bits
        self._logger = runtime.logger
        self._creating: dict[str, asyncio.Task[TopicInfo]] = {}
        self._no_missing_until = 0.0
        """The loop's time until which `create_missing` creates nothing."""

    def broker_ids(self) -> list[int]:
        """Return the ids of all running brokers."""
        return sorted(self._cache.image.brokers)

    async def registered(self) -> dict[int, str | None]:
        """Return the rack, or None, of each broker that has ever been registered, also if it is down.

        In Kafka, a broker that is down is fenced, but remains registered. Raises ProtocolError if the metadata cannot
        be read.
        """
        try:
            found = await self._workers.read_store(read_racks, self._store)
        except StoreError as error:
            raise cannot_write("metadata", error) from error
        return found | {broker: info.rack for broker, info in self._cache.image.brokers.items()}

    async def place(self, partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
        """Return the replicas of each new partition. Raises INVALID_REPLICATION_FACTOR.

        A running broker leads it. A broker that is down gets replicas if too few brokers or racks are running. The
        first leader is random, so that not all topics with one partition have the same leader.
        """
        racks = {broker: info.rack for broker, info in self._cache.image.brokers.items()}
        down: dict[int, str | None] = {}
        if replication_factor > len(racks) or any(rack is not None for rack in racks.values()):
            down = {broker: rack for broker, rack in (await self.registered()).items() if broker not in racks}
        first = self._random_bits(31) if len(racks) > 1 else 0
        return place(partitions, replication_factor, racks, down=down, first=first)

    def _infos(self, assignment: Sequence[tuple[int, ...]]) -> tuple[PartitionInfo, ...]:
        """Return new partitions with these replicas. The first running replica of each partition leads it.

        The ISR has the running brokers, without those that are shutting down if there are others. A partition with
        several replicas also stores the leader's broker epoch. If the leader's process restarts, the controller must
        elect a leader again. Raises INVALID_REPLICATION_FACTOR if all brokers of a partition are down. Source: Kafka's
        `ReplicationControlManager`.
        """
        brokers = self._cache.image.brokers
        infos = []
        for ids in assignment:
            running = tuple(broker for broker in ids if broker in brokers)
            isr = tuple(broker for broker in running if not brokers[broker].shutting_down) or running
            if not isr:
                message = f"all brokers of a new partition ({', '.join(map(str, ids))}) are down; start one of them"
                raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
            epoch = brokers[isr[0]].epoch if len(ids) > 1 else -1
            infos.append(PartitionInfo(ids, PartitionState(isr[0], 0, isr, leader_broker_epoch=epoch)))
        return tuple(infos)

    async def create(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
        assignment: Sequence[tuple[int, ...]] | None = None,
        deadline: Deadline | None = None,
    ) -> TopicInfo:
        """Create a topic, and return it. The caller has checked its name and settings.

        Raises TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, REQUEST_TIMED_OUT.
        """
        infos = self._infos(assignment or await self.place(partitions, replication_factor))
        topic = TopicInfo(name, new_topic_id(self._random_bits), infos, configs or {})
        async with self._loader.changing(deadline) as log:
            await self._workers.write_store(topic_nodes.write_topic, log, topic)
        self._logger.info("created topic %s with %d partitions", name, len(infos))
        return topic

    async def create_missing(self, name: str) -> None:
        """Create a topic that a Metadata request names, also an internal one. The caller has checked the name.

        Raises INVALID_REPLICATION_FACTOR, and REQUEST_TIMED_OUT after `MISSING_WAIT_S`. The write may succeed later.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._no_missing_until:
            message = "changes of the metadata take too long"
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message)
        task = self._workers.task(self._create_missing(name), f"create {name}")
        try:
            await asyncio.wait((task,), timeout=MISSING_WAIT_S)
            if not task.done():
                self._no_missing_until = loop.time() + MISSING_PAUSE_S
                message = f"the topic was not created within {MISSING_WAIT_S} s"
                raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message)
            task.result()
        finally:
            task.cancel()

    async def _create_missing(self, name: str) -> TopicInfo:
        if name in INTERNAL_TOPICS:
            return await self.ensure_internal(name)
        config = self._config.current
        factor = config.default_replication_factor
        return await self.create(name, partitions=config.num_partitions, replication_factor=factor)

    def knows(self, name: str) -> bool:
        """Return whether this broker knows the topic."""
        return self._cache.image.topic(name) is not None

    async def refresh(self) -> None:
        """Read and apply changes of other brokers, which may have created a topic.

        Wait at most `MISSING_WAIT_S`. If the metadata cannot be read, change nothing. Requests that wait at the same
        time share the read.
        """
        task = self._workers.task(self._loader.catch_up(), "read the metadata for a request")
        try:
            await asyncio.wait((task,), timeout=MISSING_WAIT_S)
            if task.done():
                with suppress(StoreError):  # the loader logs it when it next follows the metadata
                    task.result()
        finally:
            task.cancel()

    async def ensure_internal(self, name: str) -> TopicInfo:
        """Return the coordinators' topic of that name. Create it, with its coordinators, if it does not exist."""
        topic = self._cache.image.topic(name)
        if topic is not None:
            return topic
        task = self._creating.get(name)
        if task is None:
            task = self._creating[name] = self._workers.task(self._create_internal(name), f"create {name}")
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return await asyncio.shield(task)

    async def _create_internal(self, name: str) -> TopicInfo:
        """Create an internal topic. Brokers that are down get replicas, too, because it never gets more replicas later.

        If the cluster has always been smaller than the setting, each broker gets a replica. Kafka raises
        INVALID_REPLICATION_FACTOR instead.
        """
        try:
            await self._loader.catch_up()
        except StoreError as error:
            raise cannot_write("metadata", error) from error
        registered = len(await self.registered())
        config = self._config.current
        if name == CONSUMER_OFFSETS:
            partitions, segment_bytes = config.offsets_topic_num_partitions, config.offsets_topic_segment_bytes
            factor, min_isr = config.offsets_topic_replication_factor, 1
        else:
            partitions = config.transaction_state_log_num_partitions
            segment_bytes = config.transaction_state_log_segment_bytes
            factor, min_isr = config.transaction_state_log_replication_factor, config.transaction_state_log_min_isr
        factor = min(factor, registered)
        configs = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}
        if min(min_isr, factor) > 1:
            configs["min.insync.replicas"] = str(min(min_isr, factor))
        try:
            return await self.create(name, partitions=partitions, replication_factor=factor, configs=configs)
        except ProtocolError:
            topic = self._cache.image.topic(name)
            if topic is None:
                raise
            return topic  # another client has created it

    async def add_partitions(
        self, topic: TopicInfo, added: Sequence[tuple[int, ...]], deadline: Deadline | None = None
    ) -> None:
        """Add partitions with these replicas.

        Raises UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, REQUEST_TIMED_OUT.
        """
        infos = self._infos(added)
        async with self._loader.changing(deadline) as log:
            await self._workers.write_store(topic_nodes.add_partitions, log, topic, infos)
        self._logger.info("topic %s has %d partitions now", topic.name, topic.partition_count + len(infos))

    async def delete(self, topic: TopicInfo, deadline: Deadline | None = None) -> None:
        """Delete a topic and its data.

        Raises INVALID_REQUEST for an internal topic, REQUEST_TIMED_OUT, and UNKNOWN_TOPIC_OR_PARTITION if another
        request has deleted the topic.
        """
        if topic.internal:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{topic.name} is an internal topic and cannot be deleted")
        async with self._loader.changing(deadline) as log:
            topic = self._cache.image.topic_by_id(topic.topic_id) or topic  # partitions may have been added meanwhile
            await self._workers.write_store(topic_nodes.erase_topic, log, topic)
        self._logger.info("deleted topic %s", topic.name)
