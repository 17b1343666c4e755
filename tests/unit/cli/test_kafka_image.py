"""`oncelog up --kafka-image` makes of an environment what the scripts of Apache Kafka's image make of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog import Admin
from oncelog.broker.config.sources import environment_settings
from oncelog.cli.kafka_image import ADVERTISED, DATA, LISTENERS, ImageError, prepare
from support.processes import ManagedProcess

FILES = {f"/etc/kafka/secrets/{name}": f"secret of {name}\n" for name in ("store-creds", "key-creds", "trust-creds")}
TLS = {
    "KAFKA_ADVERTISED_LISTENERS": "SSL://broker.example.com:9093",
    "KAFKA_SSL_KEYSTORE_FILENAME": "broker.p12",
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": "store-creds",
    "KAFKA_SSL_KEY_CREDENTIALS": "key-creds",
}
TRUST = {
    "KAFKA_SSL_CLIENT_AUTH": "required",
    "KAFKA_SSL_TRUSTSTORE_FILENAME": "trust.p12",
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "trust-creds",
}


def read(path: str) -> str:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return FILES[path]


def settings(environment: dict[str, str], mounted: dict[str, str] | None = None) -> dict[str, str]:
    return environment_settings(prepare(environment, mounted or {}, read).environment)


def test_image_without_settings_listens_on_all_interfaces_and_advertises_localhost() -> None:
    prepared = prepare({"PATH": "/bin"}, {}, read)
    assert environment_settings(prepared.environment) == {"listeners": LISTENERS, "advertised.listeners": ADVERTISED}
    assert prepared.environment["PATH"] == "/bin"
    assert prepared.data == DATA
    own = prepare({}, {"advertised.listeners": "PLAINTEXT://kafka:9092"}, read)
    assert environment_settings(own.environment) == {"listeners": LISTENERS}, "a mounted file says what to advertise"


@pytest.mark.parametrize(
    ("advertised", "listeners"),
    [
        ("PLAINTEXT://broker:9092", "PLAINTEXT://0.0.0.0:9092"),
        ("A://broker:19092,B://localhost:9092", "A://0.0.0.0:19092,B://0.0.0.0:9092"),
        ("A://[::1]:9092,B://:9093", "A://0.0.0.0:9092,B://0.0.0.0:9093"),
    ],
)
def test_listeners_are_derived_from_the_advertised_ones(advertised: str, listeners: str) -> None:
    assert settings({"KAFKA_ADVERTISED_LISTENERS": advertised})["listeners"] == listeners
    given = settings({"KAFKA_ADVERTISED_LISTENERS": advertised, "KAFKA_LISTENERS": "A://1.2.3.4:1"})
    assert given["listeners"] == "A://1.2.3.4:1"


def test_stores_and_passwords_come_from_the_secrets() -> None:
    found = settings(TLS)
    assert found == {
        "advertised.listeners": "SSL://broker.example.com:9093",
        "listeners": "SSL://0.0.0.0:9093",
        "ssl.keystore.location": "/etc/kafka/secrets/broker.p12",
        "ssl.keystore.password": "secret of store-creds",
        "ssl.key.password": "secret of key-creds",
    }
    found = settings({**TLS, **TRUST})
    assert found["ssl.truststore.location"] == "/etc/kafka/secrets/trust.p12"
    assert found["ssl.truststore.password"] == "secret of trust-creds"


@pytest.mark.parametrize("missing", [*list(TLS)[1:], *list(TRUST)[1:]])
def test_missing_variable_or_file_is_named(missing: str) -> None:
    environment = {**TLS, **TRUST}
    del environment[missing]
    with pytest.raises(ImageError, match=f"^{missing} environment variable not set"):
        prepare(environment, {}, read)
    if missing.endswith("CREDENTIALS"):
        with pytest.raises(ImageError, match=f"{missing}: cannot read /etc/kafka/secrets/other: No such file"):
            prepare({**TLS, **TRUST, missing: "other"}, {}, read)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"KAFKA_PROCESS_ROLES": "controller"}, "controller without a broker"),
        ({"KAFKA_CONTROLLER_QUORUM_VOTERS": "1@a:9093,2@b:9093"}, "a whole cluster"),
        ({"KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": "a:9093,b:9093"}, "a whole cluster"),
        ({"KAFKA_OPTS": "-Djava.security.auth.login.config=/x"}, "JAAS"),
        ({"KAFKA_LOG_DIRS": "/a,/b"}, "several directories"),
    ],
)
def test_what_one_container_cannot_be_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        prepare(environment, {}, read)


def test_data_is_in_the_one_log_directory() -> None:
    prepared = prepare({"KAFKA_LOG_DIRS": "/data/kafka"}, {"log.dirs": "/x"}, read)
    assert prepared.data == "/data/kafka"
    assert "KAFKA_LOG_DIRS" not in prepared.environment
    assert prepare({}, {"log.dirs": "/x", "listeners": "A://:1"}, read).data == "/x"
    assert "KAFKA_LISTENERS" not in prepare({}, {"log.dirs": "/x", "listeners": "A://:1"}, read).environment


def test_level_of_the_root_logger_counts_unless_a_level_is_given() -> None:
    assert prepare({"KAFKA_LOG4J_ROOT_LOGLEVEL": "debug"}, {}, read).environment["ONCELOG_LOG_LEVEL"] == "DEBUG"
    both = {"KAFKA_LOG4J_ROOT_LOGLEVEL": "ERROR", "ONCELOG_LOG_LEVEL": "INFO"}
    assert prepare(both, {}, read).environment["ONCELOG_LOG_LEVEL"] == "INFO"
    assert "ONCELOG_LOG_LEVEL" not in prepare({"KAFKA_LOG4J_ROOT_LOGLEVEL": "OFF"}, {}, read).environment


def test_broker_starts_with_the_environment_of_a_compose_file(tmp_path: Path) -> None:
    """The variables are those of a combined node of Kafka's image."""
    env = {
        **os.environ,
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT_HOST://127.0.0.1:0,CONTROLLER://:29093",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT_HOST",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_NUM_PARTITIONS": "5",
        "KAFKA_LOG_DIRS": str(tmp_path / "combined-logs"),
        "KAFKA_HEAP_OPTS": "-Xmx1g",
    }
    program = Path(sys.executable).with_name("oncelog")
    process = ManagedProcess([program, "up", "--kafka-image"], tmp_path, "image", env)
    try:
        process.wait_for(lambda: any("BROKERS=" in line for line in process.lines()), "the broker accepts requests")
        address = next(line.removeprefix("BROKERS=") for line in process.lines() if "BROKERS=" in line)
        with Admin(address) as admin:
            admin.create_topics("t")
            assert len(admin.describe_topics("t")[0].partitions) == 5
        assert (tmp_path / "combined-logs" / "metadata.sqlite").exists()
    finally:
        status = process.stop()
    assert status == 0
    assert "unknown setting" not in process.output()


def test_environment_that_cannot_be_used_is_one_line_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\n")
    for variable, value, message in (
        ("KAFKA_PROCESS_ROLES", "controller", "KAFKA_PROCESS_ROLES=controller"),
        ("KAFKA_LOG_DIRS", str(tmp_path), f"{tmp_path} is itself a log directory"),
    ):
        done = subprocess.run(
            [Path(sys.executable).with_name("oncelog"), "up", "--kafka-image"],
            env={**os.environ, variable: value},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"oncelog: {message}")
        assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.properties"]
