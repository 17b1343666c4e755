"""The client's logins and TLS against Apache Kafka: each mechanism with client, command line and Spark."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AclOperation, ResourceType

from oncelog import Admin, Consumer, Producer, errors
from oncelog.cli.app import oncelog as command_line
from oncelog.spark.commit.errors import NotPermittedError, SinkError
from spark import logged_in
from spark.judges import create, open_producers, values
from spark.micro_batches import Query
from spark.test_connect import copy_while_server_is_killed
from spark.test_sink_crashes import (
    starter,
    test_sink_killed_before_each_operation_and_restarted,
    test_sink_killed_then_settled_then_restarted,
)
from support.certificates import authority, signed_by
from support.secured_kafka import (
    GUEST,
    GUEST_PASSWORD,
    PASSWORD,
    USER,
    WAYS,
    Credentials,
    SecuredKafka,
    TokenServer,
    unsecured_token,
)
from support.tls_proxy import TlsProxy

__all__ = [
    "starter",
    "test_sink_killed_before_each_operation_and_restarted",
    "test_sink_killed_then_settled_then_restarted",
]

MECHANISMS = WAYS[2:]
SOON_S = 10.0
WRONG = "hunter2-wrong"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    made = SecuredKafka(tmp_path_factory.mktemp("secured"), settings={"connections.max.reauth.ms": "1500"})
    yield made
    made.stop()


@pytest.fixture(scope="module")
def credentials(secured: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Credentials]:
    with TokenServer() as tokens:
        yield Credentials(secured, tokens, tmp_path_factory.mktemp("client"))


def write_and_read(options: dict[str, Any], topic: str) -> None:
    """Write one record in a transaction, and read it as a member of a group."""
    with Producer(config={**options, "transactional.id": topic}) as producer, producer.transaction():
        producer.send(topic, b"value")
    with Consumer(
        config=options, group_id=topic, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.subscribe([topic])
        records: list[Any] = []
        deadline = time.monotonic() + 30
        while not records and time.monotonic() < deadline:
            records = list(consumer.poll(1.0))
    assert [record.value for record in records] == [b"value"]


@pytest.mark.parametrize("way", WAYS)
def test_client(credentials: Credentials, way: str) -> None:
    write_and_read(credentials.options(way), f"client-{way.lower()}")


def settings_file(folder: Path, options: dict[str, str]) -> Path:
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    return file


def ran(file: Path, *words: str, stdin: str = "") -> str:
    """Run a command with this file as its --command-config. Return its output."""
    done = CliRunner().invoke(command_line, [*words, "--command-config", str(file)], input=stdin)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def sink(kafka: SecuredKafka, topic: str, folder: Path, options: dict[str, str]) -> Query:
    """Return a query whose sink logs in with these options. The judges use the listener without a login."""
    spark_options = {f"kafka.{name}": value for name, value in options.items()}
    return Query(kafka.bootstrap, topic, f"sink-{topic}", folder / "checkpoint", 6, **spark_options)


@pytest.mark.parametrize("way", WAYS)
def test_command_line(secured: SecuredKafka, credentials: Credentials, way: str, tmp_path: Path) -> None:
    options, topic = credentials.options(way), f"command-{way.lower()}"
    file = settings_file(tmp_path, options)
    ran(file, "topic", "create", topic)
    ran(file, "topic", "produce", topic, stdin="value\n")
    assert "value" in ran(file, "topic", "consume", topic, "--group", topic, "-c", "1")
    assert topic in ran(file, "topic", "list")
    query = sink(secured, topic, tmp_path, options)
    query.run(1)
    query.task(query.plan(), 1, 0, ["never committed"])
    assert open_producers(secured.bootstrap, topic)
    assert len(json.loads(ran(file, "sink", "settle", query.prefix, "--format", "json"))["aborted"]) == 1
    assert not open_producers(secured.bootstrap, topic)


@pytest.mark.timeout(400)
def test_spark_shows_no_secret(secured: SecuredKafka, credentials: Credentials, tmp_path: Path) -> None:
    """Copy a topic with each login, and try a wrong password. Search all logs, plans, pages and files for secrets."""
    folder, given = tmp_path / "shown", tmp_path / "given.json"
    folder.mkdir()
    wanted = {str(each): 1 for each in range(20)}
    copies = {f"spark-{way.lower()}": credentials.options(way) for way in WAYS}
    wrong, explained = {"spark-plain": credentials.options("PLAIN", WRONG)}, "spark-scram-sha-512"
    given.write_text(json.dumps({"copies": copies, "explained": {explained: copies[explained]}, "wrong": wrong}))
    with Producer(secured.bootstrap) as producer:
        for name in copies:
            create(secured.bootstrap, name)
            create(secured.bootstrap, f"{name}-out")
            for value in wanted:
                producer.send(name, value.encode())
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "tests")}
    command = [sys.executable, logged_in.__file__, str(given), str(folder)]
    with (folder / "output").open("w") as output:
        done = subprocess.run(command, env=env, stdout=output, stderr=subprocess.STDOUT, timeout=390, check=False)
    shown = (folder / "output").read_text()
    assert done.returncode == 0, shown[-4000:]
    assert "rejected the login with PLAIN" in shown
    for name in copies:
        assert values(secured.bootstrap, f"{name}-out") == wanted
        assert not open_producers(secured.bootstrap, f"{name}-out", f"{name}-sink-commits")
    contents = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    redacted = b"kafka.sasl.jaas.config=*********(redacted)"
    assert sum(redacted in content for content in contents.values()) >= 2, "in a page and in the event log"
    secrets = [WRONG, *credentials.secrets()]
    assert [(name, each) for name, content in contents.items() for each in secrets if each.encode() in content] == []


@pytest.mark.timeout(900)
def test_spark_connect_loses_and_duplicates_nothing(
    secured: SecuredKafka, credentials: Credentials, tmp_path: Path
) -> None:
    login = credentials.options("SCRAM-SHA-512")
    copy_while_server_is_killed(secured.bootstrap, login, "connected", tmp_path, "1")


@pytest.mark.timeout(60)
def test_sessions_are_renewed_while_clients_run(secured: SecuredKafka, credentials: Credentials) -> None:
    """The broker closes a connection whose session has expired (`connections.max.reauth.ms`)."""
    topics = [f"renewed-{way.lower()}" for way in MECHANISMS]
    with ExitStack() as stack:
        producers = [stack.enter_context(Producer(config=credentials.options(way))) for way in MECHANISMS]
        sent, until = 0, time.monotonic() + 5
        while time.monotonic() < until:
            futures = [producer.send(topic, b"%d" % sent) for producer, topic in zip(producers, topics, strict=True)]
            for future in futures:
                future.result(SOON_S)
            sent += 1
            time.sleep(0.05)
    with Admin(secured.bootstrap) as admin:
        assert set(admin.end_offsets([(topic, 0) for topic in topics]).values()) == {sent}


def rejected(options: dict[str, Any], *words: str) -> None:
    begun = time.monotonic()
    with Admin(config=options) as admin, pytest.raises(errors.AuthenticationError) as caught:
        admin.describe_cluster()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert WRONG not in f"{caught.value!r}{caught.value.__cause__!r}"
    assert time.monotonic() - begun < SOON_S


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_wrong_password(
    credentials: Credentials, mechanism: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("DEBUG")
    options = credentials.options(mechanism, WRONG)
    rejected(options, mechanism, "sasl.password", "sasl.jaas.config")
    command = ["topic", "list", "--command-config", str(settings_file(tmp_path, options))]
    done = subprocess.run(
        [sys.executable, "-m", "oncelog", *command], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "sasl.password" in done.stderr
    assert WRONG not in caplog.text + done.stdout + done.stderr


def test_tokens_of_a_callback(credentials: Credentials, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    token = unsecured_token(life_s=-3600)
    options = {name: value for name, value in credentials.options("OAUTHBEARER").items() if "oauthbearer" not in name}
    rejected({**options, "sasl_oauth_token_provider": lambda: token}, "OAUTHBEARER", "invalid_token")
    assert token not in caplog.text
    write_and_read(
        {**options, "sasl_oauth_token_provider": lambda: (unsecured_token(), time.time() + 3600)}, "callback"
    )


def test_wrong_certificates(secured: SecuredKafka, credentials: Credentials, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(authority("other").certificate_pem)
    tls = credentials.options("TLS")
    rejected({**tls, "ssl.truststore.location": str(other)}, "unknown authority", "ssl.truststore.location")
    rejected(credentials.options("EXPIRED"), "has expired", "127.0.0.1")
    rejected(credentials.options("ELSEWHERE"), "another host name", "ssl.endpoint.identification.algorithm")
    rejected({**tls, "bootstrap.servers": secured.addresses["MUTUAL"]}, "ssl.keystore.location")


@pytest.mark.parametrize(
    ("way", "password", "said"),
    [
        ("PLAIN", WRONG, "rejected the login with PLAIN: .*sasl.password"),
        ("EXPIRED", "", "certificate has expired"),
        ("ELSEWHERE", "", r"another host name: .*ssl\.endpoint\.identification\.algorithm"),
    ],
)
def test_error_of_the_sink(
    secured: SecuredKafka, credentials: Credentials, tmp_path: Path, way: str, password: str, said: str
) -> None:
    begun = time.monotonic()
    with pytest.raises(SinkError, match=rf"option kafka\.bootstrap\.servers=.*{said}") as caught:
        sink(secured, "unused", tmp_path, credentials.options(way, password)).run(1)
    assert WRONG not in repr(caught.value)
    assert time.monotonic() - begun < SOON_S


def test_login_at_a_listener_without_one(secured: SecuredKafka) -> None:
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "bootstrap.servers": secured.bootstrap}
    rejected({**options, "sasl.username": USER, "sasl.password": PASSWORD}, "security.protocol")


@pytest.fixture
def query(secured: SecuredKafka, credentials: Credentials, name: str, tmp_path: Path) -> Query:
    """The sink of the crash tests."""
    create(secured.bootstrap, name)
    return sink(secured, name, tmp_path, credentials.options("SCRAM-SHA-512"))


def guest(credentials: Credentials) -> dict[str, str]:
    """Return the options of a user who may do only what was granted."""
    return {**credentials.options("PLAIN", GUEST_PASSWORD), "sasl.username": GUEST}


def test_documented_permissions_of_the_sink_are_enough(
    secured: SecuredKafka, credentials: Credentials, name: str, tmp_path: Path
) -> None:
    secured.permit_sink(name)
    sink(secured, name, tmp_path, guest(credentials)).run(2)


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("topic WRITE", "the sink needs the permission Write on the topics of option topic or column topic"),
        ("decisions READ", "option decisionTopic: the sink needs the permission Read"),
        ("ids", "option transactionalIdPrefix=sink-"),
    ],
)
def test_missing_permission_of_the_sink(
    secured: SecuredKafka, credentials: Credentials, name: str, tmp_path: Path, without: str, said: str
) -> None:
    secured.permit_sink(name, without)
    begun = time.monotonic()
    with pytest.raises(NotPermittedError, match=said):
        sink(secured, name, tmp_path, guest(credentials)).run(1)
    assert time.monotonic() - begun < SOON_S


def test_missing_permission_of_a_client(secured: SecuredKafka, credentials: Credentials, name: str) -> None:
    create(secured.bootstrap, name)
    options = guest(credentials)
    with Producer(config=options) as producer, pytest.raises(errors.AuthorizationError, match=name):
        producer.send(name, b"value")
    with Consumer(config=options, group_id=name) as consumer:
        consumer.subscribe([name])
        with pytest.raises(errors.AuthorizationError, match=name):
            consumer.poll(SOON_S)


def test_proxy_that_ends_tls(secured: SecuredKafka, tmp_path: Path) -> None:
    """The brokers advertise the proxy's address. Its certificate, authority and all, is renewed meanwhile."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(secured.authority.certificate_pem)
    options = {"bootstrap.servers": secured.proxied, "security.protocol": "SSL", "ssl.ca.location": str(ca)}
    first, renewed = signed_by(secured.authority, "localhost"), authority("renewed")
    with TlsProxy(secured.proxied, secured.addresses["PROXIED"], first, tmp_path) as proxy:
        write_and_read(options, "proxied")
        with Admin(config={**options, "connections.max.idle.ms": 200}) as admin:
            admin.describe_cluster()
            ca.write_bytes(renewed.certificate_pem)
            proxy.present(signed_by(renewed, "localhost"))
            before = len(proxy.names)
            time.sleep(0.5)
            admin.describe_cluster()
            assert len(proxy.names) > before, "the connection was idle, so this is a new one"
    assert set(proxy.names) == {"localhost"}


