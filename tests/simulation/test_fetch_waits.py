"""How long a Fetch waits, and how often it reads, on the world's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from oncelog.broker.broker import Broker
from oncelog.broker.handlers import fetch
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.delayed import ALWAYS_WAITS, MOST_PAUSING, MOST_WAITING, PAUSE_S
from oncelog.cluster.replica import Replica
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.records import Record, build_batch
from oncelog.sim.world import World

CONTEXT = RequestContext(ApiKey.FETCH, 12, 1, "test", Session())
BATCH = bytes(build_batch([Record(0, 10**12, None, bytes(100))]))


def live(partitions: int, life: Callable[[World, Broker, fetch.FetchHandler], Awaitable[None]]) -> None:
    """Run `life` with a broker that has topic `t`, and with its handler of Fetch."""

    async def scenario(world: World) -> None:
        machine = await world.start_broker()
        broker = machine.broker
        assert broker is not None
        assert machine.process is not None
        await world.loop.spawn(machine.process, broker.topics.create("t", partitions=partitions))
        handler: Any = fetch.bind(broker.services)
        await world.loop.spawn(machine.process, life(world, broker, handler))  # type: ignore[arg-type]
        await machine.stop()

    World(1).run(scenario, limit_s=600)


def request(partitions: int, *, wait_ms: int, min_bytes: int, max_bytes: int = 1 << 20, **fields: Any) -> FetchRequest:
    wanted = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=max_bytes) for n in range(partitions)]
    topics = [FetchTopic(topic="t", partitions=wanted)]
    return FetchRequest(session_epoch=-1, max_wait_ms=wait_ms, min_bytes=min_bytes, topics=topics, **fields)


def started(handler: fetch.FetchHandler, asked: FetchRequest) -> asyncio.Future[Any]:
    answer = handler(asked, CONTEXT)
    assert isinstance(answer, Awaitable), "the Fetch does not wait"
    return asyncio.ensure_future(answer)


def append(broker: Broker) -> None:
    broker.partitions.require("t", 0).append(memoryview(bytearray(BATCH)), now_ms=10**12)


def test_fetch_is_answered_in_time_while_records_stream_in() -> None:
    """It reads many partitions in turns, and records are appended in each of them."""

    async def life(world: World, broker: Broker, handler: fetch.FetchHandler) -> None:
        begun = world.loop.now
        waiting = started(handler, request(150, wait_ms=100, min_bytes=1 << 24, isolation_level=1))
        for _ in range(2000):
            append(broker)
            world.loop._now += 0.001  # the append takes so long
            await asyncio.sleep(0)
            if waiting.done():
                break
        assert 0.1 <= world.loop.now - begun < 0.2
        assert len((await waiting).responses[0].partitions) == 150

    live(150, life)


def test_fetch_reads_again_only_after_enough_records() -> None:
    """The limit of the partition keeps the response small, so each read finds too few bytes."""

    async def life(_world: World, broker: Broker, handler: fetch.FetchHandler) -> None:
        replica = broker.partitions.require("t", 0)
        reads = []

        def counted(_topic: str, partition: int) -> Replica:
            reads.append(partition)
            return replica

        broker.partitions.require_any = counted  # type: ignore[method-assign]
        size = len(BATCH)
        waiting = started(handler, request(1, wait_ms=60_000, min_bytes=100 * size, max_bytes=10 * size))
        for _ in range(1000):
            replica.append(memoryview(bytearray(BATCH)), now_ms=10**12)
            await asyncio.sleep(0.001)
        assert 0 < len(reads) < 1000 / 80
        assert not waiting.done()
        [found] = (await waiting).responses[0].partitions
        assert len(found.records) == 10 * size

    live(1, life)


def test_client_does_not_poll_in_a_busy_loop_while_too_many_partitions_wait() -> None:
    async def life(world: World, _broker: Broker, handler: fetch.FetchHandler) -> None:
        handler._waiting.count = MOST_WAITING
        for partitions in (ALWAYS_WAITS + 1, 300):
            begun, fetches = world.loop.now, 0
            while world.loop.now < begun + 10 * PAUSE_S and fetches < 1000:
                answer = handler(request(partitions, wait_ms=500, min_bytes=1), CONTEXT)
                if isinstance(answer, Awaitable):
                    await answer
                fetches += 1
            assert fetches <= 12
        assert handler._pausing.count == 0
        begun = world.loop.now
        await started(handler, request(300, wait_ms=20, min_bytes=1))
        assert world.loop.now - begun < PAUSE_S / 2, "the Fetch is late"

    live(300, life)


def test_fetch_that_pauses_returns_the_records_of_the_pause() -> None:
    async def life(_world: World, broker: Broker, handler: fetch.FetchHandler) -> None:
        handler._waiting.count = MOST_WAITING
        pausing = started(handler, request(20, wait_ms=500, min_bytes=1))
        await asyncio.sleep(PAUSE_S / 2)
        append(broker)
        assert len((await pausing).responses[0].partitions[0].records) == len(BATCH)

    live(20, life)


def test_only_a_bounded_number_of_partitions_pauses() -> None:
    async def life(_world: World, _broker: Broker, handler: fetch.FetchHandler) -> None:
        handler._waiting.count = MOST_WAITING
        handler._pausing.count = MOST_PAUSING - 19
        assert not isinstance(handler(request(20, wait_ms=500, min_bytes=1), CONTEXT), Awaitable)
        handler._pausing.count = 0
        await started(handler, request(20, wait_ms=500, min_bytes=1))

    live(20, life)
