"""Set, list and delete quotas: our Admin and the command line; and three libraries' clients that must pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import confluent_kafka
import kafka
import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.admin.quotas import DEFAULT, ClientQuotaEntity
from oncelog.protocol.errors import ErrorCode
from support.command_line import Tool
from support.quotas import remove_all
from support.servers import Server
from support.wire import Wire, batch, until

T = TypeVar("T")

ALICE = ClientQuotaEntity("alice")
LOADER = ClientQuotaEntity(client_id="loader")
BOTH = ClientQuotaEntity("alice", "loader")
OTHERS = ClientQuotaEntity(DEFAULT, DEFAULT)
ADDRESS = ClientQuotaEntity(ip="127.0.0.9")


@pytest.fixture(autouse=True)
def _no_quotas_remain(wire: Wire) -> Iterator[None]:
    yield
    remove_all(wire)


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    with Admin(server.bootstrap) as made:
        yield made


def settled(admin: Admin, quotas: dict[ClientQuotaEntity, dict[str, float]]) -> None:
    """Wait until all quotas are these. Kafka's brokers follow their controller a moment later."""
    until(admin.describe_client_quotas, lambda found: found == quotas, "the quotas")


def test_quotas_are_set_listed_and_removed(admin: Admin) -> None:
    entities = [OTHERS, ALICE, LOADER, BOTH]
    quotas: dict[ClientQuotaEntity, dict[str, float]] = {
        each: {"producer_byte_rate": 1e9, "request_percentage": 99.5} for each in entities
    }
    quotas[ADDRESS] = {"connection_creation_rate": 1e6}
    admin.alter_client_quotas({})
    admin.alter_client_quotas(quotas)
    settled(admin, quotas)

    def selected(**chosen: Any) -> list[ClientQuotaEntity]:
        return [*admin.describe_client_quotas(**chosen)]

    assert selected() == [ADDRESS, LOADER, OTHERS, ALICE, BOTH]
    assert selected(user="alice") == [ALICE, BOTH]
    assert selected(user="alice", strict=True) == [ALICE]
    assert selected(user="alice", client_id=True) == [BOTH]
    assert selected(client_id=DEFAULT) == [OTHERS]
    assert selected(user=True) == [OTHERS, ALICE, BOTH]
    assert selected(client_id=True, strict=True) == [LOADER]
    assert selected(ip=True) == [ADDRESS]
    assert selected(user="bob") == []
    admin.alter_client_quotas({ALICE: {"producer_byte_rate": None, "request_percentage": 5.0}}, validate_only=True)
    admin.alter_client_quotas({ALICE: {"producer_byte_rate": None}, ADDRESS: {"connection_creation_rate": None}})
    del quotas[ADDRESS], quotas[ALICE]["producer_byte_rate"]
    settled(admin, quotas)


def test_rejected_quotas_raise_the_error_of_the_first(admin: Admin) -> None:
    with pytest.raises(
        errors.RequestError, match=r"user 'alice'.*Quota producer_byte_rate must be greater than 0"
    ) as no:
        admin.alter_client_quotas({ALICE: {"producer_byte_rate": -1.0}, LOADER: {"producer_byte_rate": 1e9}})
    assert no.value.code is ErrorCode.INVALID_REQUEST
    settled(admin, {LOADER: {"producer_byte_rate": 1e9}})
    with pytest.raises(errors.RequestError, match="Invalid entity filter component combination"):
        admin.describe_client_quotas(user="alice", ip="::1")
    with pytest.raises(errors.UsageError, match="user must be a name, True or None, not 3"):
        admin.describe_client_quotas(user=3)  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="client_id of a quota must be str or None, not 3"):
        admin.alter_client_quotas({ClientQuotaEntity("u", 3): {}})  # type: ignore[arg-type]


