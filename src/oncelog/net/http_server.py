"""A small HTTP/1.1 server for GET: one table of paths, answers in parts, and bounds for each client.

It is for metrics and health checks, in a process that serves Kafka's protocol on the same event loop. So an answer
comes in parts, and other work runs between them. A connection has one request, and is closed after its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import NamedTuple

MOST_CONNECTIONS = 16
"""Connections at a time. Later ones are closed at once."""
REQUEST_BYTES = 8 * 1024
"""Largest head of a request."""
REQUEST_S = 5.0
"""How long a client may take to send its request."""
ANSWER_S = 30.0
"""How long a client may take to read its answer."""

TRANSFER = "Transfer-Encoding: chunked\r\n"
"""So a client notices if an answer ends early, because the broker has failed or stops."""

_END = b"\r\n\r\n"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

_log = logging.getLogger("oncelog.net")


class Answer(NamedTuple):
    """One answer. Its length need not be known: it ends with the connection."""

    status: int
    content_type: str
    parts: AsyncGenerator[bytes, None]


Route = Callable[[], Answer]


async def one_part(text: str) -> AsyncGenerator[bytes, None]:
    """Yield the only part of a short answer."""
    yield text.encode()


def plain(status: int, text: str) -> Answer:
    """Return a short answer of text."""
    return Answer(status, "text/plain; charset=utf-8", one_part(text))


class HttpServer:
    """Answer GET and HEAD for the paths of a table."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Bind an address, and accept requests. Return the port. Raises OSError."""
        self._server = await asyncio.start_server(
            self._accepted, host, port, limit=REQUEST_BYTES, backlog=MOST_CONNECTIONS
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def open(self) -> int:
        """The number of connections that count for MOST_CONNECTIONS."""
        return len(self._tasks)

    async def close(self) -> None:
        """Accept no more requests, and end those in progress."""
        if self._server is None:
            return
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._tasks) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the client is gone or too slow
        except Exception:  # noqa: BLE001 - a failed scrape must not reach the event loop's handler
            _log.exception("an HTTP request failed")
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # `drain` waits for all bytes, so no closed connection has any
        async with asyncio.timeout(REQUEST_S):
            try:
                head = await reader.readuntil(_END)
            except asyncio.LimitOverrunError:
                head = b""
        method, answer = self._answer(head)
        reason = _REASONS[answer.status]
        chunked = b" HTTP/1.0\r\n" not in head[: head.find(b"\n") + 1]
        lines = (
            f"HTTP/1.1 {answer.status} {reason}\r\nContent-Type: {answer.content_type}\r\nCache-Control: no-store\r\n"
            f"X-Content-Type-Options: nosniff\r\n{TRANSFER if chunked else ''}Connection: close\r\n\r\n"
        )
        writer.write(lines.encode("ascii"))
        async with asyncio.timeout(ANSWER_S):
            if method != "HEAD":
                async with aclosing(answer.parts) as parts:  # at once, also if the client is gone
                    async for part in parts:
                        if part:
                            writer.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
                            await writer.drain()
                if chunked:
                    writer.write(b"0\r\n\r\n")
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

    def _answer(self, head: bytes) -> tuple[str, Answer]:
        """Return the method of a request, and its answer."""
        if not head:
            return "", plain(431, f"the request is longer than {REQUEST_BYTES} bytes\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "", plain(400, "not a request of HTTP/1.1\n")
        method, target = words[0], words[1].partition("?")[0]
        route = self._routes.get(target)
        if route is None:
            return method, plain(404, f"try one of these: {', '.join(self._routes)}\n")
        if method not in ("GET", "HEAD"):
            return method, plain(405, "only GET and HEAD are served\n")
        return method, route()
