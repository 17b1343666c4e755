"""Records that find the buffer full: the partition of each is chosen once, and no release is missed."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from oncelog import Producer, aio, errors
from oncelog.client.producer.buffer import NoRoomError
from oncelog.client.producer.core import ProducerCore

OPTIONS: dict[str, Any] = {
    "linger_ms": 100_000,
    "buffer_memory": 10_000,
    "partitioner": "round_robin",
    "max_block_ms": 5_000,
}
RECORD = b"x" * 1_000
RECORDS = 100


def settle(core: ProducerCore) -> None:
    """Complete everything in the buffer, and free its memory."""
    with core.buffer.settling() as settlement:
        settlement.drop_undrained(errors.TimedOutError("given up"))


@contextlib.contextmanager
def counted(core: ProducerCore) -> Iterator[list[int]]:
    """Return the chosen partitions, in order."""
    core.counts["t"] = 3
    chosen: list[int] = []
    choose = core.buffer.partitioner

    def counting(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        chosen.append(choose(topic, key, value, partitions))
        return chosen[-1]

    core.buffer.partitioner = counting
    yield chosen
    assert chosen == [index % 3 for index in range(len(chosen))]


@contextlib.contextmanager
def made(**options: Any) -> Iterator[tuple[Producer, ProducerCore]]:
    """Create a producer without a broker. Its records fail."""
    producer = Producer("localhost:1", **{**OPTIONS, **options})
    producer._core.counts["t"] = 3
    try:
        yield producer, producer._core
    finally:
        with contextlib.suppress(errors.TimedOutError):
            producer.close(0)


def blocking(headers: Any) -> list[int]:
    with made() as (producer, core), counted(core) as chosen:
        core.buffer.wait_for_memory = lambda *_: settle(core) or True  # type: ignore[method-assign, func-returns-value]
        places = [producer.send("t", RECORD, headers=headers)._delivery.tp[1] for _ in range(RECORDS)]
        assert places == chosen
    return chosen


def awaited(headers: Any) -> list[int]:
    async def main() -> list[int]:
        producer = aio.Producer("localhost:1", **OPTIONS)
        await producer.start()
        core = producer._core

        async def freed(*_: object) -> bool:
            settle(core)
            return True

        with counted(core) as chosen:
            core.buffer.memory_freed = freed  # type: ignore[method-assign]
            places = [(await producer.send("t", RECORD, headers=headers))._delivery.tp[1] for _ in range(RECORDS)]
            assert places == chosen
        with contextlib.suppress(errors.TimedOutError):
            await producer.close(0)
        return chosen

    return asyncio.run(main())


@pytest.mark.parametrize("headers", [(), {"name": "text"}], ids=["plain", "headers that are a mapping"])
@pytest.mark.parametrize("send", [blocking, awaited])
def test_partition_of_a_waiting_record_is_chosen_once(send: Callable[[Any], list[int]], headers: Any) -> None:
    assert len(send(headers)) == RECORDS


def test_memory_freed_before_the_wait_starts_is_noticed() -> None:
    """Another thread frees the memory, here at the worst moment."""
    waits: list[bool] = []
    with made() as (producer, core):
        append, wait = producer._append, core.buffer.wait_for_memory
        refused = 0

        def freed_after(*arguments: Any) -> Any:
            nonlocal refused
            try:
                return append(*arguments)
            except NoRoomError:
                refused += 1
                if refused % 2 == 0:  # `send` uses its slow path after the first rejection, and waits after the second
                    settle(core)
                raise

        def waited(timeout: float, releases: int) -> bool:
            waits.append(wait(timeout, releases))
            return waits[-1]

        producer._append = freed_after
        core.buffer.wait_for_memory = waited  # type: ignore[method-assign]
        for _ in range(RECORDS):
            producer.send("t", RECORD)
    assert waits
    assert all(waits), "it waited for its whole time although memory was free"


def test_memory_freed_before_the_wait_for_a_table_starts_is_noticed() -> None:
    waits: list[bool] = []
    with made() as (producer, core):
        append, wait = core.buffer.append_encoded, core.buffer.wait_for_memory

        def freed_after(*arguments: Any) -> Any:
            try:
                return append(*arguments)
            except NoRoomError:
                settle(core)
                raise

        def waited(timeout: float, releases: int) -> bool:
            waits.append(wait(timeout, releases))
            return waits[-1]

        core.buffer.append_encoded = freed_after  # type: ignore[method-assign]
        core.buffer.wait_for_memory = waited  # type: ignore[method-assign]
        producer.send_table("t", pa.table({"value": [RECORD] * RECORDS}))
    assert waits
    assert all(waits)


def test_waiting_for_memory_ends_with_max_block_ms() -> None:
    with made(max_block_ms=50) as (producer, _), pytest.raises(errors.TimedOutError, match="buffer_memory"):
        collections.deque((producer.send("t", RECORD) for _ in range(RECORDS)), maxlen=0)
