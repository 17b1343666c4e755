"""The ways to log in to a secured server, with the options of each client library."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka.abc
from kafka.net.sasl.oauth import AbstractTokenProvider

from support.identity_provider import IdentityProvider
from support.token_servers import LOGIN_HANDLER, MODULE

VALUES = [b"one", b"two", b"three"]
"""What each program writes and reads."""

WAYS: dict[str, tuple[str, str]] = {
    "certificate": ("MUTUAL", ""),
    "PLAIN": ("OPEN", "PLAIN"),
    "PLAIN with TLS": ("LOGIN", "PLAIN"),
    "SCRAM-SHA-256": ("OPEN", "SCRAM-SHA-256"),
    "SCRAM-SHA-256 with TLS": ("LOGIN", "SCRAM-SHA-256"),
    "SCRAM-SHA-512": ("OPEN", "SCRAM-SHA-512"),
    "SCRAM-SHA-512 with TLS": ("LOGIN", "SCRAM-SHA-512"),
    "OAUTHBEARER": ("OPEN", "OAUTHBEARER"),
    "OAUTHBEARER with TLS": ("LOGIN", "OAUTHBEARER"),
}
"""Listener and mechanism by the name of the way."""
PROTOCOLS = {"MUTUAL": "SSL", "OPEN": "SASL_PLAINTEXT", "LOGIN": "SASL_SSL"}
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class _KafkaPythonTokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, provider: IdentityProvider) -> None:
        self._provider = provider

    def token(self) -> str:
        return self._provider.token()


class _AiokafkaTokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, provider: IdentityProvider) -> None:
        self._provider = provider

    async def token(self) -> str:
        return self._provider.token()


class Files(NamedTuple):
    """The authority, and the client's certificate and key: each by itself, and both in one file."""

    ca: Path
    certificate: Path
    key: Path
    both: Path


class Way(NamedTuple):
    """Where and how one client logs in. `mechanism` is empty if the client has only its certificate.

    `topic` belongs to this client and way. The broker knows the keys of `provider`, unless the login is a wrong one.
    """

    topic: str
    address: str
    protocol: str
    mechanism: str
    files: Files
    user: str
    password: str
    provider: IdentityProvider

    def dotted(self) -> dict[str, str]:
        """Return the options of our client, by the names of librdkafka and, for tokens, of Java."""
        found = {"bootstrap.servers": self.address, "security.protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            found["ssl.ca.location"] = str(self.files.ca)
        if not self.mechanism:
            own = {"ssl.certificate.location": str(self.files.certificate), "ssl.key.location": str(self.files.key)}
            return found | own
        found["sasl.mechanism"] = self.mechanism
        if self.mechanism == "OAUTHBEARER":
            return found | self._endpoint()
        return found | {"sasl.username": self.user, "sasl.password": self.password}

    def _endpoint(self) -> dict[str, str]:
        return {
            "sasl.oauthbearer.token.endpoint.url": self.provider.token_url,
            "sasl.oauthbearer.client.credentials.client.id": self.provider.client_id,
            "sasl.oauthbearer.client.credentials.client.secret": self.provider.client_secret,
        }

    def librdkafka(self) -> dict[str, Any]:
        """Return the options of librdkafka."""
        if self.mechanism != "OAUTHBEARER":
            return {**self.dotted()}
        others = {name: value for name, value in self.dotted().items() if name not in self._endpoint()}
        return {**others, "oauth_cb": lambda _: (self.provider.token(), time.time() + self.provider.life_s)}

    def java(self) -> dict[str, str]:
        """Return the options of Kafka's Java clients."""
        found = {"bootstrap.servers": self.address, "security.protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.files.ca)}
        if not self.mechanism:
            return found | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.files.both)}
        found["sasl.mechanism"] = self.mechanism
        if self.mechanism == "OAUTHBEARER":
            login = {"sasl.login.callback.handler.class": LOGIN_HANDLER, "sasl.jaas.config": f"{MODULE};"}
            return found | login | self._endpoint()
        line = f'{_MODULES[self.mechanism]} required username="{self.user}" password="{self.password}";'
        return found | {"sasl.jaas.config": line}

    def json(self) -> dict[str, str]:
        """Return everything that a program in another language needs, for its own options."""
        return {
            **{name: getattr(self, name) for name in ("topic", "address", "protocol", "mechanism", "user", "password")},
            **{name: str(getattr(self.files, name)) for name in ("ca", "certificate", "key")},
            "token": self.provider.token(),
        }

    def kafka_python(self) -> dict[str, Any]:
        """Return the options of kafka-python."""
        found: dict[str, Any] = {
            "bootstrap_servers": self.address.split(","),
            "security_protocol": self.protocol,
            "ssl_cafile": str(self.files.ca),
        }
        if not self.mechanism:
            return found | {"ssl_certfile": str(self.files.certificate), "ssl_keyfile": str(self.files.key)}
        return found | self._login(_KafkaPythonTokens)

    def aiokafka(self) -> dict[str, Any]:
        """Return the options of aiokafka."""
        found: dict[str, Any] = {"bootstrap_servers": self.address, "security_protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            context = ssl.create_default_context(cafile=str(self.files.ca))
            if not self.mechanism:
                context.load_cert_chain(self.files.certificate, self.files.key)
            found["ssl_context"] = context
        return found | self._login(_AiokafkaTokens) if self.mechanism else found

    def _login(self, tokens: Callable[[IdentityProvider], object]) -> dict[str, Any]:
        """Return what kafka-python and aiokafka name alike."""
        if self.mechanism == "OAUTHBEARER":
            return {"sasl_mechanism": self.mechanism, "sasl_oauth_token_provider": tokens(self.provider)}
        login = {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
        return {"sasl_mechanism": self.mechanism, **login}
