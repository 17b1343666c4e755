"""Three of our brokers with TLS, logins and an authorizer, also between each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.permissions import STANDARD_AUTHORIZER
from support.secured_oncelog import certificates
from support.servers import ReplicatedCluster

ADMINISTRATOR, WRITER, STRANGER = "admin", "alice", "mallory"
_PASSWORDS = {
    "broker": "hunter2-broker",
    ADMINISTRATOR: "hunter2-admin",
    WRITER: "hunter2-alice",
    STRANGER: "hunter2-mallory",
}


def our_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of our clients for those of librdkafka."""
    return {name.replace(".", "_"): value for name, value in options.items()}


class SecuredCluster(ReplicatedCluster):
    """The brokers. All listeners are SASL_SSL with PLAIN; brokers log in as `broker`.

    Super users are `broker` and the administrator. The others may do only what ACLs allow.
    """

    name = "secured-oncelog-3"

    def __init__(self, directory: Path, *, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.certificates = certificates(directory / "certificates")
        users = " ".join(f'user_{name}="{password}"' for name, password in _PASSWORDS.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        given = {
            "ssl.keystore.location": str(self.certificates.broker),
            "ssl.keystore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.ca),
            "ssl.truststore.type": "PEM",
            "listener.security.protocol.map": "SECURED:SASL_SSL",
            "listeners": "SECURED://127.0.0.1:0",
            "inter.broker.listener.name": "SECURED",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": (
                f'{module} required username="broker" password="{_PASSWORDS["broker"]}" {users};'
            ),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:broker;User:{ADMINISTRATOR}",
            **(settings or {}),
        }
        file = directory / "server.properties"
        file.touch(0o600)
        file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        super().__init__(directory, brokers=brokers, arguments=("--config", str(file)))

    def options(self, user: str = ADMINISTRATOR) -> dict[str, str]:
        """Return the options of a client, by the names of librdkafka, without its addresses."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificates.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": _PASSWORDS[user],
        }

    def login(self, user: str) -> tuple[str, str]:
        """Return the name and the password of a user."""
        return user, _PASSWORDS[user]
