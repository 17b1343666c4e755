"""`for record in consumer`: a seek, pause or changed assignment inside the loop applies from the next record on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from oncelog import Consumer, Producer, aio
from oncelog.client.types import ConsumerRecord
from support.servers import Server
from support.wire import Wire

EARLIEST = {"auto_offset_reset": "earliest"}


@pytest.fixture
def topic(server: Server, name: str) -> str:
    """Create two partitions with ten records each, whose timestamps increase by 1 ms."""
    with Wire(server.bootstrap) as wire:
        wire.create_topic(name, 2)
    with Producer(server.bootstrap) as producer:
        for number in range(20):
            producer.send(name, b"%d" % (number // 2), partition=number % 2, timestamp=1_000 + number // 2)
    return name


def loop(consumer: Consumer, at: dict[int, Callable[[], object]], count: int) -> list[int]:
    """Return offsets in the order of the loop. After the n-th record, call the function for n."""
    found: list[int] = []
    for record in consumer:
        found.append(record.offset)
        at.get(len(found), lambda: None)()
        if len(found) == count:
            break
    return found


@pytest.fixture
def consumer(server: Server, topic: str) -> Iterator[Consumer]:
    """Return a consumer of the first partition."""
    with Consumer(server.bootstrap, group_id=topic, **EARLIEST) as made:
        made.assign([(topic, 0)])
        yield made


def test_seek_in_a_loop_takes_effect_at_once(consumer: Consumer, topic: str) -> None:
    at = {3: lambda: consumer.seek(topic, 0, 8), 4: lambda: consumer.seek(topic, 0, 1)}
    assert loop(consumer, at, 7) == [0, 1, 2, 8, 1, 2, 3]
    assert consumer.positions() == {(topic, 0): 4}
    assert loop(consumer, {}, 6) == [4, 5, 6, 7, 8, 9]


SEEKS: dict[str, tuple[Callable[[Consumer], object], list[int]]] = {
    "beginning": (lambda consumer: consumer.seek_to_beginning(), [0, 1, 2, 0, 1]),
    "time": (lambda consumer: consumer.seek_to_time(1_006), [0, 1, 2, 6, 7]),
    "committed": (lambda consumer: consumer.seek_to_committed(), [0, 1, 2, 5, 6]),
}


@pytest.mark.parametrize("to", SEEKS)
def test_every_kind_of_seek_takes_effect_at_once(consumer: Consumer, topic: str, to: str) -> None:
    seek, expected = SEEKS[to]
    consumer.commit({(topic, 0): 5})
    consumer.seek(topic, 0, 0)
    assert loop(consumer, {3: lambda: seek(consumer)}, 5) == expected


def test_seek_at_the_end_of_a_loop_is_kept(consumer: Consumer, topic: str) -> None:
    assert loop(consumer, {3: lambda: consumer.seek(topic, 0, 7)}, 3) == [0, 1, 2]
    assert consumer.positions() == {(topic, 0): 7}
    assert [record.offset for record in consumer.poll(30, 1)] == [7]


def both(server: Server, topic: str, act: Callable[[Consumer, ConsumerRecord, int], object], count: int) -> list[str]:
    """Return partition and offset of a loop over both partitions. `act` gets the number of each record."""
    found: list[str] = []
    with Consumer(server.bootstrap, **EARLIEST) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        while len(consumer._core.subscription.ready) < 2:  # both are buffered: the next poll returns all twenty at once
            consumer.poll(0.01, max_records=0)
        for record in consumer:
            found.append(f"{record.partition}:{record.offset}")
            act(consumer, record, len(found))
            if len(found) == count:
                break
    return found


def test_seek_in_one_partition_does_not_affect_another(server: Server, topic: str) -> None:
    def act(consumer: Consumer, record: ConsumerRecord, number: int) -> None:
        if number == 4:
            consumer.seek(topic, record.partition, 9)

    found = both(server, topic, act, 15)
    first = found[0][0]
    assert [each for each in found if each[0] == first] == [f"{first}:{offset}" for offset in (0, 1, 2, 3, 9)]
    assert len(found) == 15


def test_paused_partition_returns_no_records_and_loses_none(server: Server, topic: str) -> None:
    def act(consumer: Consumer, record: ConsumerRecord, number: int) -> None:
        if number == 4:
            consumer.pause([(topic, record.partition)])
        if number == 14:
            consumer.resume()

    found = both(server, topic, act, 20)
    first = found[0][0]
    assert all(each[0] != first for each in found[4:14])
    assert [each for each in found if each[0] == first] == [f"{first}:{offset}" for offset in range(10)]


def test_unassigned_partition_returns_no_more_records(server: Server, topic: str) -> None:
    def act(consumer: Consumer, record: ConsumerRecord, number: int) -> None:
        if number == 4:
            consumer.assign([(topic, 1 - record.partition)])

    found = both(server, topic, act, 14)
    assert {each[0] for each in found[4:]} == {str(1 - int(found[0][0]))}


def test_reassigned_partition_is_read_from_the_start(server: Server, topic: str) -> None:
    def act(consumer: Consumer, record: ConsumerRecord, number: int) -> None:
        if number == 4:
            consumer.assign([(topic, 1 - record.partition)])
            consumer.assign([(topic, record.partition)])

    found = both(server, topic, act, 8)
    assert [each[2] for each in found] == list("01230123")


def test_close_ends_the_loop(server: Server, topic: str) -> None:
    found = both(server, topic, lambda consumer, record, number: number == 3 and consumer.close(), 99)
    assert len(found) == 3


def test_seek_and_close_in_an_asyncio_loop(server: Server, topic: str) -> None:
    async def body() -> list[int]:
        found: list[int] = []
        async with aio.Consumer(server.bootstrap, **EARLIEST) as consumer:
            consumer.assign([(topic, 0)])
            async for record in consumer:
                found.append(record.offset)
                if len(found) == 3:
                    consumer.seek(topic, 0, 8)
                if len(found) == 4:
                    consumer.seek_to_beginning()
                if len(found) == 6:
                    await consumer.close()
        return found

    assert asyncio.run(body()) == [0, 1, 2, 8, 0, 1]
