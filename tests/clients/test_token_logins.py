"""Clients and brokers get a new token of an identity provider before theirs expires (OAUTHBEARER).

`conformance/test_login_table.py` has the other clients, and wrong tokens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from oncelog import Admin, Producer
from support.identity_provider import IdentityProvider, claims, key, signed
from support.servers import OncelogCluster
from support.token_servers import SERVERS, TokenServer, token_settings, values

RSA = key("RSA", "rsa")
NAMES = os.environ.get("ONCELOG_TEST_SERVERS", "oncelog").split(",")
LIFE_S = 6
"""The life of the tokens of a client that must log in again."""
LIBRDKAFKA_LIFE_S = 15
"""librdkafka asks for a new token a second after 80 % of its life at the latest, and logs in after 90 % of a session.
With a shorter life, it may log in with the old token, and twice within a second, which neither server admits."""


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


def new_token(*_: str, life_s: int = LIFE_S) -> tuple[str, int]:
    """Return a token that expires soon, and when it does."""
    expires = int(time.time()) + life_s
    return signed(RSA, claims(exp=expires)), expires


def librdkafka(server: TokenServer) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.login_address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": partial(new_token, life_s=LIBRDKAFKA_LIFE_S),
    }


def test_librdkafka_logs_in_again_before_its_token_expires(guarded_by_tokens: TokenServer, name: str) -> None:
    failures: list[str] = []
    options = {**librdkafka(guarded_by_tokens), "error_cb": lambda error: failures.append(str(error))}
    producer = confluent_kafka.Producer(options)
    ends = time.monotonic() + 2.5 * LIBRDKAFKA_LIFE_S
    sent = 0
    while time.monotonic() < ends:
        producer.produce(name, str(sent).encode())
        sent += 1
        assert producer.flush(60) == 0
        time.sleep(0.1)
    assert values(guarded_by_tokens, name, sent) == [str(number).encode() for number in range(sent)]
    assert not failures


def ours(provider: IdentityProvider) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": provider.token_url,
        "sasl_oauthbearer_client_credentials_client_id": provider.client_id,
        "sasl_oauthbearer_client_credentials_client_secret": provider.client_secret,
    }


def test_our_client_logs_in_again_before_its_token_expires(guarded_by_tokens: TokenServer, name: str) -> None:
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": new_token,
    }
    ends = time.monotonic() + 2.5 * LIFE_S
    sent = 0
    with Producer(guarded_by_tokens.login_address, **options) as producer:
        while time.monotonic() < ends:
            producer.send(name, str(sent).encode()).result()
            sent += 1
            time.sleep(0.1)
    assert values(guarded_by_tokens, name, sent) == [str(number).encode() for number in range(sent)]


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
