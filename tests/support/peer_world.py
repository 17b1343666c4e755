"""Simulated brokers that know each other, with topics whose partitions are on given brokers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from oncelog.broker.broker import Broker
from oncelog.cluster import topic_nodes
from oncelog.cluster.brokers import BrokerInfo, Endpoint
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.image import MetadataDelta
from oncelog.cluster.partition_state import decode_state, encode_state, state_path
from oncelog.cluster.store import Set
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from oncelog.sim.world import PORT, World

LISTENER = "PLAINTEXT"


class PeerWorld:
    """Brokers over one store. A test writes their registrations, and the leaders of partitions."""

    def __init__(self, world: World, brokers: int) -> None:
        self.world = world
        self.ids = range(1, brokers + 1)
        self.registered: dict[int, BrokerInfo] = {}
        self._epochs: dict[int, int] = {}
        self._topics = 0

    def broker(self, node_id: int) -> Broker:
        """Return the broker that runs on a machine."""
        found = self.world.brokers[node_id].broker
        assert found is not None
        return found

    async def start(self, **settings: Any) -> None:
        """Start and register all brokers, and create the internal topics with partition P on broker P mod N + 1."""
        for node_id in self.ids:
            await self.world.start_broker(node_id, **settings)
            await self.register(node_id)
        for name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            await self.create(name, [1 + index % len(self.ids) for index in range(6)], {"cleanup.policy": "compact"})

    async def restart(self, node_id: int) -> None:
        """Kill a broker, start it, elect it again under the next leader epochs, and register it."""
        machine = self.world.brokers[node_id]
        if machine.alive:
            machine.kill()
            await self.forget(node_id)
        for topic in tuple(self.broker(next(each for each in self.ids if each != node_id)).metadata.image.topics()):
            for index, info in enumerate(topic.partitions):
                if info.leader == node_id:
                    self.write_leader(topic.name, index, node_id)
        await machine.start()
        await self.register(node_id)

    async def register(self, node_id: int) -> None:
        """Register a broker, or register it again."""
        epoch = self._epochs[node_id] = self._epochs.get(node_id, -1) + 1
        self.registered[node_id] = BrokerInfo(epoch, {LISTENER: Endpoint(f"broker-{node_id}", PORT)})
        await self.publish()

    async def forget(self, node_id: int) -> None:
        """Remove the registration of a broker."""
        del self.registered[node_id]
        await self.publish()

    async def publish(self, *only: int) -> None:
        """Let brokers, all of them by default, read the tree."""
        for node_id in only or self.ids:
            machine = self.world.brokers.get(node_id)
            if machine is None or not machine.alive:
                continue
            broker = self.broker(node_id)
            task = self.world.loop.spawn(machine.process, self._publish(broker))
            await task

    async def _publish(self, broker: Broker) -> None:
        await broker.loader.catch_up()
        before = broker.metadata.image
        after = replace(before, brokers=dict(self.registered))
        if after.brokers != before.brokers:
            broker.metadata.image = after
            delta = MetadataDelta(before, after, (), (), ())
            for subscriber in broker.loader._subscribers:
                rest = subscriber(delta)
                if rest is not None:
                    await rest()

    async def create(self, name: str, leaders: Sequence[int], configs: dict[str, str] | None = None) -> UUID:
        """Create a topic with one partition on each of these brokers, and return its id."""
        self._topics += 1
        partitions = tuple(PartitionInfo(leader, 0, (leader,), (leader,)) for leader in leaders)
        topic = TopicInfo(name, UUID(int=(4 << 76) + self._topics), partitions, configs or {})
        topic_nodes.write_topic(ChangeLog(self.world.store), topic)
        await self.publish()
        return topic.topic_id

    def write_leader(self, topic: str, partition: int, leader: int) -> None:
        """Elect a leader, or -1 for none, under the next leader epoch. `publish` tells the brokers."""
        store = self.world.store
        path = state_path(topic, partition)
        state = decode_state(store.get(path))
        new = replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)
        ChangeLog(store).write([Set(path, encode_state(new), state.version)], f"/brokers/topics/{topic}")


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
