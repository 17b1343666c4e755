"""Programs of the client libraries in Python that log in to a secured server in a `Way`.

Each program creates a topic, writes, and reads as a member of a group. `rejected_by` returns the error of a client
whose password or token is wrong.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from oncelog import Admin, Consumer, Producer, aio
from oncelog.cli.app import oncelog as command_line
from support.apache_kafka import properties
from support.ways_to_log_in import VALUES, Way

WAIT_S = 60


def confluent(way: Way) -> None:
    options = way.librdkafka()
    admin = AdminClient(options)
    admin.create_topics([ConfluentTopic(way.topic, 1)])[way.topic].result(WAIT_S)
    producer = confluent_kafka.Producer(options)
    for value in VALUES:
        producer.produce(way.topic, value)
    assert producer.flush(WAIT_S) == 0
    consumer = confluent_kafka.Consumer({**options, "group.id": way.topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([way.topic])
    found = [each.value() for each in consumer.consume(len(VALUES), WAIT_S)]
    consumer.close()
    assert found == VALUES, found


def kafka_python(way: Way) -> None:
    options = way.kafka_python()
    admin = KafkaAdminClient(**options)
    admin.create_topics([way.topic])
    admin.close()
    producer = KafkaProducer(**options)
    for value in VALUES:
        producer.send(way.topic, value).get(WAIT_S)
    producer.close()
    consumer = KafkaConsumer(
        way.topic,
        group_id=way.topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1000,
        **options,
    )
    found = [next(consumer).value for _ in VALUES]
    consumer.close()
    assert found == VALUES, found


def aiokafka(way: Way) -> None:
    async def go() -> None:
        admin = AIOKafkaAdminClient(**way.aiokafka())
        await admin.start()
        await admin.create_topics([AioTopic(way.topic, 1, 1)])
        await admin.close()
        producer = AIOKafkaProducer(**way.aiokafka())
        await producer.start()
        for value in VALUES:
            await producer.send_and_wait(way.topic, value)
        await producer.stop()
        consumer = AIOKafkaConsumer(way.topic, group_id=way.topic, auto_offset_reset="earliest", **way.aiokafka())
        await consumer.start()
        found = [(await asyncio.wait_for(consumer.getone(), WAIT_S)).value for _ in VALUES]
        await consumer.stop()
        assert found == VALUES, found

    asyncio.run(go())


def write_with_ours(way: Way) -> None:
    """Create the topic and write."""
    with Admin(config=way.dotted()) as admin:
        admin.create_topics(way.topic)
    with Producer(config=way.dotted()) as producer:
        for value in VALUES:
            producer.send(way.topic, value)


def read_with_ours(way: Way) -> list[bytes]:
    """Read as a member of a group, and return the values."""
    found: list[Any] = []
    with Consumer(group_id=way.topic, auto_offset_reset="earliest", config=way.dotted()) as consumer:
        consumer.subscribe([way.topic])
        while len(found) < len(VALUES):
            found += [record.value for record in consumer.poll(WAIT_S)]
    return found


def ours(way: Way) -> None:
    write_with_ours(way)
    found = read_with_ours(way)
    assert found == VALUES, found


def ours_async(way: Way) -> None:
    async def go() -> None:
        async with aio.Admin(config=way.dotted()) as admin:
            await admin.create_topics(way.topic)
        async with aio.Producer(config=way.dotted()) as producer:
            for value in VALUES:
                await producer.send(way.topic, value)
        found: list[Any] = []
        async with aio.Consumer(group_id=way.topic, auto_offset_reset="earliest", config=way.dotted()) as consumer:
            consumer.subscribe([way.topic])
            while len(found) < len(VALUES):
                found += [record.value for record in await consumer.poll(WAIT_S)]
        assert found == VALUES, found

    asyncio.run(go())


def _invoked(way: Way, *words: str, stdin: str = "") -> Any:
    file = way.files.key.with_name(f"{way.topic}.properties")
    file.write_text(properties(way.dotted()))
    return CliRunner().invoke(command_line, [*words, "--command-config", str(file)], input=stdin)


def cli(way: Way) -> None:
    for words, stdin in (
        (("topic", "create", way.topic), ""),
        (("topic", "produce", way.topic), "".join(f"{value.decode()}\n" for value in VALUES)),
        (("topic", "consume", way.topic, "--group", way.topic, "-c", str(len(VALUES))), ""),
    ):
        done = _invoked(way, *words, stdin=stdin)
        assert done.exit_code == 0, (words, done.output, done.exception)
    assert done.output.split() == [value.decode() for value in VALUES]


def raised(step: Callable[[], object]) -> str:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - the test looks at its text
        return f"{type(error).__name__}: {error}"
    return "the client was accepted"


@contextmanager
def _lines(logger: str) -> Iterator[list[str]]:
    """Collect the warnings and errors that a library logs."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger(logger).removeHandler(handler)


def _rejected_confluent(way: Way) -> str:
    """librdkafka retries, and reports the reason through a callback."""
    seen: list[str] = []
    producer = confluent_kafka.Producer({**way.librdkafka(), "error_cb": lambda error: seen.append(f"{error}")})
    for _ in range(10 * WAIT_S):
        producer.poll(0.1)
        named = [text for text in seen if "_AUTHENTICATION" in text]
        if named:
            return named[0]
    return f"no reason: {seen}"


def _rejected_aiokafka(way: Way) -> str:
    async def go() -> None:
        admin = AIOKafkaAdminClient(**way.aiokafka())
        try:
            await admin.start()
            await admin.create_topics([AioTopic(way.topic, 1, 1)])
        finally:
            await admin.close()

    with _lines("aiokafka") as lines, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # aiokafka leaves connections open if it cannot log in
        said = raised(lambda: asyncio.run(go()))
        gc.collect()
    return f"{said} {lines}"


def _rejected_kafka_python(way: Way) -> str:
    """kafka-python retries until a time-out, also if the password is wrong. Only its log has the reason."""
    with _lines("kafka") as lines:
        said = raised(lambda: KafkaAdminClient(**way.kafka_python(), bootstrap_timeout_ms=500))
    return f"{said} {lines}"


def _rejected_ours(way: Way) -> str:
    def go() -> None:
        with Admin(config=way.dotted()) as admin:
            admin.describe_cluster()

    return raised(go)


def _rejected_ours_async(way: Way) -> str:
    async def go() -> None:
        async with aio.Admin(config=way.dotted()) as admin:
            await admin.describe_cluster()

    return raised(lambda: asyncio.run(go()))


def _rejected_cli(way: Way) -> str:
    done = _invoked(way, "topic", "list")
    return f"{done.exception}" if done.exit_code else "the client was accepted"


Program = tuple[Callable[[Way], None], Callable[[Way], str]]
PYTHON: dict[str, Program] = {
    "confluent-kafka": (confluent, _rejected_confluent),
    "kafka-python": (kafka_python, _rejected_kafka_python),
    "aiokafka": (aiokafka, _rejected_aiokafka),
    "oncelog": (ours, _rejected_ours),
    "oncelog, asyncio": (ours_async, _rejected_ours_async),
    "oncelog, command line": (cli, _rejected_cli),
}
"""By library: the program, and one that returns the error for a wrong password."""
