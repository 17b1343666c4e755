"""The client's logins and TLS against Apache Kafka, with each mechanism."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin, Consumer, Producer, errors
from support.certificates import authority, signed_by
from support.secured_kafka import PASSWORD, USER, SecuredKafka, unsecured_token

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SOON_S = 10.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    made = SecuredKafka(tmp_path_factory.mktemp("secured"), settings={"connections.max.reauth.ms": "1500"})
    yield made
    made.stop()


def login(kafka: SecuredKafka, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(kafka.ca),
        "ssl.truststore.type": "PEM",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        token = unsecured_token() if password == PASSWORD else unsecured_token(life_s=-3600)
        return {**options, "sasl_oauth_token_provider": lambda: token}
    return {**options, "sasl.username": USER, "sasl.password": password}


def write_and_read(servers: str, options: dict[str, Any], topic: str) -> None:
    """Write one record in a transaction, and read it as a member of a group."""
    with Producer(servers, options, transactional_id=f"{topic}-producer") as producer, producer.transaction():
        producer.send(topic, b"value")
    with Consumer(
        servers, options, group_id=f"{topic}-group", auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.subscribe([topic])
        records: list[Any] = []
        deadline = time.monotonic() + 30
        while not records and time.monotonic() < deadline:
            records = list(consumer.poll(1.0))
    assert [record.value for record in records] == [b"value"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_mechanism(secured: SecuredKafka, mechanism: str) -> None:
    write_and_read(secured.login, login(secured, mechanism), f"login-{mechanism.lower()}")


def test_mutual_tls(secured: SecuredKafka, tmp_path: Path) -> None:
    certificate, key = signed_by(secured.authority, "client").write(tmp_path, "client", "key-secret")
    options = {"security_protocol": "SSL", "ssl_ca_location": str(secured.ca)}
    own = {
        "ssl_certificate_location": str(certificate),
        "ssl_key_location": str(key),
        "ssl_key_password": "key-secret",
    }
    write_and_read(secured.mutual, {**options, **own}, "mutual")
    rejected(secured.mutual, options, "ssl.keystore.location")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_session_is_renewed_while_the_client_runs(secured: SecuredKafka, mechanism: str) -> None:
    """The broker closes a connection whose session has expired (`connections.max.reauth.ms`)."""
    topic, sent = f"renewed-{mechanism.lower()}", 0
    with Producer(secured.login, login(secured, mechanism)) as producer:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            producer.send(topic, b"%d" % sent).result(SOON_S)
            sent += 1
            time.sleep(0.05)
    with Admin(secured.login, login(secured, mechanism)) as admin:
        assert list(admin.end_offsets([(topic, 0)]).values()) == [sent]


def rejected(servers: str, options: dict[str, Any], words: str, secret: str = "\0") -> None:
    begun = time.monotonic()
    with Admin(servers, options) as admin, pytest.raises(errors.AuthenticationError) as caught:
        admin.describe_cluster()
    assert words in str(caught.value), str(caught.value)
    assert secret not in f"{caught.value!r}{caught.value.__cause__!r}"
    assert time.monotonic() - begun < SOON_S


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_fails_within_seconds(
    secured: SecuredKafka, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    rejected(secured.login, login(secured, mechanism, "wrong-one"), mechanism, "wrong-one")
    assert "wrong-one" not in caplog.text


def test_unknown_authority(secured: SecuredKafka, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(authority("other").certificate_pem)
    options = {**login(secured, "PLAIN"), "ssl.truststore.location": str(other)}
    rejected(secured.login, options, "unknown authority")


def test_login_at_a_listener_without_one(secured: SecuredKafka) -> None:
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    rejected(
        secured.bootstrap, {**options, "sasl.username": USER, "sasl.password": PASSWORD}, "security.protocol", PASSWORD
    )
