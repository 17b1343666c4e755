"""TLS and logins of our broker, with our client and librdkafka."""

from __future__ import annotations

import socket
import ssl
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ScramMechanism, UserScramCredentialDeletion

import oncelog
from oncelog import Consumer, Producer, errors
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.metadata import MetadataRequest
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from support.attacker import salt
from support.processes import ManagedProcess, children
from support.secured_oncelog import (
    MECHANISMS,
    PASSWORD,
    USER,
    SecuredOncelog,
    add_scram_user,
)
from support.wire import Wire

WAYS = [
    ("TLS", ""),
    ("MUTUAL", ""),
    *(("LOGIN", mechanism) for mechanism in MECHANISMS),
    *(("OPEN", mechanism) for mechanism in MECHANISMS),
]
QUICK: dict[str, Any] = {"max_block_ms": 5000, "delivery_timeout_ms": 5000, "request_timeout_ms": 2000}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredOncelog]:
    made = SecuredOncelog(tmp_path_factory.mktemp("secured"))
    yield made
    made.stop()


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def ours(options: dict[str, str]) -> dict[str, str]:
    """Return the options of our client for those of librdkafka."""
    return {key.replace(".", "_"): value for key, value in options.items() if key != "bootstrap.servers"}


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_clients_write_and_read(secured: SecuredOncelog, listener: str, mechanism: str, name: str) -> None:
    options = secured.options(listener, mechanism)
    if listener == "MUTUAL":
        options |= secured.certificates.client()
    with Producer(options["bootstrap.servers"], **ours(options)) as producer:
        producer.send(name, bytes(200_000)).result()
        producer.send(name, b"ours").result()
    foreign = confluent_kafka.Producer(options)
    foreign.produce(name, b"theirs")
    assert foreign.flush(30) == 0
    consumer = Consumer(options["bootstrap.servers"], auto_offset_reset="earliest", **ours(options))
    with consumer:
        consumer.assign([(name, 0)])
        found = []
        while len(found) < 3:
            found += [record.value for record in consumer.poll(30)]
    assert found == [bytes(200_000), b"ours", b"theirs"]


def test_producer_of_a_query_logs_in_as_its_consumer(secured: SecuredOncelog, name: str) -> None:
    """Whether the settings are keywords or a mapping, and also if it has options of its own."""
    mapping = secured.options("LOGIN", "PLAIN")
    brokers = mapping["bootstrap.servers"]
    with Producer(brokers, **ours(mapping)) as producer:
        producer.send(name, b'{"a": 1}').result()
    text = f'select a from "{name}"'
    with oncelog.sql(text, brokers, fetch_max_bytes=1 << 20, **ours(mapping)) as query:
        assert query.into(name, {"client.id": "etl"}, linger_ms=5) == 1
        assert query.into(name, once=name) == 1
    with oncelog.sql(text, None, {**mapping, "fetch.max.bytes": 1 << 20}) as query:
        assert query.into(name) == 3


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
def test_wrong_credentials_are_rejected(secured: SecuredOncelog, mechanism: str, user: str, password: str) -> None:
    options = {**secured.options("LOGIN", mechanism), "sasl.username": user, "sasl.password": password}
    with (
        Producer(options["bootstrap.servers"], **ours(options), **QUICK) as producer,
        pytest.raises(errors.KafkaError) as caught,
    ):
        producer.send("t", b"x").result()
    assert "rejected the login" in str(caught.value)
    assert password not in secured.broker.log()


def test_no_process_shows_a_password(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    line = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    texts = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": line,
    }
    settings.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    command = [Path(sys.executable).with_name("oncelog"), "up", "--config", settings, "--data", tmp_path / "data"]
    process = ManagedProcess([*command, "--port", "0"], tmp_path, "up")
    try:
        process.wait_for(lambda: list(process.lines()), "it prints its address")
        titles = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (process.pid, *children(process.pid))]
        assert len(titles) == 2
        assert not [title for title in titles if PASSWORD.encode() in title]
    finally:
        assert process.stop() == 0
    assert PASSWORD not in process.stderr_path.read_text()


def test_client_without_a_certificate_is_rejected(secured: SecuredOncelog) -> None:
    options = secured.options("MUTUAL")
    with (
        Producer(options["bootstrap.servers"], **ours(options), **QUICK) as producer,
        pytest.raises(errors.KafkaError),
    ):
        producer.send("t", b"x").result()


def test_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    secured = SecuredOncelog(tmp_path / "own")
    try:

        def serial() -> int:
            context = ssl.create_default_context(cafile=str(secured.certificates.ca))
            host, _, port = secured.addresses["TLS"].partition(":")
            with (
                socket.create_connection((host, int(port))) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as made,
            ):
                certificate = made.getpeercert()
            assert certificate is not None
            return int(str(certificate["serialNumber"]), 16)

        first = serial()
        assert serial() == first
        secured.certificates.write_broker("127.0.0.1", "localhost")
        second = serial()
        assert second != first
        secured.certificates.broker.write_text("damaged")
        assert serial() == second
        assert "cannot load the changed TLS files" in secured.broker.log()
    finally:
        secured.stop()


