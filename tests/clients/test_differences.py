"""What docs/from-confluent-kafka.md and docs/from-aiokafka.md claim about the other clients and ours."""

from __future__ import annotations

import asyncio
import builtins
import functools
import inspect
import re
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import admin as admin_client

import oncelog
from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client import other_names
from oncelog.client.consumer.options import CONSUMER
from oncelog.client.other_options import advice_for_unsupported
from oncelog.client.producer.options import PRODUCER
from support.docs_blocks import ROOT
from support.processes import wait_until
from support.servers import Server

NO_BROKER = "127.0.0.1:1"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine function."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture
def topic(admin: Admin, name: str) -> str:
    admin.create_topics([name], 3)
    return name


@pytest.mark.parametrize(
    ("theirs", "ours", "advice"),
    [
        (ConfluentProducer, Producer, other_names.PRODUCER),
        (AIOKafkaProducer, aio.Producer, other_names.PRODUCER),
        (ConfluentConsumer, Consumer, other_names.CONSUMER),
        (AIOKafkaConsumer, aio.Consumer, other_names.CONSUMER),
    ],
)
def test_every_method_of_the_other_clients_is_here_or_its_error_says_what_to_do(
    theirs: type, ours: Any, advice: dict[str, str]
) -> None:
    known = {name for name in dir(ours) if not name.startswith("_")}
    assert {name for name in dir(theirs) if not name.startswith("_")} - known - set(advice) <= {"purge"}
    assert not known & set(advice)
    client = ours(NO_BROKER)
    for name, text in advice.items():
        with pytest.raises(AttributeError, match=f"object has no attribute '{name}'; {re.escape(text)}"):
            getattr(client, name)
    with pytest.raises(AttributeError, match=r"object has no attribute 'nonsense'$"):
        _ = client.nonsense


def test_advice_for_unassign() -> None:
    assert other_names.CONSUMER["unassign"] == "call unsubscribe(), or assign([])"
    with Consumer(NO_BROKER) as consumer:
        for unassign in (consumer.unsubscribe, lambda: consumer.assign([])):
            consumer.assign([("t", 0)])
            unassign()
            assert not consumer.assignment()


CONFLUENT = (
    *(confluent_kafka, confluent_kafka.Message, KafkaError, ConfluentProducer, ConfluentConsumer),
    *(admin_client, admin_client.AdminClient),
)
AIOKAFKA = (aiokafka, aiokafka.errors, AIOKafkaProducer, AIOKafkaConsumer)
OURS = (oncelog, Producer, Consumer, Admin, errors, aio.Consumer)
OF_ALL = (builtins, dict, Future)


