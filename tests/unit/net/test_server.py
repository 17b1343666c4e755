"""The server over real sockets, on uvloop and on asyncio's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, ClassVar

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.net.frames import BUFFER_BYTES, FRAMES_A_TURN, SMALL_BYTES
from oncelog.net.server import BadFrameError, Limits, Peer, Server, serve

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
LONG_LIMIT = 8 * BUFFER_BYTES


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


def echo(frame: memoryview, peer: Peer) -> list[bytes | memoryview]:
    return [b"echo:", bytes(frame)]


@contextlib.asynccontextmanager
async def serving(handler: Any, **limits: int) -> AsyncIterator[Server]:
    server = await serve(handler, "127.0.0.1", 0, Limits(**limits))
    try:
        yield server
    finally:
        await server.close()


class Client:
    """A plain socket connection; `run` closes it."""

    made: ClassVar[list[Client]] = []

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.received = bytearray()
        self.loop = asyncio.get_running_loop()
        self.made.append(self)

    @classmethod
    async def connect(cls, server: Server) -> Client:
        client = cls()
        await client.loop.sock_connect(client.socket, ("127.0.0.1", server.port))
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
        """Waits until the server has closed the connection; False if it sends something instead."""
        with contextlib.suppress(ConnectionResetError):
            return await self.loop.sock_recv(self.socket, 1) == b""
        return True

    def close(self) -> None:
        self.socket.close()


@both_loops
def test_a_request_is_answered(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            client = await Client.connect(server)
            await client.send(framed(b"hello"))
            assert await client.answer() == b"echo:hello"

    run(loop, body)


@both_loops
def test_bytes_may_come_one_by_one(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            client = await Client.connect(server)
            for byte in framed(b"slow") + framed(b""):
                await client.send(bytes([byte]))
                await asyncio.sleep(0.001)
            assert [await client.answer(), await client.answer()] == [b"echo:slow", b"echo:"]

    run(loop, body)


@both_loops
def test_pipelined_requests_are_answered_one_at_a_time_in_order(loop: str) -> None:
    running = 0

    async def later(payload: bytes, gate: asyncio.Event) -> list[bytes | memoryview]:
        nonlocal running
        running += 1
        assert running == 1
        await gate.wait()
        running -= 1
        return [payload]

    async def body() -> None:
        gate = asyncio.Event()
        served: list[bytes] = []

        def handler(frame: memoryview, peer: Peer) -> list[bytes | memoryview] | Awaitable[Any]:
            payload = bytes(frame)
            served.append(payload)
            return later(payload, gate) if payload.startswith(b"slow") else [payload]

        async with serving(handler) as server:
            client = await Client.connect(server)
            requests = [b"slow 1", b"quick 2", b"slow 3", b"quick 4", b"quick 5"]
            await client.send(b"".join(map(framed, requests)))
            other = await Client.connect(server)
            await other.send(framed(b"other"))
            assert await other.answer() == b"other"  # nobody else waits
            assert served == [b"slow 1", b"other"]
            gate.set()
            assert [await client.answer() for _ in requests] == requests

    run(loop, body)


@both_loops
def test_no_answer_for_none(loop: str) -> None:
    async def silent() -> None:
        await asyncio.sleep(0)

    async def body() -> None:
        def handler(frame: memoryview, peer: Peer) -> list[bytes | memoryview] | Awaitable[None] | None:
            if frame == b"sync":
                return None
            return silent() if frame == b"async" else [bytes(frame)]

        async with serving(handler) as server:
            client = await Client.connect(server)
            await client.send(framed(b"sync") + framed(b"async") + framed(b"asked"))
            assert await client.answer() == b"asked"

    run(loop, body)


@both_loops
@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_an_impossible_length_closes_the_connection(loop: str, length: int, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with serving(echo, max_request_size=1000) as server:
            client = await Client.connect(server)
            await client.send(framed(b"x" * 1000) + struct.pack(">i", length) + b"some bytes")
            assert await client.answer() == b"echo:" + b"x" * 1000  # what came before is answered
            assert await client.closed()
            await until(lambda: not server.connections)

    with caplog.at_level(logging.WARNING, "oncelog.net"):
        run(loop, body)
    assert f"request of {length} bytes" in caplog.text


@both_loops
def test_a_handler_that_raises_closes_that_connection_only(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise RuntimeError("broken later")

    def handler(frame: memoryview, peer: Peer) -> list[bytes | memoryview] | Awaitable[None]:
        if frame == b"bad":
            raise BadFrameError("API key 99 is not served")
        if frame == b"broken":
            raise RuntimeError("broken now")
        return broken() if frame == b"broken later" else [bytes(frame)]

    async def body() -> None:
        async with serving(handler) as server:
            bystander = await Client.connect(server)
            for request in (b"bad", b"broken", b"broken later"):
                client = await Client.connect(server)
                await client.send(framed(b"fine") + framed(request) + framed(b"never"))
                assert await client.answer() == b"fine"
                assert await client.closed()
            await bystander.send(framed(b"still here"))
            assert await bystander.answer() == b"still here"

    with caplog.at_level(logging.WARNING, "oncelog.net"):
        run(loop, body)
    traces = {record.getMessage().partition(", ")[2]: bool(record.exc_info) for record in caplog.records}
    assert traces == {
        "API key 99 is not served": False,
        "a request failed: RuntimeError('broken now')": True,
        "a request failed: RuntimeError('broken later')": True,
    }


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@both_loops
def test_an_abrupt_close_leaves_nothing_behind(loop: str) -> None:
    async def body() -> None:
        gate = asyncio.Event()
        finished = []

        async def later(frame: memoryview) -> list[bytes | memoryview]:
            await gate.wait()
            finished.append(bytes(frame))
            return [b"late"]

        async with serving(lambda frame, peer: later(frame)) as server:
            for payload in (b"x", b"y" * (SMALL_BYTES * 4)):
                client = await Client.connect(server)
                await client.send(framed(payload) + b"\x00\x00")
                await until(lambda: any(c._busy for c in server.connections))
                linger = struct.pack("ii", 1, 0)
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                client.close()
                await until(lambda: not server.connections)
            gate.set()
            await until(lambda: len(finished) == 2)
            assert finished == [b"x", b"y" * (SMALL_BYTES * 4)]  # the frames stayed whole

    run(loop, body)


@both_loops
def test_a_client_that_shuts_down_its_side_still_gets_its_answer(loop: str) -> None:
    async def later() -> list[bytes | memoryview]:
        await asyncio.sleep(0.02)
        return [b"late"]

    async def body() -> None:
        async with serving(lambda frame, peer: later()) as server:
            client = await Client.connect(server)
            await client.send(framed(b"x"))
            await until(lambda: any(c._busy for c in server.connections))
            client.socket.shutdown(socket.SHUT_WR)
            assert await client.answer() == b"late"
            assert await client.closed()

    run(loop, body)


@both_loops
def test_long_frames_of_every_size_around_the_buffer(loop: str) -> None:
    sizes = [SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, BUFFER_BYTES - 5, BUFFER_BYTES - 4, BUFFER_BYTES - 3]
    sizes += [BUFFER_BYTES, 2 * BUFFER_BYTES + 7, LONG_LIMIT]
    payloads = [bytes([65 + index]) * size for index, size in enumerate(sizes)]

    async def body() -> None:
        def handler(frame: memoryview, peer: Peer) -> list[bytes | memoryview]:
            assert not frame.readonly
            return [struct.pack(">i", len(frame)), bytes(frame[:1]), bytes(frame[-1:])]

        async with serving(handler, max_request_size=LONG_LIMIT) as server:
            client = await Client.connect(server)
            sending = asyncio.ensure_future(client.send(b"".join(map(framed, payloads))))
            for payload in payloads:
                assert await client.answer() == struct.pack(">i", len(payload)) + payload[:1] + payload[-1:]
            await sending

    run(loop, body)


class _Script:
    """What the handler is to do with each request, told by its first byte."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, frame: memoryview, peer: Peer) -> list[bytes | memoryview] | Awaitable[Any] | None:
        self.seen += 1
        kind = frame[0] if len(frame) else 0
        if kind % 3 == 0:
            return [bytes(frame)]
        if kind % 3 == 1:
            return self.later(frame)
        frame[0] = 0  # frames are writable
        return [bytes(frame)]

    async def later(self, frame: memoryview) -> list[bytes | memoryview]:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return [bytes(frame)]  # still whole after others were read


