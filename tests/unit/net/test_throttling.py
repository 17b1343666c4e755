"""Connections whose client must pause, over real sockets."""

from __future__ import annotations

import socket

from oncelog.net.server import Chunks, Session
from oncelog.net.session import CLOSED, THROTTLED
from support.sockets import Client, both_loops, framed, run, serving
from support.turns import until


@both_loops
def test_throttled_connection_gets_no_further_response_while_others_do(loop: str) -> None:
    async def body() -> None:
        sessions: list[Session] = []

        def handler(frame: memoryview, session: Session) -> Chunks:
            if frame == b"hour":
                session.throttle(3600.0)
                session.throttle(0.0)  # a shorter pause ends no longer one
                sessions.append(session)
            return [bytes(frame)]

        async with serving(handler) as server:
            throttled, other = await Client.connect(server), await Client.connect(server)
            await throttled.send(framed(b"hour") + framed(b"next"))
            assert await throttled.answer() == b"hour"
            for _ in range(50):
                await other.send(framed(b"other"))
                assert await other.answer() == b"other"
            assert sessions[0].muted == THROTTLED
            assert throttled.received == b""
            throttled.socket.shutdown(socket.SHUT_WR)
            await other.send(framed(b"other"))
            assert await other.answer() == b"other"
            assert not sessions[0].muted & CLOSED, "the request that was sent is answered after the pause"

    run(loop, body)


@both_loops
def test_throttled_connection_is_served_after_the_pause(loop: str) -> None:
    async def body() -> None:
        def handler(frame: memoryview, session: Session) -> Chunks:
            if frame == b"pause":
                session.throttle(0.001)
            return [bytes(frame)]

        async with serving(handler) as server:
            client = await Client.connect(server)
            requests = [b"pause", b"one", b"pause", b"two", b"x" * 1_000_000, b"three"]
            await client.send(b"".join(map(framed, requests)))
            client.socket.shutdown(socket.SHUT_WR)
            assert [await client.answer() for _ in requests] == requests
            assert await client.closed()

    run(loop, body)


@both_loops
def test_client_that_leaves_during_its_pause_takes_no_connection(loop: str) -> None:
    async def body() -> None:
        def handler(frame: memoryview, session: Session) -> Chunks:
            session.throttle(3600.0)
            return [bytes(frame)]

        async with serving(handler) as server:
            for _ in range(5):
                client = await Client.connect(server)
                await client.send(framed(b"hour"))
                await client.answer()
                client.socket.close()
            await until(lambda: not server.connections)

    run(loop, body)


@both_loops
def test_pause_of_a_lost_connection_is_forgotten(loop: str) -> None:
    async def body() -> None:
        def handler(frame: memoryview, session: Session) -> Chunks:
            session.throttle(3600.0)
            return [bytes(frame)]

        async with serving(handler) as server:
            client = await Client.connect(server)
            await client.send(framed(b"hour"))
            await client.answer()
            [connection] = server.connections
            connection.abort()
            assert await client.closed()
            await until(lambda: not server.connections)
            assert connection._throttled is None
            connection.session.throttle(3600.0)
            assert connection._throttled is None

    run(loop, body)
