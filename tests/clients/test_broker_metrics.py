"""The metrics of a running broker, as Prometheus and an operator read them."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Admin, Consumer, Producer
from oncelog.broker.metrics.catalog import catalog
from oncelog.net.http_server import MOST_CONNECTIONS
from support.apache_kafka import held_ports, port_of
from support.processes import wait_until
from support.scrapes import Samples, get, scraped
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
