"""The socket server: frames in, answers out, one request at a time a connection, in order.

`net.frames` cuts the bytes of one connection into frames and has them answered; here is what all connections share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass

from oncelog.net.frames import BUFFER_BYTES, SWEEPS, BadFrameError, Chunks, Connection, Handler, Holds, Peer
from oncelog.net.pieces import to_be_joined
from oncelog.net.unsent import LEAST_AT_ONCE, Unsent

__all__ = ["BadFrameError", "Chunks", "Handler", "Holds", "Limits", "Peer", "Server", "serve"]

SPARE_BUFFERS = 4
"""Unused read buffers that are kept."""

_log = logging.getLogger("oncelog.net")


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may ask of the server."""

    max_request_size: int = 100 * 1024 * 1024
    """Bytes of a frame; a longer one closes the connection."""
    idle_ms: int = 600_000
    """A connection that neither sends a whole frame nor takes an answer for so long is closed; negative: never."""
    max_connections: int = 2**31 - 1
    """Further ones are closed at once."""
    backlog: int = 1024
    """Connections that the kernel holds until they are accepted."""
    max_unsent_bytes: int = 64 * 1024 * 1024
    """Memory for answers that their clients have not read, of all connections together; -1: no limit (`Unsent`)."""
    drain_ms: int = 500
    """How long `close` waits for requests in progress."""


class Server:
    """A listening server; made by `serve`."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self.handler = handler
        self.limits = limits
        self.connections: set[Connection] = set()
        self.loop = asyncio.get_running_loop()
        self.joins = to_be_joined(self.loop)
        """Whether the pieces of an answer are joined before they are written."""
        self._unread: dict[Connection, int] = {}
        """Memory of the answers that each client has not read, the connection that has waited longest first."""
        self.unsent = Unsent(limits.max_unsent_bytes, copies=self.joins)
        self.port = 0
        """The port that is listened on."""
        self.scratch = memoryview(bytearray(BUFFER_BYTES))
        self.holders = 0
        """Connections that hold a read buffer or a long frame."""
        self._spare: list[memoryview] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._next_id = 0
        self._drained: asyncio.Future[None] | None = None
        self._sweep_s = max(limits.idle_ms / 1000 / SWEEPS, 0.001)
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep) if limits.idle_ms >= 0 else None
        self._refusing = False

    @property
    def draining(self) -> bool:
        """Whether `close` was called."""
        return self._drained is not None

    async def listen(self, host: str, port: int) -> None:
        """Binds; OSError when the address cannot be had."""
        self._listener = await self._bind(host, port)
        self.port = int(self._listener.sockets[0].getsockname()[1])
        if port == 0 and len(self._listener.sockets) > 1:  # a name with several addresses: one port for all
            self._listener.close()
            self._listener = await self._bind(host, self.port)

    async def _bind(self, host: str, port: int) -> asyncio.Server:
        backlog = self.limits.backlog
        return await self.loop.create_server(lambda: Connection(self), host or "0.0.0.0", port, backlog=backlog)

    async def close(self) -> None:
        """Stops listening and serving, waits a while for the answers to requests in progress, hangs up."""
        if self._drained is not None:
            return
        if self._listener is not None:
            self._listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._drained = self.loop.create_future()
        for connection in tuple(self.connections):
            connection.drain()
        if self.connections:
            timer = self.loop.call_later(self.limits.drain_ms / 1000, self._stop_waiting)
            await self._drained
            timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in tuple(self.connections):
            connection.abort()

    def _stop_waiting(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # -- called by connections ----------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> int:
        """Counts a new connection in and returns its id; 0 when there are too many."""
        if len(self.connections) >= self.limits.max_connections or self._drained is not None:
            if not self._refusing:
                _log.warning("refusing connections: max.connections=%d is reached", self.limits.max_connections)
            self._refusing = True
            return 0
        self.connections.add(connection)
        self._next_id += 1
        return self._next_id

    def gone(self, connection: Connection) -> None:
        """Counts a lost connection out."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        self._refusing = False
        if not self.connections:
            self._stop_waiting()

    def claim(self) -> memoryview:
        """Gives the scratch buffer away, with what is in it."""
        taken = self.scratch
        self.scratch = self._spare.pop() if self._spare else memoryview(bytearray(BUFFER_BYTES))
        return taken

    def release(self, buffer: memoryview) -> None:
        """Takes back a buffer that was claimed."""
        if len(self._spare) < SPARE_BUFFERS:
            self._spare.append(buffer)

    def unread(self, connection: Connection, size: int) -> None:
        """Count an answer that its client has not read yet; `size` is its memory in bytes.

        If all answers together take far too much memory, close the connections whose answers are unread for the longest
        time.
        """
        self._unread[connection] = self._unread.get(connection, 0) + size
        self.unsent.bytes += size
        if self.unsent.too_much:
            for other, unread in tuple(self._unread.items()):
                if unread > LEAST_AT_ONCE and self.unsent.too_much:
                    other.abort_unread(unread)

    def all_read(self, connection: Connection) -> None:
        """Stop counting a client's answers: it has read all of them, or has disconnected."""
        self.unsent.bytes -= self._unread.pop(connection, 0)

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Runs a request that has to wait."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sweep(self) -> None:
        for connection in tuple(self.connections):
            connection.sweep()
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)


async def serve(handler: Handler, host: str, port: int, limits: Limits | None = None) -> Server:
    """Start to listen and return the server. Raises OSError.

    An empty `host` is every IPv4 interface, `port` 0 a free one (see `Server.port`).

    `handler(frame, peer)` gets a writable view of one request, without its length. It returns the answer as chunks,
    without the length; or None for no answer; or an awaitable of either. The chunks must not be slices of the frame.
    The frame is valid until the handler returns or first waits, and until the answer if the handler returns `Holds`.
    If the handler raises, the connection is closed.
    """
    server = Server(handler, limits or Limits())
    await server.listen(host, port)
    return server
