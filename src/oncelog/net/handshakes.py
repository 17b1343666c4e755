"""Accept connections with TLS. Each handshake is a task with a deadline, and a listener has a limited number of them.

The answer to a client's first message may block the event loop for a millisecond. If a listener has too many handshakes
in progress, it cancels the oldest: the handshake of an honest client is complete after two round trips. If too many
clients have no answer yet, it cancels the oldest of these: an honest client sends its first message at once. They could
send it all at the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from oncelog.net.admission import INSIDE, Arrival
from oncelog.net.alerts import Attempt, attempt
from oncelog.net.entrance import Entrance
from oncelog.net.repeated_lines import RepeatedLines
from oncelog.net.security import Tls
from oncelog.net.server_options import plain_host

MOST = 128
"""The number of handshakes that a listener may have in progress."""
MOST_UNANSWERED = 32
"""How many of them may be without the answer to the first message."""
DEADLINE_S = 10.0
"""How long a client may take for its handshake."""
RETRY_S = 1.0
"""How long to wait after a failure to accept, such as too many open files."""

_log = logging.getLogger("oncelog.net")


class TlsAcceptor:
    """Accept the connections of one listener, admit them, and do their TLS handshakes.

    `protocol` creates the asyncio protocol of a connection. The acceptor connects it when the handshake is complete.
    """

    def __init__(
        self,
        name: str,
        sockets: Sequence[Any],
        tls: Tls,
        protocol: Callable[[Arrival], asyncio.BaseProtocol],
        entrance: Entrance,
        lines: RepeatedLines,
    ) -> None:
        """`name` is that of the listener."""
        self._name = name
        self._entrance = entrance
        self._lines = lines
        self._sockets = [socket.socket(each.family, each.type, fileno=socket.dup(each.fileno())) for each in sockets]
        self._tls = tls
        self._protocol = protocol
        self._accepting: list[asyncio.Task[None]] = []
        self._waiting: dict[Arrival, tuple[socket.socket, Any]] = {}
        """The connections that are not admitted yet, with their addresses."""
        self._handshakes: dict[asyncio.Task[bool], tuple[socket.socket, Arrival, Attempt]] = {}
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
        for accepted, _ in self._waiting.values():
            accepted.close()
        self._waiting.clear()

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
            arrival = Arrival(self._name, plain_host(address), self._decided)
            self._waiting[arrival] = accepted, address
            self._entrance.arrive(arrival)

            await asyncio.sleep(0)  # `sock_accept` does not pause while clients wait

    def _decided(self, arrival: Arrival) -> None:
        """Begin the handshake of an admitted connection, or close a refused one."""
        accepted, address = self._waiting.pop(arrival, (None, None))
        if accepted is None:
            return  # closed by `stop`
        if arrival.state != INSIDE:
            accepted.close()
            return
        self._make_room()
        own = Attempt(accepted)
        task = asyncio.get_running_loop().create_task(self._shake_hands(accepted, address, arrival, own))
        self._handshakes[task] = accepted, arrival, own
        task.add_done_callback(self._ended)

    def _make_room(self) -> None:
        """Cancel the oldest handshakes if there are too many. Those that have just been accepted may still begin."""
        unanswered = [task for task, (_, _, own) in self._handshakes.items() if own.unanswered]
        if excess := unanswered[: max(0, len(unanswered) - MOST_UNANSWERED + 1)]:
            for task in excess:
                task.cancel()
        elif len(self._handshakes) >= MOST:
            next(iter(self._handshakes)).cancel()

    def _ended(self, task: asyncio.Task[bool]) -> None:
        """Close the connection, unless its handshake is complete. A task may be cancelled before its first step."""
        accepted, arrival, _ = self._handshakes.pop(task)
        if task.cancelled() or task.exception() is not None or not task.result():
            with contextlib.suppress(OSError):  # uvloop keeps the connection if a handshake is cancelled
                accepted.shutdown(socket.SHUT_RDWR)
            accepted.close()
            self._entrance.leave(arrival)

    async def _shake_hands(self, accepted: socket.socket, address: Any, arrival: Arrival, own: Attempt) -> bool:
        """Do the handshake of a connection, and return whether it is complete."""
        context = await self._tls.context()
        attempt.set(own)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(self._protocol, arrival), accepted, ssl=context, ssl_handshake_timeout=DEADLINE_S
            )
        except (TimeoutError, OSError) as error:  # OSError: also ssl.SSLError
            host = plain_host(address)
            text = f"closed {host}:{address[1]}: the TLS handshake failed: {reason(error)}"
            self._lines.log("failed TLS handshakes", host, text)
            error.__traceback__ = None  # asyncio's frames would keep the connection until a garbage collection
            await own.linger()
            return False
        finally:
            own.close()
        return True


def reason(error: Exception) -> str:
    """Return why a handshake failed, without the line of OpenSSL's source code."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error) or type(error).__name__
