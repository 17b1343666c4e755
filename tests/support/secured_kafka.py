"""Apache Kafka with TLS, logins and an authorizer: one listener for each way to connect."""

from __future__ import annotations

import datetime
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from support.apache_kafka import SHORT_LIVED, held_ports, port_of
from support.certificates import authority, signed_by
from support.guarded_kafka import GuardedKafka
from support.token_servers import KEYS_URL, allowed_urls

USER, PASSWORD = "alice", "hunter2-alice"
"""No secret has the words `secret`, `password` and `token`: Spark hides values with these words."""
GUEST, GUEST_PASSWORD = "bob", "hunter2-bob"
_PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_{USER}="{PASSWORD}" user_{GUEST}="{GUEST_PASSWORD}";'
)
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OAUTH = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="broker";'
)
_JAAS = {"plain": _PLAIN, "scram-sha-256": _SCRAM, "scram-sha-512": _SCRAM, "oauthbearer": _OAUTH}
_OLD = -datetime.timedelta(hours=1)
_PROTOCOLS = {
    "LOGIN": "SASL_SSL",
    "OPEN": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "PROXIED": "PLAINTEXT",
}


class SecuredKafka(GuardedKafka):
    """The broker. The user `alice` may do everything, `bob` only what `grant` allows.

    `bootstrap` is a PLAINTEXT listener, for the broker itself and the administrator. `addresses` has the others:
    LOGIN and OPEN accept all mechanisms, MUTUAL requires a client certificate. The certificates of EXPIRED and
    ELSEWHERE are wrong. PROXIED is PLAINTEXT, and clients reach it through a proxy at `proxied`.
    """

    name = "secured-kafka"
    principal = f"User:{GUEST}"

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = authority()
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self.authority.certificate_pem)
        here = ("127.0.0.1", "localhost")
        stores = {
            "broker": signed_by(self.authority, "broker", *here),
            "expired": signed_by(self.authority, "broker", *here, begins=2 * _OLD, ends=_OLD),
            "elsewhere": signed_by(self.authority, "elsewhere"),
        }
        self._stores = {name: directory / f"{name}.pem" for name in stores}
        for name, pair in stores.items():
            self._stores[name].write_bytes(pair.key_pem() + pair.certificate_pem)
        keys_url = (settings or {}).get(KEYS_URL)
        options = (*SHORT_LIVED, allowed_urls(keys_url)) if keys_url else SHORT_LIVED
        super().__init__(directory, settings=settings, options=options)
        self.add_scram_user(USER, PASSWORD)
        self.add_scram_user(GUEST, GUEST_PASSWORD)

    def listeners(self, port: int, controller: int) -> dict[str, str]:
        self._held += held_ports(len(_PROTOCOLS) + 1)
        *own, proxy = map(port_of, self._held[-len(_PROTOCOLS) - 1 :])
        self.addresses = {name: f"127.0.0.1:{each}" for name, each in zip(_PROTOCOLS, own, strict=True)}
        self.proxied = f"localhost:{proxy}"
        bound = {"PLAINTEXT": f"127.0.0.1:{port}", **self.addresses}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **_PROTOCOLS}
        return {
            "listeners": _listed({**bound, "CONTROLLER": f"127.0.0.1:{controller}"}),
            "advertised.listeners": _listed({**bound, "PROXIED": self.proxied}),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "num.network.threads": "1",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._stores["broker"]),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "listener.name.mutual.ssl.client.auth": "required",
            **{
                f"listener.name.{name}.ssl.keystore.{key}": value
                for name in ("expired", "elsewhere")
                for key, value in (("type", "PEM"), ("location", str(self._stores[name])))
            },
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            **{
                f"listener.name.{listener}.{name}.sasl.jaas.config": line
                for listener in ("login", "open")
                for name, line in _JAAS.items()
            },
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER};User:CN=client",
        }

    @cached_property
    def admin(self) -> AdminClient:
        """Return an admin client of the super user."""
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def add_scram_user(self, user: str, password: str) -> None:
        """Create a user for both SCRAM mechanisms, or change the password."""
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            for future in self.admin.alter_user_scram_credentials([wanted]).values():
                future.result(30)


def _listed(addresses: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())


def unsecured_token(subject: str = USER, life_s: float = 3600) -> str:
    """Return a JWT without a signature, which Kafka's default validator accepts."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + life_s})
    encoded = (urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join((*encoded, ""))


class TokenServer:
    """An identity provider that issues unsecured tokens. `tokens` has all of them. Use it in a `with` block."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        issued = self.tokens

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                issued.append(unsecured_token())
                content = json.dumps({"access_token": issued[-1], "expires_in": 3600}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"

    def __enter__(self) -> TokenServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Credentials:
    """The options for each way to log in, with Kafka's names, and all secrets in them."""

    KEY_PASSWORD, CLIENT_SECRET = "hunter2-key", "hunter2-client"

    def __init__(self, kafka: SecuredKafka, tokens: TokenServer, folder: Path) -> None:
        self._kafka = kafka
        self._tokens = tokens
        self._certificate, self._key = signed_by(kafka.authority, "client").write(folder, "client", self.KEY_PASSWORD)

    def options(self, way: str, password: str = PASSWORD) -> dict[str, str]:
        """Return the options with the addresses, for a mechanism, `TLS` or `MUTUAL`."""
        tls = {
            "bootstrap.servers": self._kafka.addresses[way if way in _PROTOCOLS else "LOGIN"],
            "security.protocol": "SSL" if way in _PROTOCOLS else "SASL_SSL",
            "ssl.truststore.location": str(self._kafka.ca),
            "ssl.truststore.type": "PEM",
        }
        if way == "MUTUAL":
            key = {"ssl.key.location": str(self._key), "ssl.certificate.location": str(self._certificate)}
            return {**tls, **key, "ssl.key.password": self.KEY_PASSWORD}
        if way in _PROTOCOLS:
            return tls
        login = {**tls, "sasl.mechanism": way}
        if way == "OAUTHBEARER":
            return {
                **login,
                "sasl.oauthbearer.token.endpoint.url": self._tokens.url,
                "sasl.oauthbearer.client.credentials.client.id": "client",
                "sasl.oauthbearer.client.credentials.client.secret": self.CLIENT_SECRET,
            }
        if way == "SCRAM-SHA-512":  # as Java's clients have it
            module = "org.apache.kafka.common.security.scram.ScramLoginModule"
            return {**login, "sasl.jaas.config": f'{module} required username="{USER}" password="{password}";'}
        return {**login, "sasl.username": USER, "sasl.password": password}

    def secrets(self) -> list[str]:
        """Return every text that no log may have."""
        return [PASSWORD, GUEST_PASSWORD, self.KEY_PASSWORD, self.CLIENT_SECRET, *self._tokens.tokens]


WAYS = ("TLS", "MUTUAL", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""All ways to log in that `Credentials` knows."""
