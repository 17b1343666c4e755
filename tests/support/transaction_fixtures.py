"""A simulated broker with a transactional writer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from oncelog.broker.broker import Broker
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.sim.world import PORT, SimBroker, World
from support.raw_client import RawWriter

E = ErrorCode


class Setup:
    """A broker with the topic `out` of two partitions, and a writer `etl` that has started."""

    def __init__(self, world: World, broker: SimBroker, writer: RawWriter, topic: UUID) -> None:
        self.world = world
        self.sim = broker
        self.writer = writer
        self.topic = topic

    @property
    def broker(self) -> Broker:
        assert self.sim.broker is not None
        return self.sim.broker

    async def call(self, request: Any, version: int | None = None) -> Any:
        return await self.writer.call(request, lambda _: 0, version)

    async def write(self, partition: int = 0) -> None:
        await self.writer.write(self.topic, partition, [b"x"], self.world.now_ms())

    async def state(self, name: str = "etl") -> Any:
        response = await self.call(DescribeTransactionsRequest(transactional_ids=[name]))
        return response.transaction_states[0]

    async def producers(self, partition: int = 0) -> Any:
        request = DescribeProducersRequest(topics=[TopicRequest(name="out", partition_indexes=[partition])])
        return (await self.call(request)).topics[0].partitions[0]


def with_broker(scenario: Callable[[Setup], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run(world: World) -> None:
        broker = await world.start_broker(**settings)
        writer = RawWriter("broker-1", PORT, "etl")
        topic = await writer.create_topic("out", 2)
        await writer.start()
        await scenario(Setup(world, broker, writer, topic))
        await broker.stop()

    World(1).run(run, limit_s=3600)
