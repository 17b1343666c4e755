"""Brokers with OAUTHBEARER, ours and Apache Kafka, with the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from oncelog import Consumer
from oncelog.net.sasl import OAuthBearer
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from oncelog.testing.broker import Broker
from support.apache_kafka import SHORT_LIVED, ApacheKafka, held_ports, port_of
from support.identity_provider import AUDIENCE, ISSUER
from support.wire import Wire

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{_OAUTH}.OAuthBearerLoginModule required"
LOGIN_HANDLER = f"{_OAUTH}.OAuthBearerLoginCallbackHandler"
KEYS_URL = "sasl.oauthbearer.jwks.endpoint.url"


def validator_settings(keys_url: str, *listeners: str) -> dict[str, str]:
    """Return the settings with which these listeners of both brokers check tokens."""
    each: dict[str, str] = {}
    for listener in listeners:
        mechanism = f"listener.name.{listener.lower()}.oauthbearer"
        each[f"{mechanism}.sasl.server.callback.handler.class"] = f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
        each[f"{mechanism}.sasl.jaas.config"] = f"{MODULE};"
    return {
        **each,
        KEYS_URL: keys_url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": f"{AUDIENCE},other",
    }


def token_settings(keys_url: str) -> dict[str, str]:
    """Return the settings that both brokers need, without their listeners."""
    return {"sasl.enabled.mechanisms": "OAUTHBEARER", **validator_settings(keys_url, "sasl_plaintext")}


def allowed_urls(*urls: str) -> str:
    """Return the option of a JVM that may use these addresses. Kafka's Java code uses no others."""
    return f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={','.join(urls)}"


class TokenServer(Protocol):
    """A broker whose listener at `login_address` has OAUTHBEARER, and one at `bootstrap` without logins."""

    login_address: str
    bootstrap: str

    def stop(self) -> object:
        """Stop the broker."""


class OncelogWithTokens:
    """Our broker."""

    def __init__(self, _: Path, keys_url: str, settings: Mapping[str, str] | None = None) -> None:
        held = held_ports(2)
        self.bootstrap, self.login_address = (f"127.0.0.1:{port_of(each)}" for each in held)
        for each in held:
            each.close()
        listeners = f"PLAINTEXT://{self.bootstrap},SASL_PLAINTEXT://{self.login_address}"
        self.broker = Broker({"listeners": listeners, **token_settings(keys_url), **(settings or {})})
        self.broker.start()

    def stop(self) -> None:
        self.broker.stop()


class KafkaWithTokens(ApacheKafka):
    """Apache Kafka."""

    def __init__(self, directory: Path, keys_url: str, settings: Mapping[str, str] | None = None) -> None:
        made = {**token_settings(keys_url), **(settings or {})}
        super().__init__(directory, settings=made, options=(*SHORT_LIVED, allowed_urls(keys_url)))

    def listeners(self, port: int, controller: int) -> dict[str, str]:
        self._held += held_ports(1)
        self.login_address = f"127.0.0.1:{port_of(self._held[-1])}"
        return {
            "listeners": f"PLAINTEXT://{self.bootstrap},SASL_PLAINTEXT://{self.login_address},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
        }


SERVERS = {"oncelog": OncelogWithTokens, "apache-kafka": KafkaWithTokens}


def values(server: TokenServer, topic: str, count: int) -> list[bytes]:
    """Return the values of a topic, read through the listener without logins."""
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found: list[bytes] = []
        while len(found) < count:
            found += [record.value for record in consumer.poll(30)]
    return found


def begin(wire: Wire) -> None:
    """Choose the mechanism."""
    answer = wire.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"))
    assert answer.error_code == 0, answer


def send(wire: Wire, message: bytes) -> SaslAuthenticateResponse:
    """Send a message of the mechanism."""
    answer = wire.call(SaslAuthenticateRequest(auth_bytes=message))
    assert isinstance(answer, SaslAuthenticateResponse)
    return answer


def log_in(wire: Wire, token: str) -> SaslAuthenticateResponse:
    """Log in with a token. If it is rejected, return the answer after the byte 1."""
    begin(wire)
    answer = send(wire, OAuthBearer(token).first())
    if answer.error_code == 0 and answer.auth_bytes:
        assert bytes(answer.auth_bytes) == b'{"status":"invalid_token"}'
        answer = send(wire, b"\x01")
    return answer
