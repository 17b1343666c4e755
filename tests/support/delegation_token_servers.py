"""Servers with delegation tokens, TLS, logins and an authorizer, on which `alice` and `CN=client` may do everything."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from oncelog.protocol.kinds import AclOperation, AclResource
from support.certificates import Pair, signed_by
from support.permissions import STANDARD_AUTHORIZER, Grant, grant
from support.secured_kafka import GUEST, GUEST_PASSWORD, PASSWORD, USER, SecuredKafka
from support.secured_oncelog import SecuredOncelog, add_scram_user
from support.wire import Wire

KEY = "hunter2-key-of-all-brokers"
CHECK_MS = 500
SETTINGS = {
    "delegation.token.secret.key": KEY,
    "delegation.token.max.lifetime.ms": "600000",
    "delegation.token.expiry.time.ms": "60000",
    "delegation.token.expiry.check.interval.ms": str(CHECK_MS),
}
_LINE = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_{USER}="{PASSWORD}" user_{GUEST}="{GUEST_PASSWORD}";'
)


class TokenServer(Protocol):
    """One broker. The listeners are PLAINTEXT, LOGIN (SASL_SSL), TLS and MUTUAL (client certificates)."""

    name: str
    authority: Pair
    ca: Path

    def address_of(self, listener: str) -> str:
        """Return the address of a listener."""

    def stop(self) -> int | None:
        """Stop the broker."""


class OncelogWithTokens(SecuredOncelog):
    """Our broker."""

    name = "oncelog"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            {
                **SETTINGS,
                "plain.sasl.jaas.config": _LINE,
                "authorizer.class.name": STANDARD_AUTHORIZER,
                "super.users": f"User:ANONYMOUS;User:{USER};User:CN=client",
            },
        )
        add_scram_user(self.addresses["PLAINTEXT"], GUEST, GUEST_PASSWORD)
        self.authority, self.ca = self.certificates.authority, self.certificates.ca

    def address_of(self, listener: str) -> str:
        return self.addresses[listener]


class KafkaWithTokens(SecuredKafka):
    """Apache Kafka."""

    name = "apache-kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, settings=SETTINGS)

    def address_of(self, listener: str) -> str:
        return self.bootstrap if listener == "PLAINTEXT" else self.addresses[listener]


TOKEN_SERVERS: dict[str, Callable[[Path], TokenServer]] = {
    "oncelog": OncelogWithTokens,
    "apache-kafka": KafkaWithTokens,
}


def context(server: TokenServer, folder: Path, client: str = "") -> ssl.SSLContext:
    """Return the TLS settings of a client, with a certificate for the name `client`."""
    made = ssl.create_default_context(cafile=str(server.ca))
    if client:
        made.load_cert_chain(*signed_by(server.authority, client).write(folder, client))
    return made


def connect(server: TokenServer, folder: Path, user: str) -> Wire:
    """Log in with a password."""
    passwords = {USER: PASSWORD, GUEST: GUEST_PASSWORD}
    return Wire(server.address_of("LOGIN"), login=(user, passwords[user]), tls=context(server, folder))


def options(server: TokenServer, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
    """Return the options of a client that logs in, with dotted names."""
    return {
        "bootstrap.servers": server.address_of("LOGIN"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(server.ca),
        "ssl.truststore.type": "PEM",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": (
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{password}";'
        ),
    }


def allow_describe(server: TokenServer, principal: str, topic: str) -> None:
    """Let a principal describe a topic."""
    with Wire(server.address_of("PLAINTEXT")) as administrator:
        grant(administrator, [Grant(AclOperation.DESCRIBE, AclResource.TOPIC, topic, principal=principal, host="*")])