@pytest.mark.parametrize(
    "request_",
    [MetadataRequest(topics=[]), SaslAuthenticateRequest(auth_bytes=b"\0alice\0hunter2-alice")],
    ids=lambda each: type(each).__name__,
)
def test_nothing_is_served_before_the_login(secured: SecuredOncelog, request_: Any) -> None:
    with Wire(secured.addresses["OPEN"]) as wire:
        if isinstance(request_, SaslAuthenticateRequest):
            answer = wire.call(request_)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        else:
            with pytest.raises(ConnectionError):
                wire.call(request_)


def test_login_over_the_wire(secured: SecuredOncelog) -> None:
    with Wire(secured.addresses["OPEN"]) as wire:
        assert ApiKey.SASL_HANDSHAKE in wire.versions
        refused = wire.call(SaslHandshakeRequest(mechanism="PLAIN"))
        assert refused.error_code == 0
        assert refused.mechanisms == list(MECHANISMS)
        done = wire.call(SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{PASSWORD}".encode()))
        assert done.error_code == 0
        assert wire.call(MetadataRequest(topics=[])).brokers
        again = wire.call(SaslHandshakeRequest(mechanism="PLAIN"))
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_unknown_mechanism_is_answered_with_the_known_ones(secured: SecuredOncelog) -> None:
    with Wire(secured.addresses["OPEN"]) as wire:
        answer = wire.call(SaslHandshakeRequest(mechanism="GSSAPI"))
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == list(MECHANISMS)


def test_large_request_before_the_login_closes_the_connection(secured: SecuredOncelog) -> None:
    with Wire(secured.addresses["OPEN"]) as wire, pytest.raises(ConnectionError):
        wire.call(SaslAuthenticateRequest(auth_bytes=bytes(600_000)))


def test_session_expires_unless_the_client_logs_in_again(tmp_path: Path, name: str) -> None:
    secured = SecuredOncelog(tmp_path, {"connections.max.reauth.ms": "1300"})
    try:
        options = secured.options("OPEN", "SCRAM-SHA-256")
        with Producer(options["bootstrap.servers"], **ours(options)) as producer:
            for _ in range(60):
                producer.send(name, b"x").result()
                time.sleep(0.05)
        with Wire(secured.addresses["OPEN"]) as wire:
            wire.call(SaslHandshakeRequest(mechanism="PLAIN"))
            done = wire.call(SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{PASSWORD}".encode()))
            assert done.session_lifetime_ms == 1300
            wire.call(SaslHandshakeRequest(mechanism="PLAIN"))
            other = wire.call(SaslAuthenticateRequest(auth_bytes=b"\0bob\0hunter2"))
            assert other.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with Wire(secured.addresses["OPEN"]) as wire:
            wire.call(SaslHandshakeRequest(mechanism="PLAIN"))
            wire.call(SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{PASSWORD}".encode()))
            time.sleep(1.4)
            with pytest.raises(ConnectionError):
                wire.call(MetadataRequest(topics=[]))
    finally:
        secured.stop()


def test_scram_user_is_changed_and_deleted(secured: SecuredOncelog, name: str) -> None:
    plain = secured.addresses["PLAINTEXT"]
    user = f"scram/{name} ="
    add_scram_user(plain, user, "first")
    add_scram_user(plain, user, "second")
    options = {**secured.options("OPEN", "SCRAM-SHA-512"), "sasl.username": user}
    with Producer(options["bootstrap.servers"], **ours({**options, "sasl.password": "second"})) as producer:
        producer.send(name, b"x").result()
    wrong = ours({**options, "sasl.password": "first"})
    with Producer(options["bootstrap.servers"], **wrong, **QUICK) as producer, pytest.raises(errors.KafkaError):
        producer.send(name, b"x").result()
    admin = AdminClient({"bootstrap.servers": plain})
    described = admin.describe_user_scram_credentials([user])[user].result(30)
    assert {info.mechanism for info in described.scram_credential_infos} == {
        ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512,
    }  # fmt: skip
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        gone = UserScramCredentialDeletion(user, mechanism)
        for future in admin.alter_user_scram_credentials([gone]).values():
            future.result(30)
    with pytest.raises(confluent_kafka.KafkaException, match="does not exist"):
        admin.describe_user_scram_credentials([user])[user].result(30)
    (future,) = admin.alter_user_scram_credentials([gone]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="does not exist"):
        future.result(30)


def test_salt_of_an_unknown_user_survives_a_restart(tmp_path: Path) -> None:
    """Apache Kafka rejects an unknown user in the first step, and so shows that there is none."""
    secured = SecuredOncelog(tmp_path)
    try:
        context = ssl.create_default_context(cafile=str(secured.certificates.ca))

        def salts() -> dict[str, set[bytes]]:
            return {
                user: {
                    salt(secured.addresses["OPEN"], user, "SCRAM-SHA-256"),
                    salt(secured.addresses["LOGIN"], user, "SCRAM-SHA-256", context),
                }
                for user in (USER, "nobody", "nobody-else")
            }

        before = salts()
        assert all(len(each) == 1 for each in before.values())
        assert len(set.union(*before.values())) == len(before)
        secured.broker.restart()
        assert salts() == before
    finally:
        secured.stop()