requests = st.lists(
    st.tuples(
        st.integers(0, 255),
        st.one_of(st.integers(0, 100), st.sampled_from([SMALL_BYTES, 9000, BUFFER_BYTES - 4, BUFFER_BYTES + 9])),
    ),
    max_size=25,
)


@both_loops
@settings(max_examples=25, deadline=None)
@given(wanted=requests, cuts=st.lists(st.integers(1, 400_000), max_size=20))
def test_any_requests_cut_anywhere_come_back_in_order(
    loop: str, wanted: list[tuple[int, int]], cuts: list[int]
) -> None:
    payloads = [bytes([kind]) + bytes([index]) * size for index, (kind, size) in enumerate(wanted)]
    expected = [p if p[0] % 3 < 2 else b"\x00" + p[1:] for p in payloads]
    data = b"".join(map(framed, payloads))

    async def body() -> None:
        async with serving(_Script()) as server:
            client = await Client.connect(server)

            async def send() -> None:
                start = 0
                for cut in [*cuts, len(data)]:
                    await client.send(data[start : start + cut])
                    start += cut
                    await asyncio.sleep(0)

            sending = asyncio.ensure_future(send())
            assert [await client.answer() for _ in payloads] == expected
            await sending

    run(loop, body)


@both_loops
def test_a_client_that_does_not_read_is_served_no_further(loop: str) -> None:
    served: dict[int, int] = {}
    answer = b"a" * 100_000

    def handler(frame: memoryview, peer: Peer) -> list[bytes | memoryview]:
        served[peer.connection_id] = served.get(peer.connection_id, 0) + 1
        return [answer]

    async def body() -> None:
        async with serving(handler) as server:
            client = await Client.connect(server)
            count = 2000
            sending = asyncio.ensure_future(client.send(framed(b"more") * count))
            other = await Client.connect(server)
            before = -1
            while before != served.get(1):  # until it stands still
                before = served.get(1, 0)
                for _ in range(5):
                    await other.send(framed(b"x"))
                    await other.answer()
                await asyncio.sleep(0.05)
            assert served[1] < count
            for _ in range(count):
                assert await client.answer() == answer
            await sending

    run(loop, body)


