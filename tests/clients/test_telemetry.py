"""Metrics that clients push (KIP-714), as Prometheus reads them from the broker."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import confluent_kafka
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from oncelog.protocol.compression import Codec, compress
from oncelog.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from oncelog.protocol.messages.push_telemetry import PushTelemetryRequest
from support.apache_kafka import held_ports, port_of
from support.configs import CLIENT_METRICS, DELETE, SET, alter
from support.pushed_metrics import gauge, metrics_data, total
from support.scrapes import get
from support.servers import OncelogCluster
from support.wire import Wire, code, until

MAX_BYTES = 100_000


@pytest.fixture(scope="module")
def port() -> int:
    return port_of(held_ports(1)[0])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[OncelogCluster]:
    folder: Path = tmp_path_factory.mktemp("telemetry")
    settings = {"metrics.port": str(port), "telemetry.max.bytes": str(MAX_BYTES)}
    cluster = OncelogCluster(folder, settings=settings)
    yield cluster
    cluster.stop()


@pytest.fixture
def wire(broker: OncelogCluster) -> Iterator[Wire]:
    with Wire(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def subscribe(broker: OncelogCluster) -> Iterator[Callable[..., None]]:
    """Create a subscription that exists until the end of the test."""
    with Wire(broker.bootstrap) as administrator:

        def made(**settings: str) -> None:
            ops = [(key.replace("_", "."), SET, value) for key, value in settings.items()]
            assert not alter(administrator, CLIENT_METRICS, "test", *ops).error_code

        yield made
        ops = [(key, DELETE, None) for key in ("interval.ms", "match", "metrics")]
        assert not alter(administrator, CLIENT_METRICS, "test", *ops).error_code


def samples(port: int, **labels: str) -> dict[str, list[Sample]]:
    """Return all samples with these labels, by name."""
    status, text = get(port, "/metrics")
    assert status == 200
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                found.setdefault(sample.name, []).append(sample)
    return found


def value(port: int, name: str, **labels: str) -> float:
    (sample,) = samples(port, **labels)[name]
    return sample.value


class Client:
    """A client that pushes what the test says."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        found = wire.call(GetTelemetrySubscriptionsRequest())
        assert not found.error_code
        self.instance_id: UUID = found.client_instance_id
        self._subscription_id = found.subscription_id

    def push(self, metrics: bytes, codec: int = 0, *, last: bool = True) -> int:
        """Return the error code. The last push is never too early."""
        request = PushTelemetryRequest(
            client_instance_id=self.instance_id,
            subscription_id=self._subscription_id,
            terminating=last,
            compression_type=codec,
            metrics=metrics,
        )
        return int(self._wire.call(request).error_code)


def test_metrics_of_librdkafka(broker: OncelogCluster, port: int, name: str, subscribe: Callable[..., None]) -> None:
    subscribe(metrics="*", interval_ms="200", match=f"client_id={name}")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "client.id": name})
    latency = "kafka_client_producer_node_request_latency_avg"

    def pushed() -> dict[str, list[Sample]]:
        producer.produce(name, b"x")
        producer.flush(30)
        return samples(port, client_id=name)

    found = until(pushed, lambda found: latency in found, "the producer has pushed")
    (sample,) = found[latency]
    assert (sample.value > 0, sample.labels["node_id"]) == (True, "1")
    assert "kafka_client_producer_connection_creation_total" in found
    (info,) = found["oncelog_client_info"]
    assert info.labels["client_instance_id"] == sample.labels["client_instance_id"]
    assert info.labels["client_software_name"] == "confluent-kafka-python"
    assert info.labels["client_source_address"] == "127.0.0.1"


def test_only_requested_metrics_are_exported(wire: Wire, port: int, subscribe: Callable[..., None]) -> None:
    subscribe(metrics="org.apache.kafka.producer.,com.example.a")
    client = Client(wire)
    points = [gauge(f"{prefix}.x", 1) for prefix in ("org.apache.kafka.producer", "org.other", "com.example.ab")]
    assert client.push(metrics_data(*points)) == 0
    exported = {name for name in samples(port, client_id="wire") if name.startswith("kafka_client_")}
    assert exported == {"kafka_client_producer_x", "kafka_client_com_example_ab_x"}


