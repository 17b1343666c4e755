"""Metrics of Java's clients (KIP-714), and Kafka's tool for the subscriptions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from support.apache_kafka import SHORT_LIVED, held_ports, java, port_of, run_tool
from support.scrapes import get
from support.servers import OncelogCluster, Server
from support.wire import until

TOOLS = "org.apache.kafka.tools"


def tool(bootstrap: str, *arguments: str) -> list[str]:
    return run_tool(f"{TOOLS}.ClientMetricsCommand", "--bootstrap-server", bootstrap, *arguments).splitlines()


def test_subscription_is_altered_described_listed_and_deleted(server: Server, name: str) -> None:
    chosen = ("--interval", "2000", "--metrics", "org.a,org.b", "--match", "client_id=a.*,client_software_name=java")
    assert tool(server.bootstrap, "--alter", "--name", name, *chosen) == [f"Altered client metrics config for {name}."]
    until(lambda: tool(server.bootstrap, "--list"), lambda lines: name in lines, "the subscription is listed")
    described = [f"Client metrics configs for {name} are:"]
    described += ["  interval.ms=2000", "  match=client_id=a.*,client_software_name=java", "  metrics=org.a,org.b"]
    assert tool(server.bootstrap, "--describe", "--name", name) == described
    assert set(described) <= set(tool(server.bootstrap, "--describe"))
    deleted = tool(server.bootstrap, "--delete", "--name", name)
    assert deleted == [f"Deleted client metrics config for {name}."]
    until(lambda: tool(server.bootstrap, "--list"), lambda lines: name not in lines, "the subscription is gone")


def test_wrong_settings_are_rejected(server: Server, name: str) -> None:
    """The tool then prints the error, and ends with status 1."""
    for option, value, reason in (
        ("--interval", "99", "interval must be between 100 and 3600000"),
        ("--match", "client=a", "Illegal client matching pattern: client=a"),
    ):
        with pytest.raises(AssertionError, match=reason):
            tool(server.bootstrap, "--alter", "--name", name, option, value)
    assert name not in tool(server.bootstrap, "--list")


@contextmanager
def running(main_class: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run one of Kafka's console tools until the end of the block."""
    command = java(f"{TOOLS}.{main_class}", *arguments, options=SHORT_LIVED)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        process.wait(60)


def samples(port: int, client: str) -> dict[str, Sample]:
    """Return the samples of a client by name, one of each."""
    status, text = get(port, "/metrics")
    assert status == 200
    found = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {sample.name: sample for sample in found if sample.labels.get("client_id") == client}


def test_java_clients_push_their_metrics(tmp_path: Path, name: str) -> None:
    port = port_of(held_ports(1)[0])
    cluster = OncelogCluster(tmp_path, settings={"metrics.port": str(port)})
    address = ("--bootstrap-server", cluster.bootstrap, "--topic", name)
    sent, lag = "kafka_client_producer_record_send_total", "kafka_client_consumer_fetch_manager_records_lag_max"
    try:
        tool(cluster.bootstrap, "--alter", "--name", "all", "--interval", "300", "--metrics", "*")
        producer_options = ("--command-property", f"client.id={name}-p")
        with running("ConsoleProducer", *address, *producer_options) as producer:
            assert producer.stdin is not None
            producer.stdin.write("a\nb\nc\n")
            producer.stdin.flush()
            found = until(
                lambda: samples(port, f"{name}-p"),
                lambda found: sent in found and found[sent].value == 3,
                "the producer has pushed",
            )
            info = found["oncelog_client_info"].labels
            assert (info["client_software_name"], info["client_software_version"]) == ("apache-kafka-java", "4.3.1")
            assert found["kafka_client_producer_topic_record_send_total"].labels["topic"] == name
            consumer_options = ("--from-beginning", "--group", name, "--command-property", f"client.id={name}-c")
            with running("consumer.ConsoleConsumer", *address, *consumer_options):
                found = until(lambda: samples(port, f"{name}-c"), lambda found: lag in found, "the consumer has pushed")
                assert found["oncelog_client_info"].labels["group_id"] == name
        # Its last push counts, although it has left.
        assert samples(port, f"{name}-p")[sent].value == 3
    finally:
        assert cluster.stop() == 0, cluster.process.output()