@pytest.mark.parametrize(
    ("page", "theirs", "ours"),
    [("from-confluent-kafka", CONFLUENT, OURS), ("from-aiokafka", AIOKAFKA, OURS)],
)
def test_names_on_the_pages_exist(page: str, theirs: tuple[Any, ...], ours: tuple[Any, ...]) -> None:
    """Names of functions and of classes in the table "Names"."""
    table = (ROOT / f"docs/{page}.md").read_text().partition("## Names")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| `")]
    assert len(rows) > 20
    for row in rows:
        for cell, owners in zip(row, (theirs, ours), strict=True):
            code = re.sub(r"def \w+", "", " ".join(re.findall("`([^`]+)`", cell)))
            for name in re.findall(r"\b(\w{2,})\(|\b([A-Z]\w+)\b", code):
                found = "".join(name)
                assert any(hasattr(owner, found) for owner in (*owners, *OF_ALL)), f"{found}: {row}"


# -- confluent-kafka --------------------------------------------------------------------------------------------------


def test_keys_go_to_other_partitions_unless_the_partitioner_is_consistent_random(server: Server, topic: str) -> None:
    keys = [f"key {number}" for number in range(50)]
    theirs: dict[str, int] = {}
    producer = ConfluentProducer({"bootstrap.servers": server.bootstrap})
    for key in keys:
        producer.produce(topic, b"v", key, on_delivery=lambda _, m: theirs.update({m.key().decode(): m.partition()}))
    assert producer.flush(30) == 0
    assert partitions(server, topic, keys, partitioner="consistent_random") == theirs
    assert partitions(server, topic, keys) != theirs


def partitions(server: Server, topic: str, keys: list[str], **options: str) -> dict[str, int]:
    with Producer(server.bootstrap, **options) as producer:
        futures = {key: producer.send(topic, b"v", key) for key in keys}
    return {key: future.result().partition for key, future in futures.items()}


def test_delivery_callbacks_have_their_arguments_in_the_other_order(server: Server, topic: str) -> None:
    theirs: list[tuple[Any, ...]] = []
    confluent = ConfluentProducer({"bootstrap.servers": server.bootstrap})
    confluent.produce(topic, b"v", partition=1, on_delivery=lambda *found: theirs.append((*found, own_thread())))
    assert confluent.flush(30) == 0
    error, message, in_caller = theirs[0]
    assert (error, message.partition(), in_caller) == (None, 1, True)

    ours: list[tuple[Any, ...]] = []
    with Producer(server.bootstrap) as producer:
        producer.send(topic, b"v", partition=1, on_delivery=lambda *found: ours.append((*found, own_thread())))
        producer.flush()
        assert len(ours) == 1, "flush returns after the callbacks"
    place, failure, in_caller = ours[0]
    assert (place.partition, failure, in_caller) == (1, None, False)


def own_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def test_record_for_an_invalid_topic(server: Server) -> None:
    found: list[KafkaError] = []
    confluent = ConfluentProducer({"bootstrap.servers": server.bootstrap})
    confluent.produce("no/name", b"v", on_delivery=lambda error, _: found.append(error))
    assert confluent.flush(30) == 0
    assert found[0].code() == KafkaError.TOPIC_EXCEPTION
    with Producer(server.bootstrap) as producer, pytest.raises(errors.RequestError, match="topic name is invalid"):
        producer.send("no/name", b"v")


def test_only_confluents_producer_rejects_records_if_its_buffer_is_full(server: Server, topic: str) -> None:
    confluent = ConfluentProducer({"bootstrap.servers": server.bootstrap, "queue.buffering.max.messages": 1})
    confluent.produce(topic, b"v")
    with pytest.raises(BufferError):
        confluent.produce(topic, b"v")
    confluent.flush(30)
    with Producer(server.bootstrap, buffer_memory=1_000) as producer:
        futures = [producer.send(topic, b"v" * 500) for _ in range(20)]
    assert all(future.done() for future in futures)


UNFLUSHED = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 1000})
producer.produce(sys.argv[2], b"v")
"""


def test_records_that_are_not_flushed_at_the_end(server: Server, topic: str) -> None:
    command = [sys.executable, "-c", UNFLUSHED, server.bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "still in queue" in done.stderr
    with Consumer(server.bootstrap) as consumer:
        assert set(consumer.end_offsets([(topic, number) for number in range(3)]).values()) == {0}
    producer = Producer(NO_BROKER, max_block_ms=0, delivery_timeout_ms=1_000, request_timeout_ms=500)
    producer._core.counts[topic] = 1
    producer.send(topic, b"v")
    with pytest.raises(errors.TimedOutError):
        producer.close()


def test_poll_without_a_timeout_waits_for_a_second(server: Server, topic: str) -> None:
    assert inspect.signature(Consumer.poll).parameters["timeout"].default == 1.0
    with Consumer(server.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        begin = time.monotonic()
        assert consumer.poll() == []
        assert time.monotonic() - begin > 0.9


def test_topic_that_does_not_exist(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    confluent = ConfluentConsumer({"bootstrap.servers": server.bootstrap, "group.id": name})
    confluent.subscribe([name])
    message = confluent.poll(30)
    assert message is not None
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    confluent.close()
    options = {"group_id": name, "auto_offset_reset": "earliest", "metadata_max_age_ms": 500}
    with Consumer(server.bootstrap, **options) as consumer, Admin(server.bootstrap) as admin:
        consumer.subscribe([name])
        wait_until(lambda: not consumer.poll(0.2) and "does not exist" in caplog.text, "the warning")
        admin.create_topics([name])
        with Producer(server.bootstrap) as producer:
            producer.send(name, b"v")
        assert [record.value for record in consumer.poll(30)] == [b"v"]


def test_assign_in_a_listener_is_an_error_and_seek_is_not(server: Server, topic: str) -> None:
    with Producer(server.bootstrap) as producer:
        for number in range(3):
            producer.send(topic, str(number), partition=0)
    caught: list[str] = []

    def assigned(found: list[tuple[str, int]]) -> None:
        with pytest.raises(errors.UsageError) as wrong:
            consumer.assign(found)
        caught.append(str(wrong.value))
        consumer.seek(topic, 0, 2)

    with Consumer(server.bootstrap, group_id=topic) as consumer:
        consumer.subscribe([topic], on_assigned=assigned)
        assert [record.value for record in consumer.poll(30)] == [b"2"]
    assert len(caught) == 1


# -- aiokafka ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "known"), [(AIOKafkaProducer, PRODUCER), (AIOKafkaConsumer, CONSUMER)], ids=["producer", "consumer"]
)
def test_every_option_of_aiokafka_is_known_or_rejected_with_advice(theirs: type, known: dict[str, Any]) -> None:
    names = set(inspect.signature(theirs).parameters) - {"topics"}
    assert {name for name in names - set(known) if not advice_for_unsupported(name)} == set()


@in_loop
async def test_seek_to_committed_without_a_committed_offset(server: Server, topic: str) -> None:
    """aiokafka stays where it is, so an aborted first transaction would skip its records."""
    with Producer(server.bootstrap) as producer:
        producer.send(topic, b"v", partition=0)
    options: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(bootstrap_servers=server.bootstrap, enable_auto_commit=False, **options) as theirs:
        theirs.assign([TopicPartition(topic, 0)])
        await theirs.getone()
        await theirs.seek_to_committed()
        assert await theirs.position(TopicPartition(topic, 0)) == 1
    async with aio.Consumer(server.bootstrap, **options) as ours:
        ours.assign([TopicPartition(topic, 0)])
        assert len(await ours.poll(30)) == 1
        ours.seek_to_committed()
        assert await ours.position(topic, 0) == 0


@in_loop
async def test_offsets_of_a_member_that_has_lost_its_partitions(server: Server, name: str, topic: str) -> None:
    """aiokafka's transaction commits the offsets of a former member. Ours aborts."""
    with Producer(server.bootstrap) as producer:
        producer.send(topic, b"v", partition=0)
    options = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    async with (
        AIOKafkaProducer(bootstrap_servers=server.bootstrap, transactional_id=f"{name}-theirs") as theirs,
        aio.Producer(server.bootstrap, transactional_id=f"{name}-ours") as ours,
        aio.Consumer(server.bootstrap, group_id=name, **options) as consumer,
    ):
        consumer.subscribe([topic])
        assert len(await consumer.poll(30)) == 1
        group, offsets = consumer.group_metadata(), consumer.positions()
        await consumer.unsubscribe()
        with pytest.raises(errors.AbortableError):
            async with ours.transaction() as transaction:
                transaction.send_offsets(group, offsets)
        async with theirs.transaction():
            await theirs.send_offsets_to_transaction({TopicPartition(*at): end for at, end in offsets.items()}, name)
        assert await consumer.committed([(topic, 0)]) == {(topic, 0): 1}


