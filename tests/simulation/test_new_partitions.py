"""A group that exists before its topic."""

from __future__ import annotations

import asyncio

from oncelog import aio
from oncelog.sim.world import PORT, World
from support.raw_client import RawWriter

LIMIT_S = 600.0


def test_topic_created_after_its_readers_is_read() -> None:
    async def scenario(world: World) -> list[bytes | None]:
        broker = await world.start_broker(group_initial_rebalance_delay_ms=0)
        async with aio.Consumer(f"broker-1:{PORT}", group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["later"])
            while not consumer.group_metadata().member_id:
                await consumer.poll(0.1)
            writer = RawWriter("broker-1", PORT, "writer")
            topic = await writer.create_topic("later", 1)
            await writer.start()
            await writer.write(topic, 0, [b"x"], world.now_ms())
            await writer.end(commit=True)
            values: list[bytes | None] = []
            while not values:
                values += [record.value for record in await consumer.poll(1)]
                await asyncio.sleep(0)
        await broker.stop()
        return values

    assert World(1).run(scenario, limit_s=LIMIT_S) == [b"x"]