@both_loops
def test_reading_stops_while_too_much_waits_behind_a_slow_request(loop: str) -> None:
    async def body() -> None:
        gate = asyncio.Event()

        async def later() -> list[bytes | memoryview]:
            await gate.wait()
            return [b"first"]

        def handler(frame: memoryview, peer: Peer) -> list[bytes | memoryview] | Awaitable[Any]:
            return later() if frame == b"slow" else [b"%d" % len(frame)]

        async with serving(handler) as server:
            client = await Client.connect(server)
            count = 40_000
            data = framed(b"slow") + framed(b"y" * 1000) * count
            sending = asyncio.ensure_future(client.send(data))
            await until(lambda: any(not c._reading for c in server.connections))
            (connection,) = server.connections
            assert connection._end - connection._start <= BUFFER_BYTES
            assert not sending.done()
            gate.set()
            assert await client.answer() == b"first"
            for _ in range(count):
                assert await client.answer() == b"1000"
            await sending

    run(loop, body)


@both_loops
def test_one_connection_with_many_requests_leaves_room_for_others(loop: str) -> None:
    order: list[int] = []

    def handler(frame: memoryview, peer: Peer) -> list[bytes | memoryview]:
        order.append(peer.connection_id)
        return [b"ok"]

    async def body() -> None:
        async with serving(handler) as server:
            busy, other = await Client.connect(server), await Client.connect(server)
            busy.socket.send(framed(b"") * (20 * FRAMES_A_TURN))
            other.socket.send(framed(b""))
            assert await other.answer() == b"ok"
            for _ in range(20 * FRAMES_A_TURN):
                assert await busy.answer() == b"ok"

    run(loop, body)
    assert order.index(2) <= 3 * FRAMES_A_TURN
    assert len(order) == 20 * FRAMES_A_TURN + 1