def test_asynchronous_client_has_the_same_calls(server: Server) -> None:
    async def go() -> None:
        async with aio.Admin(server.bootstrap) as admin:
            await admin.alter_client_quotas({ALICE: {"consumer_byte_rate": 1e9}})
            while await admin.describe_client_quotas(user="alice") != {ALICE: {"consumer_byte_rate": 1e9}}:
                await asyncio.sleep(0.02)

    asyncio.run(go())


# -- the command line -------------------------------------------------------------------------------------------


def test_command_line(tool: Tool, admin: Admin) -> None:
    made = tool.json("quota", "set", "producer_byte_rate=1000000000", "request_percentage=99.5", "--user", "alice")
    row = {"user": "alice", "client_id": None, "ip": None, "quota": "producer_byte_rate", "value": 1_000_000_000}
    assert made == [row, {**row, "quota": "request_percentage", "value": 99.5}]
    tool("quota", "set", "consumer_byte_rate=1000000000", "--user-defaults", "--client", "loader")
    tool("quota", "set", "connection_creation_rate=1000000", "--ip-defaults")
    others = ClientQuotaEntity(DEFAULT, "loader")
    until(lambda: len(admin.describe_client_quotas()), lambda found: found == 3, "all quotas")
    assert admin.describe_client_quotas(client_id=True) == {others: {"consumer_byte_rate": 1e9}}
    assert tool.json("quota", "list", "--user", "alice") == made
    text = tool("quota", "list", "--client", "loader").splitlines()
    assert [line.split() for line in text] == [
        ["USER", "CLIENT", "ID", "IP", "QUOTA", "VALUE"],
        ["<default>", "loader", "-", "consumer_byte_rate", "1000000000"],
    ]
    assert "this deletes 2 quotas; add --yes" in tool.fails(2, "quota", "delete", "--user", "alice")
    assert "there is no quota 'consumer_byte_rate' to delete" in tool.fails(
        2, "quota", "delete", "consumer_byte_rate", "--user", "alice"
    )
    assert tool.json("quota", "delete", "producer_byte_rate", "--user", "alice", "--yes") == [row]
    until(lambda: len(tool.json("quota", "list", "--user", "alice")), lambda found: found == 1, "one quota")
    assert len(tool.json("quota", "delete", "--user", "alice", "--yes")) == 1
    until(lambda: tool.json("quota", "list", "--user", "alice"), lambda found: not found, "no quota")
    assert tool.json("quota", "delete", "--user", "alice", "--yes") == []
    assert len(tool.json("quota", "delete", "--user-defaults", "--client", "loader", "--yes")) == 1
    assert len(tool.json("quota", "delete", "--ip-defaults", "--yes")) == 1


def test_command_line_rejects_incomplete_commands(tool: Tool) -> None:
    one = ("quota", "set", "producer_byte_rate=1000")
    assert "name a user, a client id or an address" in tool.fails(2, *one)
    assert "name a user, a client id or an address" in tool.fails(2, "quota", "delete", "--yes")
    assert "--user and --user-defaults" in tool.fails(2, *one, "--user", "a", "--user-defaults")
    assert "use --user-defaults" in tool.fails(2, *one, "--user", "")
    assert "--ip cannot be used together" in tool.fails(2, *one, "--user", "a", "--ip", "::1")
    assert "must be a number, not 'much'" in tool.fails(2, "quota", "set", "producer_byte_rate=much", "--user", "a")
    assert "Invalid configuration key no_key" in tool.fails(1, "quota", "set", "no_key=1", "--user", "a")


# -- clients that pause -----------------------------------------------------------------------------------------

RATE = 100_000
VALUES = [bytes([number]) * 50_000 for number in range(26)]
"""The burst of a client is 20 of them. It must pause for the others."""


def oncelog_produces(bootstrap: str, client_id: str, topic: str) -> float:
    with Producer(bootstrap, client_id=client_id) as producer:
        for value in VALUES:
            producer.send(topic, value).result(90)
        return producer.metrics().produce_throttle_time_max or 0


