"""The result of a poll when a part of the fetched data is damaged."""

from __future__ import annotations

import asyncio

import pytest

from oncelog import aio, errors
from oncelog.client.consumer.completed_fetch import CompletedFetch
from oncelog.client.consumer.core import ConsumerCore
from oncelog.client.consumer.options import consumer_options
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import Record, build_batch


def waiting(core: ConsumerCore, partition: int, data: bytes) -> None:
    """Store data as if it had been fetched for a partition."""
    tp = ("t", partition)
    state = core.subscription.partitions[tp]
    state.seek(0)
    fetched = CompletedFetch(tp, PartitionData(records=data), 0, committed_only=False, check_crcs=True)
    core.subscription.add_fetch(fetched)


@pytest.mark.parametrize("as_tables", [False, True])
def test_damage_in_one_partition_does_not_affect_the_others(as_tables: bool) -> None:
    async def body() -> None:
        from oncelog.client.consumer.tables import decode

        core = ConsumerCore(consumer_options(None, {"bootstrap_servers": "nowhere:1"}), asyncio.get_running_loop())
        core.assign([("t", 0), ("t", 1)])
        good = bytes(build_batch([Record(0, 1_000, None, b"good")]))
        waiting(core, 0, good)
        waiting(core, 1, good[:-1] + b"\xff")

        async def values() -> list[bytes | None]:
            if not as_tables:
                return [record.value for record in await core.poll(0)]
            fetches = await core.poll_fetches(0)
            table = decode(core.subscription, fetches, check_crcs=True, include_headers=False)
            found: list[bytes | None] = table["value"].to_pylist()
            return found

        assert await values() == [b"good"]
        assert core.subscription.consumed() == {("t", 0): 1, ("t", 1): 0}
        if as_tables:  # it is fetched again
            waiting(core, 1, good[:-1] + b"\xff")
        with pytest.raises(errors.CorruptRecordError, match="t-1 at offset 0") as caught:
            await values()
        assert not caught.value.retriable
        assert core.subscription.consumed() == {("t", 0): 1, ("t", 1): 0}
        await core.close()

    asyncio.run(body())


def ten_records(core: ConsumerCore) -> None:
    core.assign([("t", 0)])
    waiting(core, 0, bytes(build_batch([Record(offset, 1_000, None, b"x") for offset in range(10)])))
    data = core.subscription.partitions["t", 0].buffered[0].raw

    def fetch() -> None:  # as a leader that answers at once
        state = core.subscription.partitions["t", 0]
        if not state.buffered and state.position is not None and state.position < 10:
            fetched = CompletedFetch(
                ("t", 0), PartitionData(records=data), state.position, committed_only=False, check_crcs=True
            )
            core.subscription.add_fetch(fetched)
            core.background.loop.call_soon(core.background.notify)

    core.fetcher.send_fetches = fetch  # type: ignore[method-assign]


def test_poll_after_an_abandoned_loop_loses_nothing() -> None:
    """The generator of an `async for` is closed only later."""

    async def body() -> None:
        async with aio.Consumer("nowhere:1") as consumer:
            ten_records(consumer._core)
            generator = aiter(consumer)
            seen = [(await anext(generator)).offset for _ in range(3)]
            seen += [record.offset for record in await consumer.poll(5, 4)]
            assert consumer.positions() == {("t", 0): 7}
            await generator.aclose()  # type: ignore[attr-defined]
            assert consumer.positions() == {("t", 0): 7}
            seen += [record.offset for record in await consumer.poll(5)]
            assert seen == list(range(10))

    asyncio.run(body())


def test_poll_inside_a_loop_returns_the_next_records() -> None:
    async def body() -> None:
        async with aio.Consumer("nowhere:1", max_poll_records=5) as consumer:
            ten_records(consumer._core)
            seen: list[int] = []
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 1:
                    seen += [found.offset for found in await consumer.poll(5, 2)]
                if seen[-1] == 9:
                    break
            assert seen == list(range(10))
            assert consumer.positions() == {("t", 0): 10}

    asyncio.run(body())
