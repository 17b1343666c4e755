"""Our broker with TLS and logins: one listener for each way to connect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from oncelog.testing.broker import Broker
from support.apache_kafka import held_ports, port_of
from support.certificates import Pair, authority, signed_by

USER, PASSWORD = "alice", "hunter2-alice"
PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "LOGIN": "SASL_SSL",
    "OPEN": "SASL_PLAINTEXT",
}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Certificates(NamedTuple):
    """An authority, and the files of broker and clients."""

    authority: Pair
    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def broker(self) -> Path:
        return self.folder / "broker.pem"

    def write_broker(self, *hosts: str) -> None:
        """Write a new certificate of the broker."""
        pair = signed_by(self.authority, "broker", *hosts)
        self.broker.write_bytes(pair.key_pem() + pair.certificate_pem)

    def client(self, name: str = "client") -> dict[str, str]:
        """Return the options of a client with a certificate of its own."""
        certificate, key = signed_by(self.authority, name).write(self.folder, name)
        return {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}


def certificates(folder: Path) -> Certificates:
    """Create an authority and the broker's certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(authority(), folder)
    made.ca.write_bytes(made.authority.certificate_pem)
    made.write_broker("127.0.0.1", "localhost")
    return made


def secured_settings(made: Certificates) -> dict[str, str]:
    """Return the settings of a broker for these certificates, without its listeners."""
    line = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    return {
        "ssl.keystore.location": str(made.broker),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": str(made.ca),
        "ssl.truststore.type": "PEM",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "plain.sasl.jaas.config": line,
    }


class SecuredOncelog:
    """One broker. `addresses` has the address of each listener by name."""

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.certificates = certificates(folder)
        self._held = held_ports(len(PROTOCOLS))
        ports = dict(zip(PROTOCOLS, map(port_of, self._held), strict=True))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        for each in self._held:
            each.close()
        listed = ",".join(f"{name}://{address}" for name, address in self.addresses.items())
        self.broker = Broker(
            {
                "listeners": listed,
                "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in PROTOCOLS.items()),
                "listener.name.mutual.ssl.client.auth": "required",
                **secured_settings(self.certificates),
                **(settings or {}),
            }
        )
        self.broker.start()
        add_scram_user(self.addresses["PLAINTEXT"], USER, PASSWORD)

    def options(self, listener: str, mechanism: str = "") -> dict[str, str]:
        """Return the options of a client by librdkafka's names."""
        protocol = PROTOCOLS[listener]
        return {
            "bootstrap.servers": self.addresses[listener],
            "security.protocol": protocol,
            **({"ssl.ca.location": str(self.certificates.ca)} if protocol.endswith("SSL") else {}),
            **(
                {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
                if protocol.startswith("SASL")
                else {}
            ),
        }

    def stop(self) -> None:
        self.broker.stop()


def add_scram_user(bootstrap: str, user: str, password: str) -> None:
    """Create a user for both SCRAM mechanisms, or change the password."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wanted = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
        for future in admin.alter_user_scram_credentials([wanted]).values():
            future.result(30)