@in_loop
async def test_start_without_a_broker() -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=NO_BROKER)
    with pytest.raises(KafkaConnectionError):
        await consumer.start()
    await consumer.stop()
    async with aio.Consumer(NO_BROKER):
        pass
    with pytest.raises(errors.TimedOutError, match="no broker can be reached"):
        await aio.Producer(NO_BROKER, transactional_id="t", max_block_ms=300).start()


@in_loop
async def test_several_tasks_read_from_one_consumer(server: Server, topic: str) -> None:
    async with AIOKafkaConsumer(bootstrap_servers=server.bootstrap) as theirs:
        theirs.assign([TopicPartition(topic, 0)])
        reads = [theirs.getmany(timeout_ms=300), theirs.getmany(timeout_ms=300)]
        assert await asyncio.gather(*reads) == [{}, {}]
    async with aio.Consumer(server.bootstrap, group_id=topic) as ours:
        ours.assign([(topic, 0)])
        reading = asyncio.create_task(ours.poll(60))
        await asyncio.sleep(0.1)
        await ours.commit({(topic, 0): 0})
        with pytest.raises(errors.UsageError, match="another task"):
            await ours.poll(1)
        ours.wakeup()
        with pytest.raises(errors.WakeupError):
            await reading


@in_loop
async def test_loop_over_a_consumer_that_another_task_closes(server: Server, topic: str) -> None:
    async def read(consumer: AIOKafkaConsumer | aio.Consumer) -> str:
        async for _ in consumer:
            pass
        return "ended"

    theirs = AIOKafkaConsumer(topic, bootstrap_servers=server.bootstrap)
    await theirs.start()
    reading = asyncio.create_task(read(theirs))
    await asyncio.sleep(0.2)
    await theirs.stop()
    assert await reading == "ended"
    ours = aio.Consumer(server.bootstrap)
    await ours.start()
    ours.assign([(topic, 0)])
    reading = asyncio.create_task(read(ours))
    await asyncio.sleep(0.2)
    await ours.close()
    with pytest.raises(errors.ClientClosedError):
        await reading


