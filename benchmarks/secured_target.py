"""The broker under attack with TLS, logins and an authorizer, and the client that logs in again and again."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from attack_target import PATIENCE_S, Target, host_and_port

from oncelog.net.sasl import SCRAM_HASHES
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from support.attacker import Attacker
from support.secured_cluster import ADMINISTRATOR, STRANGER, SecuredCluster
from support.servers import OncelogCluster
from support.wire import Wire

MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers of the mechanisms."""
ITERATED = "iterated"
"""A user whose credentials have the most iterations that the broker stores."""
ITERATIONS = 16_384
THREADS = 8
RETRY_S = 0.01


class SecuredTarget(Target):
    """A broker with one listener, SASL_SSL, and users of PLAIN and SCRAM."""

    server: SecuredCluster

    def _start(self, settings: Mapping[str, str]) -> OncelogCluster:
        given = {"sasl.enabled.mechanisms": ",".join(("PLAIN", *MECHANISMS)), **settings}
        server = SecuredCluster(self.folder, brokers=1, settings=given)
        self.tls = ssl.create_default_context(cafile=str(server.certificates.ca))
        self.server = server
        return server

    def wire(self, user: str = ADMINISTRATOR) -> Wire:
        """Return a connection of a user, with a long timeout for responses."""
        wire = Wire(self.bootstrap, "attacker", tls=self.tls, login=self.server.login(user))
        wire._socket.settimeout(PATIENCE_S)
        return wire

    def stranger(self) -> Wire:
        """Return a connection of a user who may do nothing."""
        return self.wire(STRANGER)

    def attacker(self) -> Attacker:
        """Return a connection with TLS that has not logged in."""
        return Attacker(self.bootstrap, self.tls)

    def begun(self) -> socket.socket:
        """Return a connection that has sent nothing, not even the first byte of a handshake."""
        sock = socket.create_connection(host_and_port(self.bootstrap), timeout=PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def hello(self) -> bytes:
        """Return the first message of a TLS handshake."""
        outgoing = ssl.MemoryBIO()
        machine = self.tls.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            machine.do_handshake()
        return outgoing.read()

    def add_iterated(self) -> None:
        """Create the user `ITERATED`."""
        salt = secrets.token_bytes(24)
        wanted = [
            ScramCredentialUpsertion(
                name=ITERATED,
                mechanism=number,
                iterations=ITERATIONS,
                salt=salt,
                salted_password=hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], b"secret", salt, ITERATIONS),
            )
            for mechanism, number in MECHANISMS.items()
        ]
        with self.wire() as wire:
            for each in wanted:  # one request takes a user once
                answer = wire.call(AlterUserScramCredentialsRequest(upsertions=[each]), 0)
                assert not any(result.error_code for result in answer.results), answer


def logins(target: Target) -> Iterator[None]:
    """Log in on a new connection, again and again. A login that fails is repeated; the wait goes on."""
    while True:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                target.connect().close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(RETRY_S)
        yield


def at_once(count: int, work: Callable[[int], None]) -> None:
    """Do some work `count` times, in several threads. Raises the first error."""
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(work, range(count)):
            pass


def dropped(sock: socket.socket, *, reset: bool) -> None:
    """Close a connection, with a reset or in the usual way."""
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
