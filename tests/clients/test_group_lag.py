"""The lag of consumer groups in the broker's metrics, with real clients: it reaches zero when all is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Admin, Consumer, Producer
from support.apache_kafka import held_ports, port_of
from support.clients.aio import AioClient
from support.clients.base import Client
from support.clients.confluent import ConfluentClient
from support.clients.kafka_python import KafkaPythonClient
from support.clients.ours import OurClient
from support.processes import wait_until
from support.scrapes import lag, scraped, series, wait_for_lag
from support.servers import OncelogCluster


@pytest.fixture(scope="module")
def port() -> int:
    return port_of(held_ports(1)[0])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[OncelogCluster]:
    folder: Path = tmp_path_factory.mktemp("lag")
    cluster = OncelogCluster(folder, settings={"metrics.port": str(port)})
    yield cluster
    cluster.stop()


@pytest.fixture(params=[ConfluentClient, AioClient, KafkaPythonClient, OurClient], ids=lambda each: each.name)
def reader(request: pytest.FixtureRequest, broker: OncelogCluster) -> Client:
    made: Client = request.param(broker.bootstrap)
    return made


def send(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, str(number)).result(30)


def transact(bootstrap: str, topic: str, count: int, *, commit: bool = True) -> None:
    with Producer(bootstrap, transactional_id=f"tx-{topic}") as producer:
        producer.begin_transaction()
        for number in range(count):
            producer.send(topic, str(number), partition=0).result(30)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


def test_lag_of_a_committed_transaction_reaches_zero(
    broker: OncelogCluster, port: int, reader: Client, name: str
) -> None:
    reader.create_topic(name)
    transact(broker.bootstrap, name, 3)
    with reader.member(name, name) as member:
        assert [each.value for each in member.take(3)] == [b"0", b"1", b"2"]
        member.commit()
        found = wait_for_lag(port, name, name, 0)
        assert found[series("kafka_consumergroup_members", consumergroup=name)] == 1
        assert found[series("kafka_consumergroup_lag_sum", consumergroup=name, topic=name)] == 0
        offset = found[series("kafka_consumergroup_current_offset", consumergroup=name, topic=name, partition=0)]
        assert offset in (3, 4)  # a client may commit the offset before or after the marker
        assert found[series("kafka_consumergroup_current_offset_sum", consumergroup=name, topic=name)] == offset
    wait_for_lag(port, name, name, 0)


def test_lag_of_a_group_counts_what_is_left(broker: OncelogCluster, port: int, reader: Client, name: str) -> None:
    reader.create_topic(name)
    transact(broker.bootstrap, name, 3)
    with reader.member(name, name) as member:
        member.take(1)
        member.commit()
        found = scraped(port)
        assert lag(found, name, name) == 2
        transact(broker.bootstrap, name, 2)
        assert lag(scraped(port), name, name) == 5  # the marker between them counts


def test_lag_ends_at_the_last_stable_offset_while_a_transaction_is_open(
    broker: OncelogCluster, port: int, reader: Client, name: str
) -> None:
    reader.create_topic(name)
    transact(broker.bootstrap, name, 3)
    with Producer(broker.bootstrap, transactional_id=f"open-{name}") as producer, reader.member(name, name) as member:
        producer.begin_transaction()
        for number in range(5):
            producer.send(name, str(number)).result(30)
        member.take(3)
        member.commit()
        wait_for_lag(port, name, name, 0)
        producer.commit_transaction()
        wait_for_lag(port, name, name, 9 - found_offset(port, name))
        member.take(5)
        member.commit()
        wait_for_lag(port, name, name, 0)


def found_offset(port: int, name: str) -> int:
    key = series("kafka_consumergroup_current_offset", consumergroup=name, topic=name, partition=0)
    return int(scraped(port)[key])


def test_aborted_records_at_the_end_are_no_lag_of_a_reader_that_skips_them(
    broker: OncelogCluster, port: int, reader: Client, name: str
) -> None:
    reader.create_topic(name)
    send(broker.bootstrap, name, 2)
    transact(broker.bootstrap, name, 500, commit=False)
    with reader.member(name, name) as member:
        member.take(2)
        member.commit()
        wait_for_lag(port, name, name, 0)


def test_group_that_reads_uncommitted_has_the_lag_to_the_high_watermark(
    broker: OncelogCluster, port: int, name: str
) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name)
    send(broker.bootstrap, name, 2)
    groups = {"read_uncommitted": f"u-{name}", "read_committed": f"c-{name}"}
    with (
        Producer(broker.bootstrap, transactional_id=name) as producer,
        Consumer(
            broker.bootstrap,
            group_id=groups["read_uncommitted"],
            client_id=f"u-{name}",
            isolation_level="read_uncommitted",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as uncommitted,
        Consumer(
            broker.bootstrap,
            group_id=groups["read_committed"],
            client_id=f"c-{name}",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as committed,
    ):
        producer.begin_transaction()
        for number in range(5):
            producer.send(name, str(number)).result(30)
        for consumer in (uncommitted, committed):
            consumer.subscribe([name])
            read: list[object] = []
            wait_until(lambda: len(read) >= 2 or bool(read.extend(consumer.poll(0.1))), "two records are read")  # noqa: B023
            consumer.commit({(name, 0): 2})
        found = scraped(port)
        assert lag(found, groups["read_uncommitted"], name) == 5
        assert lag(found, groups["read_committed"], name) == 0
        producer.abort_transaction()
        wait_until(lambda: lag(scraped(port), groups["read_uncommitted"], name) == 5, "the aborted records count")
        assert lag(scraped(port), groups["read_committed"], name) == 0


def test_group_whose_members_assign_their_partitions_themselves(broker: OncelogCluster, port: int, name: str) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name)
    transact(broker.bootstrap, name, 2)
    with (
        Producer(broker.bootstrap, transactional_id=name) as producer,
        Consumer(broker.bootstrap, group_id=name, isolation_level="read_committed", enable_auto_commit=False) as reader,
    ):
        producer.begin_transaction()
        producer.send(name, "open").result(30)
        reader.assign([(name, 0)])
        reader.seek(name, 0, 0)
        read: list[object] = []
        wait_until(lambda: len(read) >= 2 or bool(read.extend(reader.poll(0.1))), "two records are read")
        reader.commit({(name, 0): 2})
        found = scraped(port)
        assert lag(found, name, name) == 0
        assert found[series("kafka_consumergroup_members", consumergroup=name)] == 0
        producer.abort_transaction()


def test_lag_of_a_deleted_topic_is_gone(broker: OncelogCluster, port: int, name: str) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name)
        send(broker.bootstrap, name, 2)
        with Consumer(broker.bootstrap, group_id=name, enable_auto_commit=False) as consumer:
            consumer.assign([(name, 0)])
            consumer.commit({(name, 0): 1})
        assert lag(scraped(port), name, name) == 1
        admin.delete_topics(name)
        wait_until(lambda: not any(("topic", name) in labels for _, labels in scraped(port)), "its series are gone")
        admin.create_topics(name)
        assert lag(scraped(port), name, name) is None


def test_lag_is_exact_after_a_restart(tmp_path: Path, name: str) -> None:
    port = port_of(held_ports(1)[0])
    cluster = OncelogCluster(tmp_path, settings={"metrics.port": str(port)})
    try:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics(name)
        transact(cluster.bootstrap, name, 3)
        with OurClient(cluster.bootstrap).member(name, name) as member:
            member.take(3)
        with Consumer(cluster.bootstrap, group_id=name, enable_auto_commit=False) as consumer:
            consumer.assign([(name, 0)])
            consumer.commit({(name, 0): 3})
        cluster.stop()
        cluster.start()
        wait_for_lag(port, name, name, 0)
    finally:
        cluster.stop()
