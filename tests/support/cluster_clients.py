"""The clients of a world with three brokers. They retry forever."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from oncelog.cluster.partition_state import PartitionState, decode_state, state_path
from oncelog.cluster.store import NoNodeError
from oncelog.cluster.topic_nodes import read_topic
from oncelog.coordinator.partitioning import partition_for
from oncelog.net.failures import ConnectionLostError
from oncelog.net.security import PLAINTEXT
from oncelog.protocol.messages.create_acls import CreateAclsRequest
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from oncelog.sim.world import World
from support.peer_world import RoutedWriter
from support.raw_client import RefusedError

TOPIC = "t"
COORDINATORS = 2
"""Partitions of each internal topic."""
ANYWHERE = (
    CreateAclsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
"""Requests that each broker can answer."""


class Routes:
    """The leaders, as the tree has them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.security = PLAINTEXT
        """How the clients connect to brokers."""
        self._rng = world.stream("routes")

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader."""
        return self.state(topic, partition).leader

    def state(self, topic: str, partition: int) -> PartitionState:
        """Return the state of a partition."""
        return decode_state(self._world.store.get(state_path(topic, partition)))

    def coordinator(self, topic: str, key: str) -> int:
        """Return the coordinator of a group or a transactional id."""
        return self.leader(topic, partition_for(key, COORDINATORS))

    def topic_id(self, topic: str) -> UUID | None:
        """Return the id of a topic, or None if it does not exist."""
        try:
            return read_topic(self._world.store, topic).topic_id
        except NoNodeError:
            return None

    def has_partition(self, topic: str, partition: int) -> bool:
        """Return whether a partition exists."""
        return self._world.store.exists(state_path(topic, partition))

    def any(self) -> int:
        """Return any broker."""
        return self._rng.choice(list(self._world.brokers))


class Client(RoutedWriter):
    """A writer that finds its way to the right broker."""

    def __init__(self, routes: Routes, name: str, timeout_ms: int = 60_000) -> None:
        super().__init__(routes, name, timeout_ms)  # type: ignore[arg-type]
        self.routes = routes

    def _broker_of(self, request: Message) -> int:
        if isinstance(request, ANYWHERE) or (
            isinstance(request, InitProducerIdRequest) and request.transactional_id is None
        ):
            return self.routes.any()
        if isinstance(request, OffsetCommitRequest):
            return self.routes.coordinator(CONSUMER_OFFSETS, request.group_id)
        return super()._broker_of(request)

    async def create_topics(self, partitions: int, replicas: int) -> dict[str, Any]:
        """Create the topic of the clients and the internal topics. Return their ids."""
        topic = CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=replicas)
        await self.call(CreateTopicsRequest(topics=[topic], timeout_ms=5000), lambda r: r.topics[0].error_code)
        for key_type in (0, 1):
            find = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"])
            await self.call(find, lambda r: r.coordinators[0].error_code)
        wanted = [MetadataRequestTopic(name=name) for name in (TOPIC, CONSUMER_OFFSETS, TRANSACTION_STATE)]
        response = await self.call(MetadataRequest(topics=wanted), lambda r: max(each.error_code for each in r.topics))
        return {topic.name: topic.topic_id for topic in response.topics}

    async def create_topic_with(self, name: str, replicas: int, configs: dict[str, str]) -> Any:
        """Create a topic with one partition, and return its id."""
        settings = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=replicas, configs=settings)
        await self.call(CreateTopicsRequest(topics=[topic], timeout_ms=5000), lambda r: r.topics[0].error_code)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        response = await self.call(request, lambda r: r.topics[0].error_code)
        return response.topics[0].topic_id

    async def commit(self, group: str, offset: int) -> None:
        """Commit an offset of a group without members."""
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
        request = OffsetCommitRequest(group_id=group, topics=topics)
        await self.call(request, lambda r: r.topics[0].partitions[0].error_code, 9)

    async def offset_at(self, broker: int, group: str, topic: str, partition: int = 0) -> int | None:
        """Return a group's offset of a partition as a broker has it, or None if that is not the coordinator."""
        wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
        try:
            response = await (await self.connection(broker)).call(request, 9)
        except ConnectionLostError:
            return None
        (found,) = response.groups
        return None if found.error_code else int(found.topics[0].partitions[0].committed_offset)

    async def try_write(self, broker: int, topic_id: Any, partition: int, value: bytes, now_ms: int) -> bool:
        """Write a record with acks=1 to a broker, once. Return whether the broker has acknowledged it."""
        batch = build_batch([Record(0, now_ms, None, value)])
        data = TopicProduceData(
            topic_id=topic_id, partition_data=[PartitionProduceData(index=partition, records=bytes(batch))]
        )
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data])
        try:
            response = await (await self.connection(broker)).call(request)
        except ConnectionLostError:
            return False
        return not response.responses[0].partition_responses[0].error_code


class Producer(Client):
    """An idempotent producer of one partition. It has one request in flight."""

    def __init__(
        self,
        routes: Routes,
        topic_id: Any,
        partition: int,
        rng: random.Random,
        now_ms: Callable[[], int],
        topic: str = TOPIC,
    ) -> None:
        super().__init__(routes, "")
        self.topics[topic_id] = self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self._rng = rng
        self._now_ms = now_ms
        self._asked = -1
        """The broker that got the last request."""

    def _broker_of(self, request: Message) -> int:
        """Return the leader, or now and then another broker, as if the producer had an old image."""
        self._asked = self.routes.any() if self._rng.random() < 0.05 else super()._broker_of(request)
        return self._asked

    async def start(self) -> None:
        """Get a producer id."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=self.timeout_ms)
        response = await self.call(request)
        self._become(response.producer_id, response.producer_epoch)

    async def send(self, value: bytes | None, key: bytes | None = None) -> int:
        """Write one record, and return its offset. Now and then, send it again, which must not write it again."""
        sequence = self._sequences.get(self.partition, 0)
        batch = build_batch(
            [Record(0, self._now_ms(), key, value)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        offset = await self._send(batch)
        if self._rng.random() < 0.2:
            again = await self._send(batch)
            assert again == offset, f"{value!r} was written at {offset}, and its retry at {again}"
        self._sequences[self.partition] = sequence + 1
        return offset

    async def _send(self, batch: bytes | bytearray) -> int:
        data = PartitionProduceData(index=self.partition, records=bytes(batch))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(topic_id=self.topic_id, partition_data=[data])],
        )
        while True:
            try:
                response = await self.call(request, lambda r: r.responses[0].partition_responses[0].error_code)
            except RefusedError:
                if self._asked == self.routes.leader(self.topic, self.partition):
                    raise
                continue  # a former leader lacks the records that its successor has acknowledged
            return int(response.responses[0].partition_responses[0].base_offset)
