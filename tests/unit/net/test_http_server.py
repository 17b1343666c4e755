"""The HTTP server of metrics, against clients that read slowly or not at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

from oncelog.net.http_server import Answer, HttpServer
from support.sockets import both_loops, run
from support.turns import until


@both_loops
def test_client_that_does_not_read_counts_until_it_leaves(loop: str) -> None:
    """What it leaves in the buffers of the server would keep an uncounted connection open for ever."""
    asked = False

    async def parts() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b"x" * 60_000  # by default, a writer waits only above 64 KiB

    async def body() -> None:
        server = HttpServer({"/metrics": lambda: Answer(200, "text/plain", parts())})
        port = await server.listen("127.0.0.1", 0)
        assert server._server is not None
        server._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            await until(lambda: asked)
            for _ in range(20):
                await asyncio.sleep(0)
            assert server.open == 1
        await until(lambda: server.open == 0)
        await server.close()

    run(loop, body)
