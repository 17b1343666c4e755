"""Accept connections with TLS: each handshake is a task, with a deadline, and few of them run at a time.

A handshake may take a millisecond of the event loop. A flood of new ones ends the oldest: that of an honest client is
complete after two round trips.
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
"""Handshakes at a time, for each listener."""
DEADLINE_S = 10.0
"""How long a client may take for its handshake."""
RETRY_S = 1.0
"""How long to wait after a failure to accept, such as too many open files."""

_log = logging.getLogger("oncelog.net")


class TlsAcceptor:
    """Accept the connections of one listener, and make their handshakes.

    `protocol` creates the protocol of a connection. It is connected when the handshake is complete.
    """

    def __init__(self, sockets: Sequence[Any], tls: Tls, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._sockets = [socket.socket(each.family, each.type, fileno=socket.dup(each.fileno())) for each in sockets]
        self._tls = tls
        self._protocol = protocol
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[bool], socket.socket] = {}
        """In the order of their begin."""

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
        """Accept no more connections, and end the handshakes in progress."""
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        for each in self._sockets:
            each.close()

    async def stopped(self) -> None:
        """Wait until nothing runs any more."""
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
        """Close the connection, unless its handshake is complete. The task may have been cancelled before it began."""
        accepted = self._handshakes.pop(task)
        if task.cancelled() or task.exception() is not None or not task.result():
            with contextlib.suppress(OSError):  # uvloop keeps the connection if a handshake is cancelled
                accepted.shutdown(socket.SHUT_RDWR)
            accepted.close()

    async def _shake_hands(self, accepted: socket.socket, address: Any) -> bool:
        """Return whether the handshake is complete."""
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
    """Return why a handshake failed, without the place in OpenSSL's source."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error) or type(error).__name__
