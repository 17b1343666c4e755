"""Frames over real sockets: split anywhere, of any length, too many of them; and their memory."""

from __future__ import annotations

import asyncio
import logging
import mmap
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.net.frames import (
    BUFFER_BYTES,
    CROWD,
    CROWDED_GROWTH,
    MAPPED_BYTES,
    SMALL_BYTES,
)
from oncelog.net.server import FRAMES_A_TURN, JOIN_BYTES, Chunks, Deferred, Session
from oncelog.net.session import BUSY, UNREAD
from support.scarce_memory import refuse_large_memory
from support.sockets import Client, both_loops, echo, framed, run, serving
from support.turns import until

LONG_LIMIT = 8 * BUFFER_BYTES


@both_loops
def test_bytes_may_arrive_one_by_one(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            client = await Client.connect(server)
            for byte in framed(b"slow") + framed(b""):
                await client.send(bytes([byte]))
                await asyncio.sleep(0.001)
            assert [await client.answer(), await client.answer()] == [b"echo:slow", b"echo:"]

    run(loop, body)


@both_loops
@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_impossible_length_closes_the_connection(loop: str, length: int, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with serving(echo, max_request_size=1000) as server:
            client = await Client.connect(server)
            await client.send(framed(b"x" * 1000) + struct.pack(">i", length) + b"some bytes")
            assert await client.answer() == b"echo:" + b"x" * 1000  # earlier requests are answered
            assert await client.closed()
            await until(lambda: not server.connections)

    with caplog.at_level(logging.WARNING, "oncelog.net"):
        run(loop, body)
    assert f"the request has {length} bytes" in caplog.text


@both_loops
def test_long_frames_of_every_size_around_the_buffer(loop: str) -> None:
    sizes = [SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, BUFFER_BYTES - 5, BUFFER_BYTES - 4, BUFFER_BYTES - 3]
    sizes += [BUFFER_BYTES, 2 * BUFFER_BYTES + 7, LONG_LIMIT]
    payloads = [bytes([65 + index]) * size for index, size in enumerate(sizes)]

    async def body() -> None:
        def handler(frame: memoryview, session: Session) -> list[bytes | memoryview]:
            assert not frame.readonly
            return [struct.pack(">i", len(frame)), bytes(frame[:1]), bytes(frame[-1:])]

        async with serving(handler, max_request_size=LONG_LIMIT) as server:
            client = await Client.connect(server)
            sending = asyncio.ensure_future(client.send(b"".join(map(framed, payloads))))
            for payload in payloads:
                assert await client.answer() == struct.pack(">i", len(payload)) + payload[:1] + payload[-1:]
            await sending

    run(loop, body)


@both_loops
@pytest.mark.parametrize("version", [b"\x03\x00", b"\x03\x01", b"\x03\x03"])
def test_tls_handshake_is_named_in_the_error(loop: str, version: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            client = await Client.connect(server)
            await client.send(b"\x16" + version + b"\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(508))
            assert await client.closed()

    with caplog.at_level(logging.WARNING, "oncelog.net"):
        run(loop, body)
    assert "the client uses TLS" in caplog.text
    assert "security.protocol=PLAINTEXT" in caplog.text
    assert "the request has" not in caplog.text


class _Script:
    """The handler's action for each request, selected by its first byte."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, frame: memoryview, session: Session) -> list[bytes | memoryview] | Deferred | None:
        self.seen += 1
        kind = frame[0] if len(frame) else 0
        if kind % 3 == 0:
            return [bytes(frame)]
        if kind % 3 == 1:
            return Deferred(self.later(frame), keeps_frame=True)
        frame[0] = 0  # frames are writable
        return [bytes(frame)]

    async def later(self, frame: memoryview) -> list[bytes | memoryview]:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return [bytes(frame)]  # unchanged after others were read


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
def test_requests_split_anywhere_are_received_in_order(
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
def test_answer_that_ends_with_an_empty_piece_is_sent_completely(loop: str) -> None:
    def handler(frame: memoryview, session: Session) -> list[bytes | memoryview]:
        return [b"a" * (2 * JOIN_BYTES), b""]  # an old Fetch answer ends so if its last partition is empty

    async def body() -> None:
        async with serving(handler) as server:
            client = await Client.connect(server)
            await client.send(framed(b"more"))
            assert await client.answer() == b"a" * (2 * JOIN_BYTES)
            await client.send(struct.pack(">i", -1))
            assert await client.closed()  # unsent data keeps a transport from closing

    run(loop, body)


@both_loops
def test_answer_of_very_many_pieces_is_sent(loop: str) -> None:
    """uvloop silently drops an answer of more than 2**20 pieces."""
    small = [struct.pack(">i", number) for number in range(1_100_000)]
    pieces: list[bytes | memoryview] = [*small, b"L" * 10_000, memoryview(b"end")]

    async def body() -> None:
        async with serving(lambda frame, session: pieces) as server:
            client = await Client.connect(server)
            await client.send(framed(b"more"))
            assert await client.answer() == b"".join(pieces)

    run(loop, body)


@both_loops
def test_client_that_does_not_read_gets_no_more_answers(loop: str) -> None:
    served: dict[int, int] = {}
    answer = b"a" * 100_000

    def handler(frame: memoryview, session: Session) -> list[bytes | memoryview]:
        served[session.connection_id] = served.get(session.connection_id, 0) + 1
        return [answer]

    async def body() -> None:
        async with serving(handler) as server:
            client = await Client.connect(server)
            count = 2000
            sending = asyncio.ensure_future(client.send(framed(b"more") * count))
            other = await Client.connect(server)
            before = -1
            while before != served.get(1) or not any(
                c.session.muted & UNREAD for c in server.connections
            ):  # writing is paused
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
def test_reading_stops_while_too_much_is_queued_after_a_slow_request(loop: str) -> None:
    async def body() -> None:
        gate = asyncio.Event()

        async def later() -> list[bytes | memoryview]:
            await gate.wait()
            return [b"first"]

        def handler(frame: memoryview, session: Session) -> Chunks | Deferred:
            return Deferred(later()) if frame == b"slow" else [b"%d" % len(frame)]

        async with serving(handler) as server:
            client = await Client.connect(server)
            count = 40_000
            data = framed(b"slow") + framed(b"y" * 1000) * count
            sending = asyncio.ensure_future(client.send(data))
            await until(lambda: any(not c._reading for c in server.connections))
            (connection,) = server.connections
            assert connection._frames._end - connection._frames._start <= BUFFER_BYTES
            assert not sending.done()
            gate.set()
            assert await client.answer() == b"first"
            for _ in range(count):
                assert await client.answer() == b"1000"
            await sending

    run(loop, body)


@both_loops
def test_one_connection_with_many_requests_does_not_block_others(loop: str) -> None:
    order: list[int] = []

    def handler(frame: memoryview, session: Session) -> list[bytes | memoryview]:
        order.append(session.connection_id)
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
def test_thousand_idle_connections_use_no_buffers(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            clients = [await Client.connect(server) for _ in range(1000)]
            for client in clients:
                await client.send(framed(b"x") + b"\x00\x00")  # and the beginning of another
            for client in clients:
                assert await client.answer() == b"echo:x"
            await until(lambda: all(c._frames._tail == b"\x00\x00" for c in server.connections))
            assert len(server.connections) == 1000
            assert all(c._frames._buffer is None and c._frames._long is None for c in server.connections)
            assert len(server.buffers._spare) <= 1

    run(loop, body)


@both_loops
def test_length_alone_reserves_no_memory(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            client = await Client.connect(server)
            await client.send(struct.pack(">i", MAPPED_BYTES - 1) + b"z" * 20_000)
            await until(lambda: any(c._frames._got or c._frames._end for c in server.connections))
            (connection,) = server.connections
            await until(lambda: connection._frames._long is not None and connection._frames._got == 20_000)
            assert connection._frames._long is not None
            assert len(connection._frames._long) == BUFFER_BYTES

    run(loop, body)


@both_loops
def test_length_of_a_very_long_frame_alone_allocates_no_memory(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            clients = [await Client.connect(server) for _ in range(5)]
            before = _resident()
            for client in clients:
                await client.send(struct.pack(">i", 100_000_000) + b"z" * 20_000)
            await until(lambda: all(c._frames._got == 20_000 for c in server.connections))
            assert _resident() - before < 50_000_000

    run(loop, body)


@both_loops
def test_very_long_frame_is_answered(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            client = await Client.connect(server)
            payload = bytes(range(256)) * (MAPPED_BYTES // 256 + 1)
            await client.send(framed(payload) + framed(b"next"))
            assert await client.answer() == b"echo:" + payload
            assert await client.answer() == b"echo:next"

    run(loop, body)


@both_loops
def test_very_long_frame_is_answered_if_the_system_reserves_no_memory(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_large_memory(monkeypatch)
    test_very_long_frame_is_answered(loop)


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@both_loops
def test_many_incomplete_frames_use_little_more_memory_than_received(loop: str) -> None:
    many, part = 2 * CROWD, SMALL_BYTES + 1000

    async def body() -> None:
        async with serving(echo) as server:
            clients = [await Client.connect(server) for _ in range(many)]
            for client in clients:
                await client.send(struct.pack(">i", part + 100) + b"z" * part)
            await until(lambda: server.buffers.holders == many)
            small = [c for c in server.connections if c._frames._long is not None]
            assert len(small) >= many - CROWD - 1
            assert all(len(c._frames._long) <= CROWDED_GROWTH * part for c in small)
            for client in clients[1:]:
                await client.send(b"z" * 100)
                assert await client.answer() == b"echo:" + b"z" * (part + 100)
            assert server.buffers.holders == 1
            clients[0].close()
            await until(lambda: server.buffers.holders == 0)

    run(loop, body)


class _Gate:
    """Keep each request waiting until the gate is opened. The answers are the frames' lengths."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def __call__(self, frame: memoryview, session: Session) -> Deferred:
        return Deferred(self.later(len(frame)))

    async def later(self, length: int) -> list[bytes | memoryview]:
        await self.open.wait()
        return [b"%d" % length]


@both_loops
@pytest.mark.parametrize("size", [SMALL_BYTES + 1, BUFFER_BYTES - 4, 2 * BUFFER_BYTES])
def test_waiting_request_holds_no_buffer_unless_its_bytes_are_read(loop: str, size: int) -> None:
    async def body() -> None:
        gate = _Gate()
        async with serving(gate) as server:
            clients = [await Client.connect(server) for _ in range(20)]
            for client in clients:
                await client.send(framed(b"j" * size))
            await until(lambda: sum(c.session.muted & BUSY != 0 for c in server.connections) == len(clients))
            assert server.buffers.holders == 0
            assert all(
                c._frames._buffer is None and c._frames._long is None and not c._frames._tail
                for c in server.connections
            )
            gate.open.set()
            for client in clients:
                assert await client.answer() == b"%d" % size

    run(loop, body)


@both_loops
def test_bytes_after_many_waiting_requests_use_little_more_memory_than_their_size(loop: str) -> None:
    many, part = 2 * CROWD, SMALL_BYTES + 1000

    async def body() -> None:
        gate = _Gate()
        async with serving(gate) as server:
            clients = [await Client.connect(server) for _ in range(many)]
            for client in clients:
                await client.send(framed(b"j") + framed(b"k" * part) + framed(b"l" * part)[:part])
            await until(lambda: sum(c.session.muted & BUSY != 0 for c in server.connections) == many)
            await until(
                lambda: (
                    sum(len(c._frames._tail) + c._frames._end - c._frames._start for c in server.connections)
                    >= many * 2 * part
                )
            )
            assert server.buffers.holders <= CROWD + 1
            gate.open.set()
            for client in clients:
                await client.send(b"l" * 4)
                assert [await client.answer() for _ in range(3)] == [b"1", b"%d" % part, b"%d" % part]

    run(loop, body)