@in_loop
async def test_partitions_after_start(server: Server, topic: str) -> None:
    """aiokafka has its partitions, also without a group. Ours gets them in `poll`, and only as a member of a group."""
    everything = {(topic, number) for number in range(3)}
    for options in ({"group_id": topic}, {}):
        async with AIOKafkaConsumer(topic, bootstrap_servers=server.bootstrap, **options) as theirs:
            assert theirs.assignment() == everything
    async with aio.Consumer(server.bootstrap, group_id=f"{topic}-ours") as ours:
        ours.subscribe([topic])
        assert ours.assignment() == []
        await ours.poll(2)
        assert set(ours.assignment()) == everything
    async with aio.Consumer(server.bootstrap) as ours:
        with pytest.raises(errors.UsageError, match="group_id; without a group, use assign"):
            ours.subscribe([topic])
        ours.assign([(topic, number) for number in await ours.partitions_for(topic)])
        assert set(ours.assignment()) == everything


@in_loop
async def test_await_of_a_method_that_sends_no_request(server: Server, topic: str) -> None:
    async with aio.Consumer(server.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        seek: Callable[..., Any] = consumer.seek
        with pytest.raises(TypeError, match="object NoneType can't be used in 'await' expression"):
            await seek(topic, 0, 0)
        assert await consumer.position(topic, 0) == 0


@in_loop
async def test_methods_of_aiokafkas_listener_are_listeners(server: Server, topic: str) -> None:
    calls: list[tuple[str, list[tuple[str, int]]]] = []

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: list[tuple[str, int]]) -> None:
            calls.append(("assigned", assigned))

        async def on_partitions_revoked(self, revoked: list[tuple[str, int]]) -> None:
            calls.append(("revoked", revoked))

    listener = Listener()
    async with aio.Consumer(server.bootstrap, group_id=topic) as consumer:
        consumer.subscribe(
            [topic], on_assigned=listener.on_partitions_assigned, on_revoked=listener.on_partitions_revoked
        )
        poll: Awaitable[Any] = consumer.poll(2)
        await poll
    everything = [(topic, number) for number in range(3)]
    assert calls == [("assigned", everything), ("revoked", everything)]
