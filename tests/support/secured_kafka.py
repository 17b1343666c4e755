"""Apache Kafka with TLS and logins: one listener for each way to connect."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from support.apache_kafka import ApacheKafka, held_ports, port_of
from support.certificates import authority, signed_by

USER, PASSWORD = "alice", "alice-secret"
_PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OAUTH = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="broker";'
)
_JAAS = {"plain": _PLAIN, "scram-sha-256": _SCRAM, "scram-sha-512": _SCRAM, "oauthbearer": _OAUTH}


class SecuredKafka(ApacheKafka):
    """The broker. `login` (SASL_SSL) accepts all mechanisms, `mutual` (SSL) requires a client certificate.

    `bootstrap` is a PLAINTEXT listener, for the broker itself and the administrator.
    """

    name = "secured-kafka"

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = authority()
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self.authority.certificate_pem)
        broker = signed_by(self.authority, "broker", "127.0.0.1", "localhost")
        self._store = directory / "broker.pem"
        self._store.write_bytes(broker.key_pem() + broker.certificate_pem)
        super().__init__(directory, settings=settings)
        self._add_scram_users()

    def listeners(self, port: int, controller: int) -> dict[str, str]:
        self._held += held_ports(2)
        self.login, self.mutual = (f"127.0.0.1:{port_of(each)}" for each in self._held[-2:])
        return {
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{port},LOGIN://{self.login},MUTUAL://{self.mutual},"
                f"CONTROLLER://127.0.0.1:{controller}"
            ),
            "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT"),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            **{f"listener.name.login.{name}.sasl.jaas.config": line for name, line in _JAAS.items()},
        }

    def _add_scram_users(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for future in admin.alter_user_scram_credentials([wanted]).values():
                future.result(30)


def unsecured_token(subject: str = USER, life_s: float = 3600) -> str:
    """Return a JWT without a signature, which Kafka's default validator accepts."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + life_s})
    encoded = (urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join((*encoded, ""))
