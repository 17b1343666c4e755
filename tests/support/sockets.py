"""A server on a real socket and plain clients for it, on uvloop or on asyncio's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, ClassVar

import pytest
import uvloop

from oncelog.net.server import Limits, Listener, Server, Session
from oncelog.net.unsent import Unsent

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def run(loop: str, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(asyncio.wait_for(body(), 60))
    finally:
        while Client.made:
            Client.made.pop().close()


both_loops = pytest.mark.parametrize("loop", list(LOOPS))


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def echo(frame: memoryview, session: Session) -> list[bytes | memoryview]:
    return [b"echo:", bytes(frame)]


@contextlib.asynccontextmanager
async def serving(handler: Any, unsent: Unsent | None = None, **limits: Any) -> AsyncIterator[Server]:
    server = Server(handler, Limits(**limits), unsent)
    await server.listen([Listener("127.0.0.1", 0)])
    try:
        yield server
    finally:
        await server.close()


class Client:
    """A plain socket connection, which `run` closes."""

    made: ClassVar[list[Client]] = []

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.received = bytearray()
        self.loop = asyncio.get_running_loop()
        self.made.append(self)

    @classmethod
    async def connect(cls, server: Server) -> Client:
        return await cls.to_port(server.port)

    @classmethod
    async def to_port(cls, port: int) -> Client:
        client = cls()
        await client.loop.sock_connect(client.socket, ("127.0.0.1", port))
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.socket, data)

    async def answer(self) -> bytes:
        (size,) = struct.unpack(">i", await self._take(4))
        return await self._take(size)

    async def _take(self, size: int) -> bytes:
        while len(self.received) < size:
            data = await self.loop.sock_recv(self.socket, 1 << 20)
            assert data, "closed"
            self.received += data
        taken = bytes(self.received[:size])
        del self.received[:size]
        return taken

    async def closed(self) -> bool:
        """Wait until the server closes the connection. Return False if it sends something instead."""
        with contextlib.suppress(ConnectionResetError):
            return await self.loop.sock_recv(self.socket, 1) == b""
        return True

    def close(self) -> None:
        self.socket.close()
