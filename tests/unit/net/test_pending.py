"""Responses that wait while the server handles further requests of the same connection, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.net.frames import BUFFER_BYTES, SMALL_BYTES
from oncelog.net.replies import MOST_PENDING, Deferred
from oncelog.net.server import BadFrameError, Chunks, Limits, Listener, Server, Session
from support.sockets import Client, both_loops, framed, run, serving
from support.turns import until

Result = Chunks | Deferred | None


def append_next(head: memoryview) -> bool:
    return bytes(head[:6]) == b"append"


class Appends:
    """Requests that begin with `append` are pending until they are committed. All others are answered at once."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self._gates: dict[bytes, asyncio.Future[None]] = {}

    def __call__(self, frame: memoryview, session: Session) -> Result:
        payload = bytes(frame)
        self.handled.append(payload)
        if payload == b"append broken":
            raise BadFrameError("append broken")
        if payload == b"append silent":
            return None
        if payload == b"append quick":
            return [payload]
        return Deferred(self._wait(payload), admits=append_next) if append_next(frame) else [payload]

    async def _wait(self, payload: bytes) -> list[bytes]:
        gate = self._gates[payload] = asyncio.get_running_loop().create_future()
        try:
            await gate
        finally:
            del self._gates[payload]
        return [payload]

    @property
    def pending(self) -> list[bytes]:
        return list(self._gates)

    def waits(self, payload: bytes) -> bool:
        return payload in self._gates

    def commit(self, *payloads: bytes) -> None:
        for payload in payloads or self.pending:
            self._gates[payload].set_result(None)

    def fail(self, payload: bytes) -> None:
        self._gates[payload].set_exception(RuntimeError("lost"))


def appends(count: int, start: int = 1) -> list[bytes]:
    return [b"append %d" % number for number in range(start, start + count)]


@both_loops
@pytest.mark.parametrize("backwards", [False, True])
def test_later_requests_are_handled_while_earlier_ones_wait(loop: str, backwards: bool) -> None:
    async def body() -> None:
        handler = Appends()
        async with serving(handler) as server:
            client = await Client.connect(server)
            requests = [*appends(2), b"append quick", b"append silent", *appends(2, 3)]
            for request in requests:
                await client.send(framed(request))
            await until(lambda: handler.handled == requests)
            for request in reversed(handler.pending) if backwards else handler.pending:
                handler.commit(request)
                await asyncio.sleep(0.001)
            requests.remove(b"append silent")
            assert [await client.answer() for _ in requests] == requests

    run(loop, body)


@both_loops
def test_request_that_is_not_admitted_waits_for_its_turn(loop: str) -> None:
    async def body() -> None:
        handler = Appends()
        async with serving(handler) as server:
            client = await Client.connect(server)
            requests = [b"read 0", *appends(3), b"read 1", *appends(2, 4), b"read 2"]
            await client.send(b"".join(map(framed, requests)))
            assert await client.answer() == b"read 0"
            await until(lambda: len(handler.pending) == 3)
            handler.commit(b"append 1", b"append 2")
            assert [await client.answer(), await client.answer()] == requests[1:3]
            assert handler.handled == requests[:4]
            handler.commit()
            await until(lambda: len(handler.pending) == 2)
            assert handler.handled == requests[:-1]
            handler.commit()
            assert [await client.answer() for _ in requests[3:]] == requests[3:]

    run(loop, body)


@both_loops
@pytest.mark.parametrize("size", [1, 3 * SMALL_BYTES, BUFFER_BYTES + 1])
def test_number_of_pending_requests_is_limited(loop: str, size: int) -> None:
    async def body() -> None:
        handler = Appends()
        async with serving(handler) as server:
            client = await Client.connect(server)
            requests = [request + b" " * size for request in appends(3 * MOST_PENDING)]
            sending = asyncio.ensure_future(client.send(b"".join(map(framed, requests))))
            await until(lambda: len(handler.pending) == MOST_PENDING)
            await asyncio.sleep(0.02)
            assert len(handler.handled) == MOST_PENDING
            (connection,) = server.connections
            assert connection._frames._end - connection._frames._start <= BUFFER_BYTES
            for request in requests:
                await until(partial(handler.waits, request))
                handler.commit(request)
                assert await client.answer() == request
            await sending

    run(loop, body)


