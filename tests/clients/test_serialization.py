"""Serializers and deserializers of single records: no bad record stops a consumer, and none is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.formats import Json
from oncelog.serialization import (
    AvroDeserializer,
    AvroSerializer,
    JsonDeserializer,
    JsonSerializer,
    SchemaRegistry,
    SerializationContext,
    StringDeserializer,
    StringSerializer,
)
from oncelog.testing.registry import SchemaRegistryDouble
from support.servers import Server

JSON: dict[str, Any] = {"value_deserializer": JsonDeserializer(), "auto_offset_reset": "earliest"}
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def fake() -> Iterator[SchemaRegistryDouble]:
    with SchemaRegistryDouble() as found:
        yield found


def write(server: Server, topic: str, *values: bytes, partition: int = 0) -> None:
    with Producer(server.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def test_records_round_trip_as_objects(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    serializers: dict[str, Any] = {"key_serializer": StringSerializer(), "value_serializer": JsonSerializer()}
    with Producer(server.bootstrap, **serializers) as producer:
        producer.send(name, {"id": 1}, key="a", headers={"h": "x"})
        producer.send(name, None, key="a")
        producer.send(name, [])
    with Consumer(server.bootstrap, key_deserializer=StringDeserializer(), **JSON) as consumer:
        consumer.assign([(name, 0)])
        found = [(record.key, record.value, record.headers) for record in consumer.poll(30)]
    assert found == [("a", {"id": 1}, (("h", b"x"),)), ("a", None, ()), (None, [], ())]


def test_key_without_a_serializer_is_sent_as_before(server: Server, admin: Admin, name: str) -> None:
    """The same partition for the same bytes: the partitioner gets the serialized key."""
    admin.create_topics(name, 8)
    with Producer(server.bootstrap) as plain, Producer(server.bootstrap, key_serializer=JsonSerializer()) as producer:
        for number in range(20):
            first = plain.send(name, "x", str(number)).result(30)
            assert producer.send(name, "x", number).result(30).partition == first.partition


def test_data_that_cannot_be_serialized_sends_nothing(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)

    def send_both(producer: Producer) -> None:
        with producer.transaction() as transaction:
            transaction.send(name, 1)
            transaction.send(name, {1, 2})

    options: dict[str, Any] = {"transactional_id": name, "value_serializer": JsonSerializer()}
    with Producer(server.bootstrap, **options) as producer:
        with pytest.raises(errors.SerializationError):
            send_both(producer)
        with producer.transaction() as transaction:
            transaction.send(name, 2)
    with Consumer(server.bootstrap, isolation_level="read_committed", **JSON) as consumer:
        consumer.assign([(name, 0)])
        assert [record.value for record in consumer.poll(30)] == [2]


# -- bad records ------------------------------------------------------------------------------------------------------


def test_bad_record_is_raised_until_the_program_skips_it(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    write(server, name, b"1", b"2", b"bad", b"4")
    with Consumer(server.bootstrap, group_id=name, **JSON) as consumer:
        consumer.assign([(name, 0)])
        assert [record.value for record in consumer.poll(30)] == [1, 2]
        assert consumer.positions() == {(name, 0): 2}
        for _ in range(3):
            with pytest.raises(errors.SerializationError, match=f"at offset 2 of {name}-0") as caught:
                consumer.poll(30)
        error = caught.value
        assert (error.field, error.topic, error.partition, error.offset) == ("value", name, 0, 2)
        assert error.record is not None
        assert error.record.value == b"bad"
        consumer.commit()
        assert consumer.committed() == {(name, 0): 2}
        consumer.seek(name, 0, 3)
        assert [record.value for record in consumer.poll(30)] == [4]
        consumer.commit()
        assert consumer.committed() == {(name, 0): 4}


@pytest.mark.parametrize("size", [1, 3, 500])
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_all_good_records_are_read_exactly_once_around_bad_ones(
    server: Server, admin: Admin, name: str, kind: str, size: int
) -> None:
    """Bad records are in several partitions, batches and places, also first, last and in a row."""
    admin.create_topics(name, 3)
    bad = {(0, 0), (0, 7), (0, 8), (0, 9), (1, 29), (2, 10), (2, 11)}
    for partition in range(3):
        with Producer(server.bootstrap) as producer:
            for offset in range(30):
                producer.send(name, b"{" if (partition, offset) in bad else b"%d" % offset, partition=partition)
                if offset % 10 == 9:
                    producer.flush()
    expected = {(partition, offset) for partition in range(3) for offset in range(30)} - bad
    found: list[tuple[int, int]] = []
    skipped: list[tuple[int, int]] = []
    options = {**JSON, "max_poll_records": size, "group_id": name, "enable_auto_commit": True}
    partitions = [(name, number) for number in range(3)]

    def skip(consumer: Consumer | aio.Consumer, error: errors.SerializationError) -> None:
        assert error.partition is not None
        assert error.offset is not None
        skipped.append((error.partition, error.offset))
        consumer.seek(name, error.partition, error.offset + 1)

    def read() -> None:
        with Consumer(server.bootstrap, **options) as consumer:
            consumer.assign(partitions)
            until = time.monotonic() + 60
            while len(found) + len(skipped) < 90 and time.monotonic() < until:
                try:
                    found.extend((record.partition, record.value) for record in consumer.poll(1))
                except errors.SerializationError as error:
                    skip(consumer, error)

    async def read_async() -> None:
        async with aio.Consumer(server.bootstrap, **options) as consumer:
            consumer.assign(partitions)
            until = time.monotonic() + 60
            while len(found) + len(skipped) < 90 and time.monotonic() < until:
                try:
                    found.extend((record.partition, record.value) for record in await consumer.poll(1))
                except errors.SerializationError as error:
                    skip(consumer, error)

    read() if kind == "blocking" else asyncio.run(read_async())
    assert sorted(found) == sorted(expected)
    assert sorted(skipped) == sorted(bad)
    for partition in range(3):
        assert [value for where, value in found if where == partition] == sorted(
            o for p, o in expected if p == partition
        )
    with Consumer(server.bootstrap, group_id=name) as consumer:
        assert consumer.committed() == dict.fromkeys(partitions, 30), "closing committed the positions"


def test_loop_over_records_continues_after_a_bad_one(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    write(server, name, b"1", b"bad", b"3")
    found: list[Any] = []
    with Consumer(server.bootstrap, **JSON) as consumer:
        consumer.assign([(name, 0)])
        while len(found) < 2:
            try:
                for record in consumer:
                    found.append(record.value)
                    if len(found) == 2:
                        break
            except errors.SerializationError as error:
                consumer.seek(name, 0, (error.offset or 0) + 1)
    assert found == [1, 3]


def test_interrupt_in_a_deserializer_loses_nothing(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    write(server, name, b"1", b"2")
    interrupts = [True]

    def interrupted(data: bytes, context: SerializationContext) -> bytes:
        if data == b"2" and interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return data

    with Consumer(server.bootstrap, value_deserializer=interrupted) as consumer:
        consumer.assign({(name, 0): 0})
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(30)
        assert [record.value for record in consumer.poll(30)] == [b"1", b"2"]


def test_tables_need_a_format_of_their_own(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with (
        Producer(server.bootstrap, value_serializer=JsonSerializer()) as producer,
        pytest.raises(errors.UsageError, match=r"send_table\(\) does not call value_serializer"),
    ):
        producer.send_table(name, {"value": ["x"]})
    with Consumer(server.bootstrap, **JSON) as consumer:
        consumer.assign([(name, 0)])
        with pytest.raises(errors.UsageError, match=r"tables\(\) does not call value_deserializer"):
            next(consumer.tables(timeout=1))


@pytest.mark.parametrize("wrong", ["json", Json, JsonSerializer()])
def test_table_is_not_read_or_sent_with_what_is_no_format(server: Server, name: str, wrong: Any) -> None:
    with Producer(server.bootstrap) as producer, pytest.raises(errors.UsageError, match=r"value must be a format, as"):
        producer.send_table(name, {"id": [1]}, value=wrong)
    with Consumer(server.bootstrap) as consumer, pytest.raises(errors.UsageError, match=r"key must be a format, as"):
        next(consumer.tables(timeout=1, key=wrong))


# -- Avro and its registry --------------------------------------------------------------------------------------------


def test_avro_round_trips(server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble) -> None:
    admin.create_topics(name)
    registry = SchemaRegistry(fake.url)
    with Producer(server.bootstrap, value_serializer=AvroSerializer(registry, ORDER)) as producer:
        for number in range(3):
            producer.send(name, {"id": number})
    with Consumer(server.bootstrap, value_deserializer=AvroDeserializer(registry)) as consumer:
        consumer.assign({(name, 0): 0})
        assert [record.value for record in consumer.poll(30)] == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert len(fake.requests) == 2
    assert list(fake.subjects) == [f"{name}-value"]


def test_registry_that_does_not_answer_stops_the_consumer_but_skips_nothing(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    registry = SchemaRegistry(fake.url, timeout=0.2)
    with Producer(server.bootstrap, value_serializer=AvroSerializer(registry, ORDER)) as producer:
        producer.send(name, {"id": 1})
    with Consumer(server.bootstrap, value_deserializer=AvroDeserializer(registry)) as consumer:
        consumer.assign({(name, 0): 0})
        fake.failures = [503] * 100
        with pytest.raises(errors.RegistryError, match="HTTP 503") as caught:
            consumer.poll(30)
        assert caught.value.retriable
        assert consumer.positions() == {(name, 0): 0}
        fake.failures = []
        assert [record.value for record in consumer.poll(30)] == [{"id": 1}]


def test_callback_of_the_blocking_producer_cannot_wait_for_the_registry(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    """It runs in the thread that sends the records of all clients."""
    admin.create_topics(name)
    raised: list[BaseException] = []
    done = threading.Event()
    with Producer(server.bootstrap, value_serializer=AvroSerializer(SchemaRegistry(fake.url), ORDER)) as producer:

        def more(*_: object) -> None:
            for topic in (name, f"{name}-new"):
                try:
                    producer.send(topic, {"id": 2})
                except errors.UsageError as error:
                    raised.append(error)
            done.set()

        producer.send(name, {"id": 1}, on_delivery=more)
        assert done.wait(30)
    assert ["schema registry" in str(error) for error in raised] == [True]


def test_registry_does_not_block_the_event_loop(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    fake.hold = threading.Event()
    registry = SchemaRegistry(fake.url, timeout=30)

    async def answer(request: int, hold: threading.Event) -> None:
        """Let the registry answer a request, which only a loop that runs can do."""
        while len(fake.requests) < request:
            await asyncio.sleep(0.01)
        hold.set()

    async def main() -> None:
        answering = asyncio.create_task(answer(1, fake.hold))
        async with aio.Producer(server.bootstrap, value_serializer=AvroSerializer(registry, ORDER)) as producer:
            for number in range(3):
                await (await producer.send(name, {"id": number}))
        await answering
        fake.hold = threading.Event()
        answering = asyncio.create_task(answer(2, fake.hold))
        async with aio.Consumer(server.bootstrap, value_deserializer=AvroDeserializer(registry)) as consumer:
            consumer.assign({(name, 0): 0})
            assert [record.value["id"] for record in await consumer.poll(30)] == [0, 1, 2]
        await answering

    asyncio.run(main())
    assert len(fake.requests) == 2


@pytest.mark.parametrize("known", [True, False], ids=["known topic", "unknown topic"])
def test_concurrent_sends_keep_their_order_and_register_once(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble, known: bool
) -> None:
    """Sends begin before, while and after the registry answers."""
    admin.create_topics(name)
    fake.delay_s = 0.3
    serializer = AvroSerializer(SchemaRegistry(fake.url), ORDER)

    async def main() -> list[int]:
        async with aio.Producer(server.bootstrap, value_serializer=serializer) as producer:
            if known:
                await producer.partitions_for(name)
            sends = []
            for number in range(400):
                sends.append(asyncio.create_task(producer.send(name, {"id": number})))
                await asyncio.sleep(0.001 if number > 100 else 0)
            return [(await (await send)).offset for send in sends]

    assert asyncio.run(main()) == list(range(400))
    assert len(fake.requests) == 1


def test_sends_that_wait_for_the_registry_fail_with_it(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics([name, f"{name}-2"])
    serializer = AvroSerializer(SchemaRegistry(fake.url), ORDER)

    async def main() -> None:
        async with aio.Producer(server.bootstrap, value_serializer=serializer) as producer:
            await (await producer.send(f"{name}-2", {"id": 0}))
            fake.failures, fake.hold, before = [422], threading.Event(), len(fake.requests)
            sends = [asyncio.create_task(producer.send(name, {"id": number})) for number in range(50)]
            while len(fake.requests) == before:
                await asyncio.sleep(0.01)
            await (await producer.send(f"{name}-2", {"id": 1}))
            assert not any(each.done() for each in sends), "sends to another topic do not wait"
            fake.hold.set()
            failures = await asyncio.gather(*sends, return_exceptions=True)
            assert [type(each) for each in failures] == [errors.RegistryError] * 50
            assert "HTTP 422" in str(failures[49])
            assert len(fake.requests) == before + 1, "all of them fail with the same request"
            await (await producer.send(name, {"id": 1}))

    asyncio.run(main())


def test_bad_record_does_not_fail_the_sends_that_wait_behind_it(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    fake.delay_s = 0.2
    serializer = AvroSerializer(SchemaRegistry(fake.url), ORDER)

    async def main() -> None:
        async with aio.Producer(server.bootstrap, value_serializer=serializer) as producer:
            sends = [asyncio.create_task(producer.send(name, {"id": each})) for each in ("x", 0, 1, "y", 2)]
            await asyncio.sleep(0.05)
            sends[1].cancel()
            found = await asyncio.gather(*sends, return_exceptions=True)
            kinds = [type(each) for each in found]
            assert [kinds[0], kinds[1], kinds[3]] == [
                errors.SerializationError,
                asyncio.CancelledError,
                errors.SerializationError,
            ]
            assert [(await found[each]).offset for each in (2, 4)] == [0, 1]  # type: ignore[misc]

    asyncio.run(main())
    assert len(fake.requests) == 1


def test_cancelled_poll_returns_its_records_again(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    registry = SchemaRegistry(fake.url)
    with Producer(server.bootstrap, value_serializer=AvroSerializer(registry, ORDER)) as producer:
        producer.send(name, {"id": 1})
    fake.delay_s = 0.5

    async def main() -> None:
        async with aio.Consumer(server.bootstrap, value_deserializer=AvroDeserializer(registry)) as consumer:
            consumer.assign({(name, 0): 0})
            begun = len(fake.requests)
            polling = asyncio.create_task(consumer.poll(30))
            while len(fake.requests) == begun:
                await asyncio.sleep(0.01)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert [record.value for record in await consumer.poll(30)] == [{"id": 1}]

    asyncio.run(main())