def test_client_without_a_subscription_exports_nothing(wire: Wire, port: int) -> None:
    before = value(port, "oncelog_client_telemetry_dropped_points_total")
    assert Client(wire).push(metrics_data(gauge("org.apache.kafka.x", 1))) == 0
    assert value(port, "oncelog_client_telemetry_dropped_points_total") == before + 1


@pytest.mark.parametrize("codec", Codec)
def test_each_compression_is_read(
    wire: Wire, port: int, name: str, subscribe: Callable[..., None], codec: Codec
) -> None:
    subscribe(metrics="*")
    metrics = metrics_data(gauge("org.apache.kafka.size", 7, topic=name), total("org.apache.kafka.sent", 5, topic=name))
    assert Client(wire).push(bytes(compress(codec, metrics)), codec) == 0
    assert value(port, "kafka_client_size", topic=name) == 7
    assert value(port, "kafka_client_sent_total", topic=name) == 5


def test_hostile_names_and_labels_break_no_line(
    wire: Wire, port: int, name: str, subscribe: Callable[..., None]
) -> None:
    subscribe(metrics="*")
    evil = 'a"} 1\nkafka_brokers{x="\\'
    client = Client(wire)
    pushed = [
        gauge(evil, 1, topic=name),
        gauge("up", 2, **{"topic": name, "client_id": "other", "__name__": evil, "1": "x", evil: evil}),
        gauge("kafka_brokers", 99, topic=name),
        gauge("x" * 5000, 1, topic=name),
        gauge("", 1, topic=name),
    ]
    assert client.push(metrics_data(*pushed)) == 0
    found = samples(port, topic=name)
    assert sorted(found) == ["kafka_client_a_1_kafka_brokers_x", "kafka_client_kafka_brokers", "kafka_client_up"]
    (sample,) = found["kafka_client_up"]
    assert (sample.labels["client_id"], sample.labels["name"]) == ("wire", evil)
    assert value(port, "kafka_brokers") == 1


@pytest.mark.parametrize(
    ("metrics", "codec"),
    [
        (b"\x0a", 0),
        (b"\x0b", 0),
        (b"text", 0),
        (b"not compressed", 1),
        (bytes(compress(4, bytes(MAX_BYTES + 1))), 4),
        (bytes(compress(1, bytes(100 * MAX_BYTES))), 1),
    ],
    ids=["truncated", "group", "text", "not gzip", "zstd bomb", "gzip bomb"],
)
def test_push_that_cannot_be_decoded_is_rejected(wire: Wire, port: int, metrics: bytes, codec: int) -> None:
    before = value(port, "oncelog_client_telemetry_invalid_total")
    assert Client(wire).push(metrics, codec) == code("INVALID_RECORD")
    assert value(port, "oncelog_client_telemetry_invalid_total") == before + 1


def test_values_stay_after_the_client_has_left(
    broker: OncelogCluster, port: int, name: str, subscribe: Callable[..., None]
) -> None:
    subscribe(metrics="*")
    with Wire(broker.bootstrap) as wire:
        assert Client(wire).push(metrics_data(total("org.apache.kafka.sent", 5, topic=name))) == 0
        known = value(port, "kafka_server_client_metrics_instance_count")
    until(
        lambda: value(port, "kafka_server_client_metrics_instance_count"),
        lambda found: found < known,
        "it is forgotten",
    )
    assert value(port, "kafka_client_sent_total", topic=name) == 5


def test_double_precision_is_kept(wire: Wire, port: int, name: str, subscribe: Callable[..., None]) -> None:
    subscribe(metrics="*")
    number = struct.unpack("<d", struct.pack("<d", 0.1))[0]
    assert Client(wire).push(metrics_data(gauge("org.apache.kafka.rate", number, topic=name))) == 0
    assert value(port, "kafka_client_rate", topic=name) == number
