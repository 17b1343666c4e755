"""The ways to log in to a secured server, with the options of each client library, and programs of those in Python.

Each program creates a topic, writes, and reads as a member of a group. `rejected_by` returns the error of a client
whose password or certificate is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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

VALUES = [b"one", b"two", b"three"]
WAIT_S = 60

WAYS: dict[str, tuple[str, str]] = {
    "certificate": ("MUTUAL", ""),
    "PLAIN": ("OPEN", "PLAIN"),
    "PLAIN with TLS": ("LOGIN", "PLAIN"),
    "SCRAM-SHA-256": ("OPEN", "SCRAM-SHA-256"),
    "SCRAM-SHA-256 with TLS": ("LOGIN", "SCRAM-SHA-256"),
    "SCRAM-SHA-512": ("OPEN", "SCRAM-SHA-512"),
    "SCRAM-SHA-512 with TLS": ("LOGIN", "SCRAM-SHA-512"),
    # OAUTHBEARER follows when the broker has it.
}
"""Listener and mechanism by the name of the way."""
PROTOCOLS = {"MUTUAL": "SSL", "OPEN": "SASL_PLAINTEXT", "LOGIN": "SASL_SSL"}


class Way(NamedTuple):
    """Where and how one client logs in. `mechanism` is empty if the client has only its certificate."""

    topic: str
    address: str
    protocol: str
    mechanism: str
    ca: Path
    certificate: Path
    key: Path
    user: str
    password: str

    def dotted(self) -> dict[str, str]:
        """Return the options by librdkafka's names."""
        found = {"bootstrap.servers": self.address, "security.protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            found["ssl.ca.location"] = str(self.ca)
        if self.mechanism:
            login = {"sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": self.password}
            return found | login
        return found | {"ssl.certificate.location": str(self.certificate), "ssl.key.location": str(self.key)}

    def kafka_python(self) -> dict[str, Any]:
        """Return the options of kafka-python."""
        return {
            "bootstrap_servers": self.address.split(","),
            "security_protocol": self.protocol,
            "ssl_cafile": str(self.ca),
            **(
                {
                    "sasl_mechanism": self.mechanism,
                    "sasl_plain_username": self.user,
                    "sasl_plain_password": self.password,
                }
                if self.mechanism
                else {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.key)}
            ),
        }

    def aiokafka(self) -> dict[str, Any]:
        """Return the options of aiokafka."""
        found = {"bootstrap_servers": self.address, "security_protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            context = ssl.create_default_context(cafile=str(self.ca))
            if not self.mechanism:
                context.load_cert_chain(self.certificate, self.key)
            found["ssl_context"] = context  # type: ignore[assignment]
        if self.mechanism:
            login = {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
            return {**found, "sasl_mechanism": self.mechanism, **login}
        return found


def confluent(way: Way) -> None:
    options: dict[str, Any] = {**way.dotted()}
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


def ours(way: Way) -> None:
    with Admin(config=way.dotted()) as admin:
        admin.create_topics(way.topic)
    with Producer(config=way.dotted()) as producer:
        for value in VALUES:
            producer.send(way.topic, value)
    found: list[Any] = []
    with Consumer(group_id=way.topic, auto_offset_reset="earliest", config=way.dotted()) as consumer:
        consumer.subscribe([way.topic])
        while len(found) < len(VALUES):
            found += [record.value for record in consumer.poll(WAIT_S)]
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
    file = way.key.with_name(f"{way.topic}.properties")
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


def _raised(step: Callable[[], object]) -> str:
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
    producer = confluent_kafka.Producer({**way.dotted(), "error_cb": lambda error: seen.append(f"{error}")})
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
        finally:
            await admin.close()

    with _lines("aiokafka") as lines:
        raised = _raised(lambda: asyncio.run(go()))
    return f"{raised} {lines}"


def _rejected_kafka_python(way: Way) -> str:
    """kafka-python retries until a time-out, also if the password is wrong. Only its log has the reason."""
    with _lines("kafka") as lines:
        raised = _raised(lambda: KafkaAdminClient(**way.kafka_python(), bootstrap_timeout_ms=500))
    return f"{raised} {lines}"


def _rejected_ours(way: Way) -> str:
    def go() -> None:
        with Admin(config=way.dotted()) as admin:
            admin.describe_cluster()

    return _raised(go)


def _rejected_ours_async(way: Way) -> str:
    async def go() -> None:
        async with aio.Admin(config=way.dotted()) as admin:
            await admin.describe_cluster()

    return _raised(lambda: asyncio.run(go()))


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
