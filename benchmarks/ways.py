"""What `scripts/bench --capacity` compares: a listener's protocol, and whether an authorizer checks permissions.

Both servers have the same settings. The load connects to the listener LOAD, as a user that is no super user.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from oncelog.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from oncelog.protocol.kinds import AclOperation, AclResource, PatternType
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from oncelog.protocol.schema import Message
from support.apache_kafka import ApacheKafka, held_ports, port_of
from support.certificates import authority, signed_by
from support.permissions import STANDARD_AUTHORIZER, Grant, grant
from support.processes import accepts, wait_until
from support.servers import OncelogCluster, Server
from support.wire import Wire, frame_from

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TOPICS = "capacity-"
"""The prefix of the topics that the load may use."""
LOAD, PASSWORD = "load", "load-password"
ADMIN = ("admin", "admin-password")
_USERS = f'user_{LOAD}="{PASSWORD}" user_{ADMIN[0]}="{ADMIN[1]}"'
_JAAS = (
    f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{ADMIN[0]}" password="{ADMIN[1]}" '
    f"{_USERS};"
)
HANDSHAKE, AUTHENTICATE = 1, 2
"""Versions of the requests of a login."""
CORES = sorted(os.sched_getaffinity(0))
"""All servers run on the first one, and this process on the second one."""


class Way(NamedTuple):
    """How the load connects, and whether the broker checks its permissions."""

    protocol: str = "PLAINTEXT"
    authorizer: bool = False

    def __str__(self) -> str:
        return f"{self.protocol}, authorizer" if self.authorizer else self.protocol


OPEN = Way()


class Target(NamedTuple):
    """A server that runs. `open` returns a connection for the load, and `administrator` one that may do everything."""

    server: Server
    pid: int
    open: Callable[[], socket.socket]
    administrator: Callable[[], Wire]


@contextmanager
def running(name: str, folder: Path, program: Path | None = None, way: Way = OPEN) -> Iterator[Target]:
    """Run a server on the first core. Meanwhile, this process runs on the second core.

    `program` is the `oncelog` to run, instead of this environment's.
    """
    before = os.sched_getaffinity(0)  # the second core only, if another server runs already
    os.sched_setaffinity(0, CORES[:1])  # the server inherits it
    try:
        target = _started(name, folder, program, way)
    finally:
        os.sched_setaffinity(0, CORES[1:2] or CORES)
    try:
        if way.authorizer:
            user = f"User:{LOAD}" if way.protocol.startswith("SASL") else "User:ANONYMOUS"
            allowed = Grant(
                AclOperation.ALL, AclResource.TOPIC, TOPICS, pattern=PatternType.PREFIXED, principal=user, host="*"
            )
            with target.administrator() as administrator:
                grant(administrator, [allowed])
        yield target
    finally:
        os.sched_setaffinity(0, before)
        target.server.stop()


def _started(name: str, folder: Path, program: Path | None, way: Way) -> Target:
    """Start a server. Without TLS, logins and an authorizer, it has its default settings and one listener."""
    server: ApacheKafka | OncelogCluster
    if way == OPEN:
        server = (
            OncelogCluster(folder, program=program) if name == "oncelog" else ApacheKafka(folder, heap="1g", options=())
        )
        at = server.bootstrap
        return Target(server, _pid(server), lambda: connected(at, way), lambda: Wire(at))
    folder.mkdir(parents=True, exist_ok=True)
    held = held_ports(2)
    load, inner = (f"127.0.0.1:{port_of(each)}" for each in held)
    ca = folder / "ca.pem"
    settings = _settings(folder, ca, load, inner, way)
    if name == "oncelog":
        for each in held:
            each.close()
        server = OncelogCluster(folder, program=program, settings=settings)
    else:
        server = _SecuredKafka(folder, settings, load)
        for each in held:
            each.close()
        wait_until(lambda: accepts(inner), "the listener INNER accepts connections")
    return Target(server, _pid(server), lambda: connected(load, way, ca), lambda: Wire(inner, login=ADMIN))


def _pid(server: ApacheKafka | OncelogCluster) -> int:
    return server.broker_pid() if isinstance(server, OncelogCluster) else server.process.pid


def _settings(folder: Path, ca: Path, load: str, inner: str, way: Way) -> dict[str, str]:
    """Create an authority and a certificate. Return the settings with the listeners LOAD and INNER."""
    issuer = authority()
    ca.write_bytes(issuer.certificate_pem)
    pair = signed_by(issuer, "broker", "127.0.0.1", "localhost")
    keys = folder / "broker.pem"
    keys.write_bytes(pair.key_pem() + pair.certificate_pem)
    tls = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
    }
    checked = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": f"User:{ADMIN[0]}"}
    return {
        "listeners": f"LOAD://{load},INNER://{inner}",
        "listener.security.protocol.map": f"LOAD:{way.protocol},INNER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INNER",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.inner.plain.sasl.jaas.config": _JAAS,
        **({"listener.name.load.plain.sasl.jaas.config": _JAAS} if way.protocol.startswith("SASL") else {}),
        **(tls if way.protocol.endswith("SSL") else {}),
        **(checked if way.authorizer else {}),
    }


class _SecuredKafka(ApacheKafka):
    """Apache Kafka with these settings, and a listener for its controller."""

    def __init__(self, folder: Path, settings: Mapping[str, str], load: str) -> None:
        self._wanted, self._load = dict(settings), load
        super().__init__(folder, heap="1g", options=())

    def listeners(self, port: int, controller: int) -> dict[str, str]:
        self.bootstrap = self._load
        return {
            **self._wanted,
            "listeners": f"{self._wanted['listeners']},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": (
                f"{self._wanted['listener.security.protocol.map']},CONTROLLER:SASL_PLAINTEXT"
            ),
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": _JAAS,
        }


def connected(bootstrap: str, way: Way, ca: Path | None = None) -> socket.socket:
    """Return a connection, after TLS and login if the way has them."""
    host, _, port = bootstrap.rpartition(":")
    made = socket.create_connection((host, int(port)))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if way.protocol.endswith("SSL"):
        made = ssl.create_default_context(cafile=str(ca)).wrap_socket(made, server_hostname=host)
    if way.protocol.startswith("SASL"):
        first = _answer(made, SaslHandshakeRequest(mechanism="PLAIN"), HANDSHAKE)
        assert not SaslHandshakeResponse.decode(first, HANDSHAKE).error_code
        login = SaslAuthenticateRequest(auth_bytes=f"\0{LOAD}\0{PASSWORD}".encode())
        assert not SaslAuthenticateResponse.decode(_answer(made, login, AUTHENTICATE), AUTHENTICATE).error_code
    return made


def _answer(made: socket.socket, request: Message, version: int) -> memoryview:
    made.sendall(framed(request, version))
    answer = frame_from(made)
    assert answer is not None, "the broker has closed the connection"
    _, at = decode_response_header(memoryview(answer), request.API_KEY, version)
    return memoryview(answer)[at:]


def framed(request: Message, version: int) -> bytes:
    """Return the bytes of a request."""
    header = encode_request_header(RequestHeader(request.API_KEY, version, 1, "capacity"))
    payload = header + request.encode(version)
    return struct.pack(">i", len(payload)) + payload
