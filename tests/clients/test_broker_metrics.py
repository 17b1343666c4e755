"""The metrics of a running broker, as Prometheus and an operator read them."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from oncelog import Admin, Consumer, Producer
from oncelog.broker.metrics.catalog import catalog
from oncelog.errors import AbortableError, KafkaError
from oncelog.net.http_server import MOST_CONNECTIONS
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Owner, Record, Span, TaskTransaction
from support.apache_kafka import held_ports, port_of
from support.command_line import ONCELOG
from support.processes import wait_until
from support.scrapes import Samples, get, scraped, series
from support.servers import OncelogCluster


@pytest.fixture(scope="module")
def port() -> int:
    return port_of(held_ports(1)[0])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[OncelogCluster]:
    folder: Path = tmp_path_factory.mktemp("metrics")
    cluster = OncelogCluster(folder, settings={"metrics.port": str(port)})
    yield cluster
    cluster.stop()


def of_topic(samples: Samples, name: str, topic: str) -> float:
    return samples[f"kafka_server_brokertopicmetrics_{name}_total", (("topic", topic),)]


def test_each_metric_of_the_catalog_is_served_once(broker: OncelogCluster, port: int) -> None:
    _, text = get(port, "/metrics")
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert sorted(heads) == sorted(each.name for each in catalog())


def test_traffic_of_a_topic_is_counted(broker: OncelogCluster, port: int, name: str) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name)
    with Producer(broker.bootstrap) as producer:
        for number in range(10):
            producer.send(name, str(number)).result(30)
    with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        read: list[object] = []
        wait_until(lambda: len(read) >= 10 or bool(read.extend(consumer.poll(0.1))), "all records are read")
    found = scraped(port)
    assert of_topic(found, "messagesin", name) == 10
    assert of_topic(found, "totalproducerequests", name) == 10
    assert of_topic(found, "bytesin", name) == of_topic(found, "bytesout", name) > 0
    partition = (("partition", "0"), ("topic", name))
    assert found["kafka_topic_partition_current_offset", partition] == 10
    assert found["kafka_log_log_logendoffset", partition] == 10
    assert found["kafka_topic_partition_leader", partition] == 1
    assert found["kafka_network_requestmetrics_requests_total", (("request", "Produce"),)] >= 10


def test_counter_of_all_topics_does_not_fall_when_a_topic_is_deleted(
    broker: OncelogCluster, port: int, name: str
) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name)
        with Producer(broker.bootstrap) as producer:
            producer.send(name, "x").result(30)
        total = "kafka_server_brokertopicmetrics_messagesin_total", ()
        before = scraped(port)[total]
        admin.delete_topics(name)
        wait_until(lambda: not any(("topic", name) in labels for _, labels in scraped(port)), "its series are gone")
    assert scraped(port)[total] >= before


def test_open_transaction_shows_in_the_distance_of_the_last_stable_offset(
    broker: OncelogCluster, port: int, name: str
) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name)
    distance = "oncelog_partition_unstable_offsets", (("partition", "0"), ("topic", name))
    with Producer(broker.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, "x").result(30)
        found = scraped(port)
        assert found[distance] == 1
        assert found["oncelog_transactions", (("state", "Ongoing"),)] == 1
        producer.commit_transaction()
    wait_until(lambda: scraped(port)[distance] == 0, "the marker is written")


def test_open_transactions_are_counted_by_age(broker: OncelogCluster, port: int, name: str) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name)
    with Producer(broker.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, "x").result(30)
        found = scraped(port)
        assert found[series("oncelog_open_transactions", seconds=0)] >= 1
        assert found[series("oncelog_open_transactions", seconds=3600)] == 0
        producer.abort_transaction()


def test_fenced_batches_are_counted(broker: OncelogCluster, port: int, name: str) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name)
    first = Producer(broker.bootstrap, transactional_id=name)
    first.begin_transaction()
    first.send(name, "x").result(30)
    fenced = series("oncelog_fenced_batches_total", topic=name, partition=0)
    assert scraped(port)[fenced] == 0
    with Producer(broker.bootstrap, transactional_id=name):
        with pytest.raises(AbortableError):
            first.send(name, "y").result(30)
        with contextlib.suppress(KafkaError):  # the transaction cannot be aborted
            first.close()
    assert scraped(port)[fenced] == 1


def test_commits_and_rebalances_of_groups_are_counted(broker: OncelogCluster, port: int, name: str) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name, partitions=3)
    before = scraped(port)
    with Consumer(broker.bootstrap, group_id=name, enable_auto_commit=False) as consumer:
        consumer.subscribe([name])
        wait_until(lambda: consumer.poll(0.1) or len(consumer.assignment()) == 3, "the member has its partitions")
        consumer.commit({(name, index): 0 for index in range(3)})
        found = scraped(port)
        for counter, more in (("offset_commit", 3), ("group_completed_rebalance", 1), ("offset_deletion", 0)):
            key = series(f"kafka_server_group_coordinator_metrics_{counter}_count")
            assert found[key] - before[key] == more, counter
        manager = "kafka_coordinator_group_groupmetadatamanager"
        assert found[series(f"{manager}_numgroupsstable")] >= 1
        assert found[series(f"{manager}_numoffsets")] - before[series(f"{manager}_numoffsets")] == 3
        assert found[series("kafka_server_group_coordinator_metrics_group_count", protocol="classic")] >= 1
    with Admin(broker.bootstrap) as admin:
        admin.delete_offsets(name, [(name, 0)])
    deleted = series("kafka_server_group_coordinator_metrics_offset_deletion_count")
    assert scraped(port)[deleted] - before[deleted] == 1


def test_syncs_are_counted(broker: OncelogCluster, port: int, name: str) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topics(name, configs={"flush.messages": "1"})
    before = scraped(port)
    with Producer(broker.bootstrap) as producer:
        producer.send(name, "x").result(30)
    found = scraped(port)
    for counter in ("oncelog_syncs_total", "oncelog_sync_seconds_total"):
        assert found[series(counter)] > before[series(counter)]
    assert found[series("oncelog_slowest_sync_seconds")] > 0


def test_pending_decision_of_a_sink_shows(broker: OncelogCluster, port: int, name: str) -> None:
    topic = f"{name}-commits"
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([topic, f"{name}-more-commits"])
    pending = series("oncelog_sink_decision_pending", topic=topic)
    assert pending not in scraped(port), "there is no decision yet"
    owner = Owner(f"{name}/1/0", 1, 0)
    record = Record(
        prefix=name, settled=False, transactions=(TaskTransaction(owner, (Span(TopicPartition("t", 0), 0, 5),)),)
    )
    with Producer(broker.bootstrap, transactional_id=name) as driver:
        for settled in (False, True):
            driver.begin_transaction()
            driver.send(topic, replace(record, settled=settled).encode(), partition=0).result(30)
            driver.send(f"{name}-more-commits", "not a decision").result(30)
            assert scraped(port).get(pending) == (1 if settled else None), "the new decision is not committed"
            driver.commit_transaction()
            wait_until(lambda: scraped(port).get(pending) == (not settled), "the decision is seen")  # noqa: B023
    assert not any(("topic", f"{name}-more-commits") in labels for label, labels in scraped(port) if "sink" in label)


def test_ready_broker_says_so(broker: OncelogCluster, port: int) -> None:
    wait_until(lambda: get(port, "/ready")[0] == 200, "the broker is ready")
    assert json.loads(get(port, "/ready")[1]) == {"ready": True, "missing": []}
    assert get(port, "/live") == (200, "alive\n")


def test_wrong_requests_are_refused(broker: OncelogCluster, port: int) -> None:
    assert get(port, "/")[0] == 404
    assert get(port, "/metrics", "POST")[0] == 405
    assert get(port, "/live", "HEAD") == (200, "")
    assert get(port, "/" + "x" * 9000)[0] == 431
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(b"nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400 ")


def test_silent_connections_do_not_keep_others_out(broker: OncelogCluster, port: int) -> None:
    """Their number is bounded, and each has some seconds to send its request."""
    silent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(2 * MOST_CONNECTIONS)]
    try:
        wait_until(lambda: _answers(port), "the silent connections are closed")
    finally:
        for each in silent:
            each.close()


def _answers(port: int) -> bool:
    try:
        return get(port, "/live")[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def test_used_port_is_named_at_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        command: list[str | Path] = [ONCELOG, "up", "--ephemeral", "--port", "0", "--metrics-port", str(port)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"metrics.port: cannot listen on 127.0.0.1:{port}, because the port is in use" in done.stderr