@both_loops
def test_idle_connections_are_closed_and_busy_ones_are_not(loop: str) -> None:
    async def body() -> None:
        gate = asyncio.Event()

        async def later() -> list[bytes | memoryview]:
            await gate.wait()
            return [b"done"]

        async with serving(lambda frame, peer: later(), idle_ms=80) as server:
            idle, loris, waiting = [await Client.connect(server) for _ in range(3)]
            await waiting.send(framed(b"x"))

            async def drip() -> None:
                with contextlib.suppress(ConnectionError):
                    for byte in framed(b"y" * 10_000):
                        await loris.send(bytes([byte]))
                        await asyncio.sleep(0.002)

            dripping = asyncio.ensure_future(drip())
            assert await idle.closed()
            assert await loris.closed()
            dripping.cancel()
            gate.set()
            assert await waiting.answer() == b"done"
            assert await waiting.closed()

    run(loop, body)


@both_loops
def test_connections_above_the_limit_are_refused(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with serving(echo, max_connections=2) as server:
            first, _ = await Client.connect(server), await Client.connect(server)
            await until(lambda: len(server.connections) == 2)
            for _ in range(5):
                third = await Client.connect(server)
                assert await third.closed()
            first.close()
            await until(lambda: len(server.connections) == 1)
            fourth = await Client.connect(server)
            await fourth.send(framed(b"x"))
            assert await fourth.answer() == b"echo:x"

    with caplog.at_level(logging.WARNING, "oncelog.net"):
        run(loop, body)
    assert caplog.text.count("max.connections=2") == 1


@both_loops
def test_a_thousand_idle_connections_cost_no_buffers(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            clients = [await Client.connect(server) for _ in range(1000)]
            for client in clients:
                await client.send(framed(b"x") + b"\x00\x00")  # and the beginning of another
            for client in clients:
                assert await client.answer() == b"echo:x"
            await until(lambda: all(c._tail == b"\x00\x00" for c in server.connections))
            assert len(server.connections) == 1000
            assert all(c._buffer is None and c._long is None for c in server.connections)
            assert len(server._spare) <= 1

    run(loop, body)


@both_loops
def test_a_length_alone_reserves_no_memory(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            client = await Client.connect(server)
            await client.send(struct.pack(">i", 100_000_000) + b"z" * 20_000)
            await until(lambda: any(c._got or c._end for c in server.connections))
            (connection,) = server.connections
            await until(lambda: connection._long is not None and connection._got == 20_000)
            assert connection._long is not None
            assert len(connection._long) == BUFFER_BYTES

    run(loop, body)


@both_loops
def test_close_waits_for_the_request_in_progress(loop: str) -> None:
    async def body() -> None:
        gate = asyncio.Event()
        started: list[bytes] = []

        async def later(payload: bytes) -> list[bytes | memoryview]:
            started.append(payload)
            await gate.wait()
            return [payload]

        server = await serve(lambda frame, peer: later(bytes(frame)), "127.0.0.1", 0, Limits(drain_ms=30_000))
        client, idle = await Client.connect(server), await Client.connect(server)
        await client.send(framed(b"one") + framed(b"two"))
        await until(lambda: started == [b"one"])
        closing = asyncio.ensure_future(server.close())
        assert await idle.closed()
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(server)
        gate.set()
        assert await client.answer() == b"one"
        assert await client.closed()
        await closing
        assert started == [b"one"]  # the second was not begun

    run(loop, body)


@both_loops
def test_close_gives_up_on_requests_that_never_end(loop: str) -> None:
    async def body() -> None:
        cancelled = []

        async def never() -> list[bytes | memoryview]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise
            return []

        server = await serve(lambda frame, peer: never(), "127.0.0.1", 0, Limits(drain_ms=20))
        client = await Client.connect(server)
        await client.send(framed(b"x"))
        await until(lambda: any(c._busy for c in server.connections))
        await server.close()
        assert cancelled == [True]
        assert await client.closed()
        await server.close()  # again: nothing to do

    run(loop, body)


@both_loops
def test_a_name_with_several_addresses_gets_one_port(loop: str) -> None:
    async def body() -> None:
        server = await serve(echo, "localhost", 0)
        assert server._listener is not None
        assert {sock.getsockname()[1] for sock in server._listener.sockets} == {server.port}
        await server.close()

    run(loop, body)
