"""Simulated brokers that know each other, with topics whose partitions are on given brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from oncelog.broker.broker import Broker
from oncelog.cluster import topic_nodes
from oncelog.cluster.brokers import epoch_path
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.store import Set
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.coordinator.partitioning import partition_for
from oncelog.net.connection import ClientConnection
from oncelog.net.security import PLAINTEXT, Security
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.fetch import FetchRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.produce import ProduceRequest
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.schema import Message
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from oncelog.sim.world import PORT, World
from support.raw_client import RawWriter, connect_to

PARTITIONS = 6
"""The number of partitions of each internal topic."""


class PeerWorld:
    """Brokers over one store. A test chooses the leaders of partitions."""

    def __init__(self, world: World, brokers: int) -> None:
        self.world = world
        self.security = PLAINTEXT
        self.ids = range(1, brokers + 1)
        self._topics = 0

    def broker(self, node_id: int) -> Broker:
        """Return the broker that runs on a machine."""
        found = self.world.brokers[node_id].broker
        assert found is not None
        return found

    async def start(self, **settings: Any) -> None:
        """Start all brokers, and create the internal topics with partition P on broker P mod N + 1."""
        for node_id in self.ids:
            await self.world.start_broker(node_id, **settings)
        await self.publish()
        for name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            await self.create(
                name, [1 + index % len(self.ids) for index in range(PARTITIONS)], {"cleanup.policy": "compact"}
            )

    async def restart(self, node_id: int) -> None:
        """Kill a broker if it is alive, and start it. The controller elects it again, under the next leader epochs."""
        machine = self.world.brokers[node_id]
        if machine.alive:
            machine.kill()
        await machine.start()
        await self.publish()

    async def expire(self, node_id: int) -> None:
        """End the sessions of a broker. If it is alive, it registers again."""
        self.world.store_link(f"broker-{node_id}").expire_sessions()
        await asyncio.sleep(1)
        await self.publish()

    async def publish(self, *only: int) -> None:
        """Let brokers, all of them by default, read the tree."""
        for node_id in only or self.ids:
            machine = self.world.brokers.get(node_id)
            if machine is not None and machine.alive and machine.process is not None:
                await self.world.loop.spawn(machine.process, self.broker(node_id).loader.catch_up())

    async def create(self, name: str, leaders: Sequence[int], configs: dict[str, str] | None = None) -> UUID:
        """Create a topic with one partition on each of these brokers, and return its id."""
        self._topics += 1
        partitions = tuple(
            PartitionInfo((leader,), PartitionState(leader, 0, (leader,), leader_broker_epoch=self.epoch(leader)))
            for leader in leaders
        )
        topic = TopicInfo(name, UUID(int=(4 << 76) + self._topics), partitions, configs or {})
        topic_nodes.write_topic(ChangeLog(self.world.store), topic)
        await self.publish()
        return topic.topic_id

    def epoch(self, node_id: int) -> int:
        """Return the epoch of a broker's last registration."""
        return self.world.store.get(epoch_path(node_id)).version

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader of a partition in the tree."""
        return decode_state(self.world.store.get(state_path(topic, partition))).leader

    def coordinator(self, topic: str, key: str) -> int:
        """Return the broker that coordinates a group or a transactional id."""
        return self.leader(topic, partition_for(key, PARTITIONS))

    def id_on(self, topic: str, broker: int) -> str:
        """Return a group or transactional id that this broker coordinates."""
        return next(name for name in map("id-{}".format, range(1000)) if self.coordinator(topic, name) == broker)

    def write_leader(self, topic: str, partition: int, leader: int) -> None:
        """Elect a leader, or -1 for none, under the next leader epoch. `publish` tells the brokers."""
        store = self.world.store
        path = state_path(topic, partition)
        state = decode_state(store.get(path))
        new = replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)
        ChangeLog(store).write([Set(path, encode_state(new), state.version)], f"/brokers/topics/{topic}")


class RoutedWriter(RawWriter):
    """A writer that sends each request to the broker that the tree names for it."""

    def __init__(self, peers: PeerWorld, transactional_id: str, timeout_ms: int = 60_000) -> None:
        super().__init__("", 0, transactional_id, timeout_ms)
        self._peers = peers
        self.security: Security | None = None
        """How the writer connects to brokers. None: as all others."""
        self._connections: dict[int, ClientConnection] = {}
        self.topics: dict[UUID, str] = {}
        """The names of the topics that the writer uses, by id."""

    async def start(self) -> None:
        """Start a new session. When this returns, the predecessor's transaction is ended."""
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        response = await self.call(request)
        self._become(response.producer_id, response.producer_epoch)

    async def connection_for(self, request: Message) -> ClientConnection:
        """Return an open connection to the broker that the tree names. Raises ConnectionLostError."""
        return await self.connection(self._broker_of(request))

    async def connection(self, broker: int) -> ClientConnection:
        """Return an open connection to a broker. Raises ConnectionLostError."""
        connection = self._connections.get(broker)
        if connection is None or connection.closed:
            connection = self._connections[broker] = await connect_to(
                f"broker-{broker}", PORT, self.security or self._peers.security
            )
        return connection

    def _broker_of(self, request: Message) -> int:
        if isinstance(request, TxnOffsetCommitRequest):
            return self._peers.coordinator(CONSUMER_OFFSETS, request.group_id)
        if isinstance(request, OffsetFetchRequest):
            return self._peers.coordinator(CONSUMER_OFFSETS, request.groups[0].group_id)
        if isinstance(request, ProduceRequest):
            topic = request.topic_data[0]
            return self._peers.leader(self.topics[topic.topic_id], topic.partition_data[0].index)
        if isinstance(request, FetchRequest):
            wanted = request.topics[0]
            return self._peers.leader(self.topics[wanted.topic_id], wanted.partitions[0].partition)
        return self._peers.coordinator(TRANSACTION_STATE, self.transactional_id)

    async def state(self) -> str:
        """Return the state of the transactional id."""
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        response = await self.call(request, lambda r: r.transaction_states[0].error_code)
        return str(response.transaction_states[0].transaction_state)

    async def commit_offset(self, group: str, topic: str, offset: int) -> None:
        """Commit the offset of partition 0 of a topic in the transaction."""
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        await self.call(request, lambda r: r.topics[0].partitions[0].error_code)

    async def committed_offset(self, group: str, topic: str, partition: int = 0) -> int:
        """Return the committed offset of a partition, or -1. Wait until no transaction may change it."""
        wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=True
        )

        def error_of(response: Any) -> int:
            code: int = response.groups[0].error_code or response.groups[0].topics[0].partitions[0].error_code
            return ErrorCode.NOT_COORDINATOR if code == ErrorCode.UNSTABLE_OFFSET_COMMIT else code

        response = await self.call(request, error_of, 9)
        return int(response.groups[0].topics[0].partitions[0].committed_offset)


def with_brokers(
    scenario: Callable[[PeerWorld], Coroutine[Any, Any, None]], brokers: int = 2, *, seed: int = 1, **settings: Any
) -> None:
    """Run a scenario with some brokers, which stop at the end."""

    async def run(world: World) -> None:
        peers = PeerWorld(world, brokers)
        await peers.start(**settings)
        await scenario(peers)
        for machine in world.brokers.values():
            if machine.alive:
                await machine.stop()

    World(seed).run(run, limit_s=3600)
