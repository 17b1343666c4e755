"""Large responses over TLS: they are encrypted in steps, in order, and only as fast as the client reads."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.net.paced import STEP_BYTES, PacedWriter
from oncelog.net.server import Limits, Listener, Server, Session
from oncelog.net.tls_files import OwnTls, ServerTlsFiles, Store
from support.certificates import authority, signed_by
from support.sockets import both_loops, framed, run
from support.turns import until

MB = 1 << 20


class Transport(asyncio.Transport):
    """It records what is written and whether it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.bytes = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.sizes.append(len(data))
        self.bytes += data

    def close(self) -> None:
        self.closed = True


def paced(body: Callable[[PacedWriter, Transport, list[int]], Any]) -> None:
    """Run `body` with a writer, its transport, and a list that gets the number of writes when all is written."""

    async def go() -> None:
        transport, done = Transport(), []
        writer = PacedWriter(asyncio.get_running_loop(), transport, lambda: done.append(len(transport.sizes)))
        await body(writer, transport, done)

    asyncio.run(go())


def test_each_step_is_a_turn_of_its_own() -> None:
    async def body(writer: PacedWriter, transport: Transport, done: list[int]) -> None:
        large = bytes(range(256)) * (3 * STEP_BYTES // 256)
        writer.add([b"head", large, b"tail"])
        assert transport.sizes == []
        seen = []
        while writer.waiting:
            await asyncio.sleep(0)
            seen.append(len(transport.sizes))
        assert seen == [1, 2, 3, 4]
        assert transport.sizes == [STEP_BYTES] * 3 + [8]
        assert transport.bytes == b"head" + large + b"tail"
        assert done == [4]

    paced(body)


def test_nothing_is_written_while_the_client_does_not_read() -> None:
    async def body(writer: PacedWriter, transport: Transport, done: list[int]) -> None:
        writer.add([bytes(2 * STEP_BYTES)])
        await asyncio.sleep(0)
        writer.pause()
        for _ in range(5):
            await asyncio.sleep(0)
        assert transport.sizes == [STEP_BYTES]
        assert not writer.resume()
        await asyncio.sleep(0)
        assert transport.sizes == [STEP_BYTES] * 2
        assert done == [2]
        assert writer.resume()

    paced(body)


def test_client_that_pauses_in_the_last_step_ends_the_response_when_it_continues() -> None:
    async def body(writer: PacedWriter, transport: Transport, done: list[int]) -> None:
        transport.write = lambda data: writer.pause()  # type: ignore[method-assign]
        writer.add([b"x"])
        await asyncio.sleep(0)
        assert not writer.waiting
        assert done == []
        assert writer.resume()

    paced(body)


def test_transport_is_closed_after_the_last_step() -> None:
    async def body(writer: PacedWriter, transport: Transport, done: list[int]) -> None:
        writer.add([bytes(STEP_BYTES), b"x"])
        writer.close()
        await asyncio.sleep(0)
        assert not transport.closed
        await asyncio.sleep(0)
        assert transport.closed
        assert done == []
        assert len(transport.bytes) == STEP_BYTES + 1

    paced(body)


def test_discarded_response_is_not_written() -> None:
    async def body(writer: PacedWriter, transport: Transport, done: list[int]) -> None:
        writer.add([b"x"])
        writer.discard()
        await asyncio.sleep(0)
        assert not writer.waiting
        assert (transport.sizes, done) == ([], [])

    paced(body)


def test_pages_of_a_file_may_be_truncated_meanwhile(tmp_path: Path) -> None:
    """A follower truncates its log when it has diverged. Access to a lost page would kill the process."""

    async def body(writer: PacedWriter, transport: Transport, done: list[int]) -> None:
        path = tmp_path / "pages"
        path.write_bytes(b"x" * MB)
        with path.open("r+b") as file:
            writer.add([memoryview(mmap.mmap(file.fileno(), MB, prot=mmap.PROT_READ))])
            file.truncate(0)
        while writer.waiting:
            await asyncio.sleep(0)
        assert transport.bytes == b"x" * MB

    paced(body)


# -- over real sockets -------------------------------------------------------------------------------------------------


class Tls:
    """A server's listener with TLS, and the context of its clients."""

    def __init__(self, folder: Path) -> None:
        root = authority()
        pair = signed_by(root, "localhost")
        key, ca = folder / "server.pem", folder / "ca.pem"
        key.write_bytes(pair.key_pem() + pair.certificate_pem)
        ca.write_bytes(root.certificate_pem)
        own = OwnTls(ServerTlsFiles(Store("ssl.keystore.location", str(key))).load())
        self.listener = Listener("127.0.0.1", 0, protocol="SSL", tls=own)
        self.client = ssl.create_default_context(cafile=str(ca))


@contextlib.asynccontextmanager
async def connected(tls: Tls, handler: Any) -> Any:
    server = Server(handler, Limits())
    await server.listen([tls.listener])
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.connect(("127.0.0.1", server.port))
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock, ssl=tls.client, server_hostname="localhost")
    try:
        yield server, reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()
        await server.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def large(size: int) -> bytes:
    return bytes(range(251)) * (size // 251)


def handler(frame: memoryview, session: Session) -> list[bytes | memoryview] | None:
    if frame == b"fail":
        raise ValueError("bad request")
    return [large(int(frame.tobytes()))]


@both_loops
def test_large_and_small_responses_keep_their_order(loop: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with connected(Tls(tmp_path), handler) as (server, reader, writer):
            sizes = [20 * MB, 1000, 3 * STEP_BYTES, STEP_BYTES, 500, 5 * MB]
            writer.write(b"".join(framed(str(size).encode()) for size in sizes))
            for size in sizes:
                assert await answer(reader) == large(size)
            await until(lambda: not server.unsent.bytes)

    run(loop, body)


@both_loops
def test_unread_response_counts_until_it_is_read_and_is_not_encrypted_before(loop: str, tmp_path: Path) -> None:
    size = 20 * MB

    async def body() -> None:
        async with connected(Tls(tmp_path), handler) as (server, reader, writer):
            writer.write(framed(str(size).encode()) + framed(b"1000"))
            await until(lambda: server.unsent.bytes > size - 1000)
            (connection,) = server.connections
            await until(lambda: connection._paced._paused)
            encrypted = connection._transport.get_write_buffer_size()
            assert encrypted < 4 * STEP_BYTES
            assert len(await answer(reader)) == len(large(size))
            assert await answer(reader) == large(1000)
            await until(lambda: not server.unsent.bytes)

    run(loop, body)


@both_loops
def test_response_before_a_bad_request_is_sent_whole(loop: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with connected(Tls(tmp_path), handler) as (_, reader, writer):
            writer.write(framed(str(5 * MB).encode()) + framed(b"fail"))
            assert await answer(reader) == large(5 * MB)
            assert await reader.read() == b""

    run(loop, body)


@both_loops
@pytest.mark.parametrize("by_server", [True, False])
def test_lost_connection_frees_its_response(loop: str, tmp_path: Path, by_server: bool) -> None:
    async def body() -> None:
        async with connected(Tls(tmp_path), handler) as (server, _, writer):
            writer.write(framed(str(20 * MB).encode()))
            await until(lambda: server.unsent.bytes > 19 * MB)
            (connection,) = server.connections
            if by_server:
                connection.abort()
            else:
                writer.transport.abort()
            await until(lambda: not server.connections)
            assert not server.unsent.bytes

    run(loop, body)
