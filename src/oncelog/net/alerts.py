"""TLS handshakes of a server that send an alert if they fail, and that tell when the costly step is done.

OpenSSL writes the alert into memory, but asyncio and uvloop close the connection without sending it. So the client
could not tell an expired certificate from a lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Any

LINGER_S = 0.1
"""How long to keep the connection after the alert. An immediate close could overtake it, since the client may have sent
requests. As long as Kafka's `connection.failed.authentication.delay.ms`."""


REQUEST_BYTES = 300
"""A HelloRetryRequest is smaller, and an answer with a certificate is larger."""


class Attempt:
    """The handshake of one accepted connection. The event loop closes its socket when the handshake fails."""

    def __init__(self, accepted: socket.socket) -> None:
        self._accepted = accepted
        self._kept: socket.socket | None = None
        self.unanswered = False
        """The handshake has begun, and its costly step is still to come."""
        self._answered = False

    def paused(self, written: int) -> None:
        """Record that the server waits for the client, and has written some bytes before."""
        self._answered = self._answered or written > REQUEST_BYTES
        self.unanswered = not self._answered

    def send(self, alert: bytes) -> None:
        """Send an alert, and nothing after it. Keep the connection for `linger`."""
        self.unanswered = False
        with contextlib.suppress(OSError):  # the client has gone, or does not read
            self._kept = self._accepted.dup()
            self._kept.send(alert)
            self._kept.shutdown(socket.SHUT_WR)

    async def linger(self) -> None:
        """Give the client time to read the alert, if one was sent."""
        if self._kept is not None:
            await asyncio.sleep(LINGER_S)

    def close(self) -> None:
        """Close the kept connection. A completed handshake keeps none."""
        if self._kept is not None:
            self._kept.close()


attempt: ContextVar[Attempt | None] = ContextVar("attempt", default=None)
"""The handshake of the present task. The event loop's transport runs in a copy of the task's context."""


class AlertingObject(ssl.SSLObject):
    """One handshake, then one connection.

    The server's answer to the first message is the costly step, because it has a signature. If the server asks for
    another first message (HelloRetryRequest), the step is still to come.
    """

    outgoing: ssl.MemoryBIO
    attempt: Attempt | None

    def do_handshake(self) -> None:
        """Do a step of the handshake. If it fails, send the alert."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if self.attempt is not None:
                self.attempt.paused(self.outgoing.pending)
            raise
        except ssl.SSLError:
            if self.attempt is not None and (alert := self.outgoing.read()):
                self.attempt.send(alert)
            raise


class AlertingContext(ssl.SSLContext):
    """TLS settings of a server whose handshakes send alerts."""

    sslobject_class = AlertingObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> AlertingObject:
        """Return a new handshake; see `ssl.SSLContext.wrap_bio`."""
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(made, AlertingObject)
        made.outgoing, made.attempt = outgoing, attempt.get()
        return made