def test_certificate_of_the_client_is_renewed(secured: SecuredKafka, credentials: Credentials, tmp_path: Path) -> None:
    short = signed_by(secured.authority, "client", ends=datetime.timedelta(seconds=2))
    expires = time.monotonic() + 2
    certificate, key = short.write(tmp_path, "client")
    own = {"ssl.key.location": str(key), "ssl.certificate.location": str(certificate)}
    options = {**credentials.options("TLS"), "bootstrap.servers": secured.addresses["MUTUAL"], **own}
    with Admin(config={**options, "connections.max.idle.ms": 200}) as admin:
        admin.describe_cluster()
        time.sleep(max(0.0, expires - time.monotonic()) + 0.5)
        rejected(options, "ssl.keystore.location")
        signed_by(secured.authority, "client").write(tmp_path, "client")
        admin.describe_cluster()


def repeat(step: Callable[[], object], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        step()


@pytest.mark.timeout(60)
def test_changed_password_ends_clients_that_run(secured: SecuredKafka, credentials: Credentials, name: str) -> None:
    """The broker requires a new login after `connections.max.reauth.ms`."""
    create(secured.bootstrap, name)
    secured.grant(ResourceType.TOPIC, name, (AclOperation.READ, AclOperation.WRITE))
    secured.grant(ResourceType.GROUP, name, (AclOperation.READ,))
    options = {**credentials.options("SCRAM-SHA-256", GUEST_PASSWORD), "sasl.username": GUEST}
    with Producer(config=options) as producer, Consumer(config=options, group_id=name) as consumer:
        consumer.subscribe([name])
        producer.send(name, b"value").result(SOON_S)
        consumer.poll(1.0)
        secured.add_scram_user(GUEST, "changed")
        for step in (lambda: consumer.poll(0.5), lambda: producer.send(name, b"value").result(SOON_S)):
            with pytest.raises(errors.AuthenticationError, match="rejected the login"):
                repeat(step, 20)
    secured.add_scram_user(GUEST, GUEST_PASSWORD)