@both_loops
@pytest.mark.parametrize("bad", [framed(b"append broken"), struct.pack(">i", -1)], ids=["handler", "length"])
def test_failure_closes_the_connection_after_the_earlier_answers(
    loop: str, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        handler = Appends()
        async with serving(handler) as server:
            client = await Client.connect(server)
            await client.send(framed(b"read 0") + b"".join(map(framed, appends(2))) + bad + framed(b"append never"))
            assert await client.answer() == b"read 0"
            await until(lambda: len(handler.pending) == 2)
            await client.send(framed(b"append never"))
            handler.commit(b"append 2")
            await asyncio.sleep(0.01)
            assert "closing" not in caplog.text
            handler.commit(b"append 1")
            assert [await client.answer(), await client.answer()] == appends(2)
            assert await client.closed()
            assert b"append never" not in handler.handled

    with caplog.at_level(logging.WARNING, "oncelog.net"):
        run(loop, body)
    assert caplog.text.count("closing") == 1


@both_loops
def test_answer_that_fails_closes_the_connection_in_its_turn(loop: str) -> None:
    async def body() -> None:
        handler = Appends()
        async with serving(handler) as server:
            client = await Client.connect(server)
            await client.send(b"".join(map(framed, appends(3))))
            await until(lambda: len(handler.pending) == 3)
            handler.fail(b"append 2")
            handler.commit(b"append 3")
            await asyncio.sleep(0.01)
            handler.commit(b"append 1")
            assert await client.answer() == b"append 1"
            assert await client.closed()

    run(loop, body)


@both_loops
def test_disconnect_ends_the_waits(loop: str) -> None:
    async def body() -> None:
        handler = Appends()
        async with serving(handler) as server:
            client = await Client.connect(server)
            await client.send(b"".join(map(framed, [*appends(3), b"read"])))
            await until(lambda: len(handler.pending) == 3)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            await until(lambda: not server.connections)
            await until(lambda: not handler.pending and not server._tasks)
            assert handler.handled == appends(3)

    run(loop, body)


@both_loops
def test_client_that_closes_its_sending_side_gets_all_answers(loop: str) -> None:
    async def body() -> None:
        handler = Appends()
        async with serving(handler) as server:
            client = await Client.connect(server)
            requests = [*appends(2), b"read", *appends(1, 3)]
            await client.send(b"".join(map(framed, requests)))
            client.socket.shutdown(socket.SHUT_WR)
            await until(lambda: any(c.session.gone for c in server.connections))
            assert handler.handled == appends(2)
            handler.commit()
            await until(lambda: handler.pending == [b"append 3"])
            handler.commit()
            assert [await client.answer() for _ in requests] == requests
            assert await client.closed()

    run(loop, body)


@both_loops
def test_waiting_connection_is_not_idle(loop: str) -> None:
    async def body() -> None:
        handler = Appends()
        async with serving(handler, idle_ms=40) as server:
            client = await Client.connect(server)
            await client.send(framed(b"append 1"))
            await asyncio.sleep(0.2)
            handler.commit()
            assert await client.answer() == b"append 1"

    run(loop, body)


@both_loops
def test_close_waits_for_all_answers_and_handles_no_more(loop: str) -> None:
    async def body() -> None:
        handler = Appends()
        server = Server(handler, Limits(drain_ms=30_000))
        await server.listen([Listener("127.0.0.1", 0)])
        client = await Client.connect(server)
        await client.send(b"".join(map(framed, appends(2))))
        await until(lambda: len(handler.pending) == 2)
        closing = asyncio.ensure_future(server.close())
        await asyncio.sleep(0.01)
        await client.send(framed(b"append 3"))
        handler.commit(b"append 1")
        assert await client.answer() == b"append 1"
        handler.commit(b"append 2")
        assert await client.answer() == b"append 2"
        assert await client.closed()
        await closing
        assert handler.handled == appends(2)

    run(loop, body)


class _Script:
    """The handler's action for each request, selected by its first byte: capital letters are admitted early."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.unanswered = 0
        self.busy = 0

    def __call__(self, frame: memoryview, session: Session) -> Result:
        kind = bytes(frame[:1])
        assert not self.busy
        assert kind.isupper() or not self.unanswered
        self.handled.append(bytes(frame))
        if kind in b"iI":
            return [bytes(frame)]
        if kind in b"hH":
            return Deferred(self._busily(frame), keeps_frame=True)
        copied = memoryview(bytes(frame))
        if kind == b"P":
            return Deferred(self._later(copied), admits=lambda head: head[0] < 97)
        return Deferred(self._busily(copied))

    async def _busily(self, frame: memoryview) -> list[bytes]:
        self.busy += 1
        answer = await self._later(frame)
        self.busy -= 1
        return answer

    async def _later(self, frame: memoryview) -> list[bytes]:
        self.unanswered += 1
        for _ in range(frame[-1]):
            await asyncio.sleep(0)
        self.unanswered -= 1
        return [bytes(frame)]


requests = st.lists(
    st.tuples(
        st.sampled_from(list(b"ihwPPPPPIHW")),
        st.sampled_from([1, 50, SMALL_BYTES, 9000, BUFFER_BYTES - 4, BUFFER_BYTES + 9]),
        st.integers(0, 9),
    ),
    max_size=25,
)


@both_loops
@settings(max_examples=25, deadline=None)
@given(wanted=requests, cuts=st.lists(st.integers(1, 400_000), max_size=20))
def test_all_kinds_of_requests_are_handled_and_answered_in_order(
    loop: str, wanted: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    payloads = [bytes([kind]) + bytes([index]) * size + bytes([w]) for index, (kind, size, w) in enumerate(wanted)]
    data = b"".join(map(framed, payloads))

    async def body() -> None:
        handler = _Script()
        async with serving(handler) as server:
            client = await Client.connect(server)

            async def send() -> None:
                start = 0
                for cut in [*cuts, len(data)]:
                    await client.send(data[start : start + cut])
                    start += cut
                    await asyncio.sleep(0)

            sending = asyncio.ensure_future(send())
            assert [await client.answer() for _ in payloads] == payloads
            assert handler.handled == payloads
            await sending

    run(loop, body)
