"""The lag of groups on three brokers: each series has one broker, also after the coordinator has moved."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Admin, Consumer, Producer
from support.processes import wait_until
from support.scrapes import Samples, metrics_ports, scraped_all, series
from support.servers import ReplicatedCluster

PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    made = ReplicatedCluster(tmp_path, settings={"metrics.port": "0"})
    yield made
    made.stop()


def lags(samples: Samples, group: str, topic: str) -> list[float | None]:
    return [
        samples.get(series("kafka_consumergroup_lag", consumergroup=group, topic=topic, partition=index))
        for index in range(PARTITIONS)
    ]


def complete(cluster: ReplicatedCluster, groups: list[str]) -> Samples:
    """Scrape until all brokers answer, and each group has its series. No broker may have those of another one."""
    last: list[Samples] = []

    def answered() -> bool:
        try:
            last[:] = [scraped_all(metrics_ports(cluster).values())]
        except (ConnectionError, http.client.HTTPException):
            return False
        return all(series("kafka_consumergroup_members", consumergroup=group) in last[0] for group in groups)

    wait_until(answered, "all groups have series")
    return last[0]


def test_each_group_has_its_lag_on_one_broker_although_others_lead_the_partitions(cluster: ReplicatedCluster) -> None:
    groups = [f"group-{number}" for number in range(6)]
    with (
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, transactional_id="filler") as producer,
        Producer(cluster.bootstrap, transactional_id="open") as opened,
    ):
        for topic, replicas in (("alone", 1), ("copied", 3)):
            admin.create_topics(topic, partitions=PARTITIONS, replication_factor=replicas)
            producer.begin_transaction()
            for index in range(PARTITIONS):
                producer.send(topic, "value", partition=index).result(30)
            producer.commit_transaction()
        consumers = [_reading(cluster, group) for group in groups]
        for consumer in consumers:
            consumer.commit({(topic, index): 1 for topic in ("alone", "copied") for index in range(PARTITIONS)})
        found = complete(cluster, groups)
        for group in groups:
            for topic in ("alone", "copied"):
                assert lags(found, group, topic) == [0] * PARTITIONS, (group, topic)
                assert found[series("kafka_consumergroup_lag_sum", consumergroup=group, topic=topic)] == 0
        opened.begin_transaction()
        for index in range(PARTITIONS):
            opened.send("alone", "undecided", partition=index).result(30)
        for consumer in consumers[:3]:
            wait_until(lambda: not consumer.poll(0.1), "nothing more is readable")  # noqa: B023
        found = complete(cluster, groups)
        for group in groups:
            assert lags(found, group, "alone") == [0] * PARTITIONS, "all readers use read_committed"
        consumers.pop().close()
        # Nobody reads for the last group any more, so its isolation level is unknown.
        wait_until(lambda: lags(complete(cluster, groups), groups[-1], "alone") == [2] * PARTITIONS, "lag to the HW")
        for consumer in consumers:
            consumer.close()
        opened.abort_transaction()


def _reading(cluster: ReplicatedCluster, group: str) -> Consumer:
    """Return a consumer that has read both topics. It assigns the partitions itself."""
    consumer = Consumer(
        cluster.bootstrap,
        group_id=group,
        client_id=group,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.assign([(topic, index) for topic in ("alone", "copied") for index in range(PARTITIONS)])
    read: list[object] = []
    wait_until(lambda: len(read) >= 2 * PARTITIONS or bool(read.extend(consumer.poll(0.1))), "all records are read")
    return consumer


def test_series_move_with_the_coordinator(cluster: ReplicatedCluster) -> None:
    groups = [f"group-{number}" for number in range(6)]
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topics("t", partitions=PARTITIONS, replication_factor=3)
        for index in range(PARTITIONS):
            for _ in range(3):
                producer.send("t", "value", partition=index).result(30)
    for group in groups:
        with Consumer(cluster.bootstrap, group_id=group, enable_auto_commit=False) as consumer:
            consumer.assign([("t", index) for index in range(PARTITIONS)])
            consumer.commit({("t", index): 1 for index in range(PARTITIONS)})
    assert [lags(complete(cluster, groups), group, "t") for group in groups] == [[2] * PARTITIONS] * 6
    for broker in (1, 2, 3):
        before = metrics_ports(cluster)[broker]
        cluster.kill(broker)
        wait_until(lambda: metrics_ports(cluster)[broker] != before, "the broker serves metrics again")  # noqa: B023
        cluster.wait_ready()
        wait_until(
            lambda: [lags(complete(cluster, groups), group, "t") for group in groups] == [[2] * PARTITIONS] * 6,
            "each lag is known again",
        )
