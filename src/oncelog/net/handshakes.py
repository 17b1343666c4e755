"""Accept connections with TLS. Each handshake is a task with a deadline, and a listener has a limited number of them.

A handshake may block the event loop for a millisecond. If a listener has too many handshakes in progress, it cancels
the oldest: the handshake of an honest client is complete after two round trips.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from oncelog.net.security import Tls

MOST = 128
"""The number of handshakes that a listener may have in progress."""
DEADLINE_S = 10.0
"""How long a client may take for its handshake."""
RETRY_S = 1.0
"""How long to wait after a failure to accept, such as too many open files."""

_log = logging.getLogger("oncelog.net")


class TlsAcceptor:
    """Accept the connections of one listener, and do their TLS handshakes.

    `protocol` creates the asyncio protocol of a connection. The acceptor connects it when the handshake is complete.
    """

    def __init__(self, sockets: Sequence[Any], tls: Tls, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._sockets = [socket.socket(each.family, each.type, fileno=socket.dup(each.fileno())) for each in sockets]
        self._tls = tls
        self._protocol = protocol
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[bool], socket.socket] = {}
        """Tasks of the handshakes in progress, oldest first, with their connections."""

    @property
    def handshakes(self) -> int:
        """The number of handshakes in progress."""
        return len(self._handshakes)

    def start(self, backlog: int) -> None:
        """Accept connections from now on. Raises OSError if another process listens on an address."""
        for each in self._sockets:
            each.setblocking(False)
            each.listen(backlog)
        self._accepting = [asyncio.get_running_loop().create_task(self._accept(each)) for each in self._sockets]

    def stop(self) -> None:
        """Accept no more connections, and cancel the handshakes in progress."""
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        for each in self._sockets:
            each.close()

    async def stopped(self) -> None:
        """Wait until all tasks have ended."""
        await asyncio.gather(*self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # the client has gone already
            except OSError as error:
                _log.error("cannot accept a connection with TLS: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            if len(self._handshakes) >= MOST:
                next(iter(self._handshakes)).cancel()
            task = loop.create_task(self._shake_hands(accepted, address))
            self._handshakes[task] = accepted
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[bool]) -> None:
        """Close the connection, unless its handshake is complete. A task may be cancelled before its first step."""
        accepted = self._handshakes.pop(task)
        if task.cancelled() or task.exception() is not None or not task.result():
            with contextlib.suppress(OSError):  # uvloop keeps the connection if a handshake is cancelled
                accepted.shutdown(socket.SHUT_RDWR)
            accepted.close()

    async def _shake_hands(self, accepted: socket.socket, address: Any) -> bool:
        """Do the handshake of a connection, and return whether it is complete."""
        context = await self._tls.context()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, accepted, ssl=context, ssl_handshake_timeout=DEADLINE_S
            )
        except (TimeoutError, OSError) as error:  # OSError: also ssl.SSLError
            _log.info("closed %s:%s: the TLS handshake failed: %s", *address[:2], reason(error))
            return False
        return True


def reason(error: Exception) -> str:
    """Return why a handshake failed, without the line of OpenSSL's source code."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error) or type(error).__name__