def oncelog_consumes(bootstrap: str, client_id: str, topic: str) -> tuple[list[bytes], float]:
    found: list[bytes] = []
    with Consumer(
        bootstrap, client_id=client_id, auto_offset_reset="earliest", max_partition_fetch_bytes=1
    ) as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < len(VALUES):
            found += [record.value or b"" for record in consumer.poll(1.0)]
        return found, consumer.metrics().fetch_throttle_time_max or 0


def confluent_produces(bootstrap: str, client_id: str, topic: str) -> float:
    pauses = [0.0]
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "throttle_cb": lambda event: pauses.append(event.throttle_time),
        }
    )
    for value in VALUES:
        producer.produce(topic, value)
        assert producer.flush(90) == 0
    return max(pauses)


def confluent_consumes(bootstrap: str, client_id: str, topic: str) -> tuple[list[bytes], float]:
    pauses = [0.0]
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": client_id,
            "enable.auto.commit": False,
            "max.partition.fetch.bytes": 1,
            "fetch.message.max.bytes": 1,
            "throttle_cb": lambda event: pauses.append(event.throttle_time),
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < len(VALUES):
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None
            found.append(message.value() or b"")
    consumer.close()
    return found, max(pauses)


def kafka_python_produces(bootstrap: str, client_id: str, topic: str) -> float:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, client_id=client_id)
    for value in VALUES:
        producer.send(topic, value).get(90)
    pause = longest_pause(producer.metrics())
    producer.close()
    return pause


def kafka_python_consumes(bootstrap: str, client_id: str, topic: str) -> tuple[list[bytes], float]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        client_id=client_id,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=1,
        consumer_timeout_ms=90_000,
    )
    consumer.assign([kafka.TopicPartition(topic, 0)])
    found = [record.value for _, record in zip(VALUES, consumer, strict=False)]
    pause = longest_pause(consumer.metrics())
    consumer.close()
    return found, pause


def longest_pause(metrics: dict[str, dict[str, float]]) -> float:
    """Return the longest pause in the metrics of kafka-python."""
    return max(group.get("throttle-time-max", 0.0) for group in metrics.values())


PRODUCES: tuple[Callable[[str, str, str], float], ...] = oncelog_produces, confluent_produces, kafka_python_produces
CONSUMES: tuple[Callable[[str, str, str], tuple[list[bytes], float]], ...] = (
    oncelog_consumes,
    confluent_consumes,
    kafka_python_consumes,
)


def together(work: Sequence[Callable[[str, str, str], T]], server: Server, names: Sequence[str]) -> list[T]:
    """Run the clients at the same time, each with its own client id and topic."""
    with ThreadPoolExecutor(len(work)) as threads:
        started = [threads.submit(each, server.bootstrap, name, name) for each, name in zip(work, names, strict=True)]
        return [each.result() for each in started]


def test_producers_pause_and_lose_nothing(server: Server, wire: Wire, admin: Admin, name: str) -> None:
    names = [f"{name}-{number}" for number in range(len(PRODUCES))]
    topics = [wire.create_topic(each) for each in names]
    quotas = {ClientQuotaEntity(client_id=each): {"producer_byte_rate": float(RATE)} for each in names}
    admin.alter_client_quotas(quotas)
    settled(admin, quotas)
    pauses = together(PRODUCES, server, names)
    assert min(pauses) > 0, pauses
    for topic in topics:
        assert wire.values(topic) == VALUES


def test_consumers_pause_and_miss_nothing(server: Server, wire: Wire, admin: Admin, name: str) -> None:
    names = [f"{name}-{number}" for number in range(len(CONSUMES))]
    for each in names:
        wire.create_topic(each)
        for value in VALUES:
            assert wire.produce(each, batch([value])).error_code == 0
    quotas = {ClientQuotaEntity(client_id=each): {"consumer_byte_rate": float(RATE)} for each in names}
    admin.alter_client_quotas(quotas)
    settled(admin, quotas)
    for found, pause in together(CONSUMES, server, names):
        assert (found, pause > 0) == (VALUES, True)
