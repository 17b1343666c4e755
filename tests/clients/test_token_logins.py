"""Clients of every project log in with tokens of an identity provider (OAUTHBEARER)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import confluent_kafka
import kafka
import kafka.net.sasl.oauth
import pytest

from oncelog import Admin, Producer, errors
from support.identity_provider import IdentityProvider, claims, key, signed
from support.servers import OncelogCluster
from support.token_servers import SERVERS, TokenServer, token_settings, values

RSA, FOREIGN = key("RSA", "rsa"), key("RSA", "foreign")
NAMES = os.environ.get("ONCELOG_TEST_SERVERS", "oncelog").split(",")
LIFE_S = 6
"""The life of the tokens of a client that must log in again."""


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider(RSA) as made:
        yield made


@pytest.fixture(scope="module", params=NAMES)
def guarded_by_tokens(
    request: pytest.FixtureRequest, provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TokenServer]:
    server = SERVERS[request.param](tmp_path_factory.mktemp("tokens"), provider.keys_url)
    yield server
    server.stop()


def token(life_s: int = 3600, private: Any = RSA) -> str:
    return signed(private, claims(exp=int(time.time()) + life_s))


def librdkafka(server: TokenServer, life_s: int = 3600, private: Any = RSA) -> dict[str, Any]:
    def oauth_cb(_: str) -> tuple[str, float]:
        expiry = int(time.time()) + life_s
        return signed(private, claims(exp=expiry)), expiry

    return {
        "bootstrap.servers": server.login_address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": oauth_cb,
    }


class KafkaPythonTokens(kafka.net.sasl.oauth.AbstractTokenProvider):
    def token(self) -> str:
        return token()


class AiokafkaTokens(aiokafka.abc.AbstractTokenProvider):
    async def token(self) -> str:
        return token()


def test_librdkafka_logs_in(guarded_by_tokens: TokenServer, name: str) -> None:
    producer = confluent_kafka.Producer(librdkafka(guarded_by_tokens))
    producer.produce(name, b"x")
    assert producer.flush(60) == 0
    assert values(guarded_by_tokens, name, 1) == [b"x"]


def test_librdkafka_logs_in_again_before_its_token_expires(guarded_by_tokens: TokenServer, name: str) -> None:
    failures: list[str] = []
    options = {**librdkafka(guarded_by_tokens, LIFE_S), "error_cb": lambda error: failures.append(str(error))}
    producer = confluent_kafka.Producer(options)
    ends = time.monotonic() + 2.5 * LIFE_S
    sent = 0
    while time.monotonic() < ends:
        producer.produce(name, str(sent).encode())
        sent += 1
        assert producer.flush(60) == 0
        time.sleep(0.1)
    assert values(guarded_by_tokens, name, sent) == [str(number).encode() for number in range(sent)]
    assert not failures


def test_librdkafka_with_a_foreign_token_is_rejected(guarded_by_tokens: TokenServer, name: str) -> None:
    failures: list[str] = []
    options = {
        **librdkafka(guarded_by_tokens, private=FOREIGN),
        "error_cb": lambda error: failures.append(str(error)),
    }
    producer = confluent_kafka.Producer(options)
    producer.produce(name, b"x")
    deadline = time.monotonic() + 60
    while not failures and time.monotonic() < deadline:
        producer.poll(0.1)
    producer.purge()
    producer.flush(0)
    assert "invalid_token" in str(failures)


def test_kafka_python_logs_in(guarded_by_tokens: TokenServer, name: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=guarded_by_tokens.login_address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=KafkaPythonTokens(),
    )
    producer.send(name, b"x").get(60)
    producer.close()
    assert values(guarded_by_tokens, name, 1) == [b"x"]


def test_aiokafka_logs_in(guarded_by_tokens: TokenServer, name: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=guarded_by_tokens.login_address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=AiokafkaTokens(),
        )
        await producer.start()
        try:
            await producer.send_and_wait(name, b"x")
        finally:
            await producer.stop()

    asyncio.run(run())
    assert values(guarded_by_tokens, name, 1) == [b"x"]


def ours(provider: IdentityProvider) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": provider.token_url,
        "sasl_oauthbearer_client_credentials_client_id": provider.client_id,
        "sasl_oauthbearer_client_credentials_client_secret": provider.client_secret,
    }


def test_our_client_logs_in_with_the_token_of_an_endpoint(
    guarded_by_tokens: TokenServer, provider: IdentityProvider, name: str
) -> None:
    with Producer(guarded_by_tokens.login_address, **ours(provider)) as producer:
        producer.send(name, b"x").result()
    assert values(guarded_by_tokens, name, 1) == [b"x"]


def test_our_client_logs_in_again_before_its_token_expires(guarded_by_tokens: TokenServer, name: str) -> None:
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": lambda: (token(LIFE_S), time.time() + LIFE_S),
    }
    ends = time.monotonic() + 2.5 * LIFE_S
    sent = 0
    with Producer(guarded_by_tokens.login_address, **options) as producer:
        while time.monotonic() < ends:
            producer.send(name, str(sent).encode()).result()
            sent += 1
            time.sleep(0.1)
    assert values(guarded_by_tokens, name, sent) == [str(number).encode() for number in range(sent)]


def test_our_client_shows_why_a_foreign_token_is_rejected(guarded_by_tokens: TokenServer) -> None:
    options: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": lambda: token(private=FOREIGN),
        "max_block_ms": 5000,
        "delivery_timeout_ms": 5000,
        "request_timeout_ms": 2000,
    }
    with (
        Producer(guarded_by_tokens.login_address, **options) as producer,
        pytest.raises(errors.KafkaError, match="invalid_token"),
    ):
        producer.send("t", b"x").result()


def test_three_brokers_log_in_at_each_other_again_and_again(
    provider: IdentityProvider, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "life_s", LIFE_S)
    before = len(provider.issued)
    settings = {
        **token_settings(provider.keys_url),
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.credentials.client.id": provider.client_id,
        "sasl.oauthbearer.client.credentials.client.secret": provider.client_secret,
    }
    cluster = OncelogCluster(tmp_path, settings=settings, arguments=("--brokers", "3"))
    try:
        with Admin(cluster.bootstrap, **ours(provider)) as admin:
            admin.create_topics(name, 3, 3, {"min.insync.replicas": "3"})
        ends = time.monotonic() + 2.5 * LIFE_S
        with Producer(cluster.bootstrap, **ours(provider)) as producer:
            while time.monotonic() < ends:
                for partition in range(3):
                    producer.send(name, b"x", partition=partition).result()
                time.sleep(0.1)
    finally:
        cluster.stop()
    log = cluster.process.output()
    assert len(provider.issued) > before + 6
    assert provider.client_secret not in log
