"""The life of connections and of the server, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct

import pytest

from oncelog.net import admission
from oncelog.net.admission import ConnectionQuotas
from oncelog.net.frames import SMALL_BYTES
from oncelog.net.server import BadFrameError, Chunks, Deferred, Limits, Listener, Server, ServerConnection, Session
from oncelog.net.session import BUSY, Deadline
from support.sockets import Client, both_loops, echo, framed, run, serving
from support.turns import until

INNER, OUTER = Listener(name="INNER", protected=True), Listener(name="OUTER")


@both_loops
def test_request_is_answered(loop: str) -> None:
    async def body() -> None:
        async with serving(echo) as server:
            client = await Client.connect(server)
            await client.send(framed(b"hello"))
            assert await client.answer() == b"echo:hello"

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

        def handler(frame: memoryview, session: Session) -> Chunks | Deferred:
            payload = bytes(frame)
            served.append(payload)
            return Deferred(later(payload, gate)) if payload.startswith(b"slow") else [payload]

        async with serving(handler) as server:
            client = await Client.connect(server)
            requests = [b"slow 1", b"quick 2", b"slow 3", b"quick 4", b"quick 5"]
            await client.send(b"".join(map(framed, requests)))
            other = await Client.connect(server)
            await other.send(framed(b"other"))
            assert await other.answer() == b"other"  # other connections do not wait
            assert served == [b"slow 1", b"other"]
            gate.set()
            assert [await client.answer() for _ in requests] == requests

    run(loop, body)


@both_loops
def test_no_response_if_the_handler_returns_none(loop: str) -> None:
    async def silent() -> None:
        await asyncio.sleep(0)

    async def body() -> None:
        def handler(frame: memoryview, session: Session) -> Chunks | Deferred | None:
            if frame == b"sync":
                return None
            return Deferred(silent()) if frame == b"async" else [bytes(frame)]

        async with serving(handler) as server:
            client = await Client.connect(server)
            await client.send(framed(b"sync") + framed(b"async") + framed(b"asked"))
            assert await client.answer() == b"asked"

    run(loop, body)


@both_loops
def test_handler_that_raises_closes_only_its_connection(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise RuntimeError("broken later")

    def handler(frame: memoryview, session: Session) -> Chunks | Deferred:
        if frame == b"bad":
            raise BadFrameError("API key 99 is not supported")
        if frame == b"broken":
            raise RuntimeError("broken now")
        return Deferred(broken()) if frame == b"broken later" else [bytes(frame)]

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
    traces = {record.getMessage().partition(": ")[2]: bool(record.exc_info) for record in caplog.records}
    assert traces == {
        "API key 99 is not supported": False,
        "a request failed: RuntimeError('broken now')": True,
        "a request failed: RuntimeError('broken later')": True,
    }


@both_loops
def test_abrupt_close_leaves_no_task(loop: str) -> None:
    async def body() -> None:
        gate = asyncio.Event()
        finished = []

        async def later(frame: memoryview) -> list[bytes | memoryview]:
            await gate.wait()
            finished.append(bytes(frame))
            return [b"late"]

        async with serving(lambda frame, session: Deferred(later(frame))) as server:
            for payload in (b"x", b"y" * (SMALL_BYTES * 4)):
                client = await Client.connect(server)
                await client.send(framed(payload) + b"\x00\x00")
                await until(lambda: any(c.session.muted & BUSY for c in server.connections))
                linger = struct.pack("ii", 1, 0)
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                client.close()
                await until(lambda: not server.connections)
            gate.set()
            await until(lambda: len(finished) == 2)
            assert finished == [b"x", b"y" * (SMALL_BYTES * 4)]  # the frames were not changed

    run(loop, body)


@both_loops
def test_client_that_closes_its_sending_side_still_gets_its_answer(loop: str) -> None:
    async def body() -> None:
        gate = asyncio.Event()

        async def later() -> list[bytes | memoryview]:
            await gate.wait()
            return [b"late"]

        async with serving(lambda frame, session: Deferred(later())) as server:
            client = await Client.connect(server)
            await client.send(framed(b"x"))
            await until(lambda: any(c.session.muted & BUSY for c in server.connections))
            client.socket.shutdown(socket.SHUT_WR)
            await until(lambda: any(c.session.gone for c in server.connections))
            gate.set()
            assert await client.answer() == b"late"
            assert await client.closed()

    run(loop, body)


@both_loops
def test_callback_that_is_added_after_the_client_has_gone_is_called_at_once(loop: str) -> None:
    """A worker thread may have decoded the request meanwhile. The handler must not wait for a client that has gone."""

    async def body() -> None:
        gate = asyncio.Event()
        answered = asyncio.Event()

        async def waiting(session: Session) -> list[bytes | memoryview]:
            await gate.wait()
            gone = asyncio.Event()
            with session.on_disconnect(gone.set):
                await gone.wait()
            assert not session.waiting
            answered.set()
            return [b"late"]

        async with serving(lambda frame, session: Deferred(waiting(session))) as server:
            client = await Client.connect(server)
            await client.send(framed(b"x"))
            await until(lambda: any(c.session.muted & BUSY for c in server.connections))
            client.close()
            await until(lambda: all(c.session.gone for c in server.connections))
            gate.set()
            await asyncio.wait_for(answered.wait(), 60)

    run(loop, body)


@both_loops
def test_idle_connections_are_closed_and_active_ones_are_not(loop: str) -> None:
    async def body() -> None:
        gate = asyncio.Event()

        async def later() -> list[bytes | memoryview]:
            await gate.wait()
            return [b"done"]

        async with serving(lambda frame, session: Deferred(later()), idle_ms=80) as server:
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


def test_nearest_deadline_decides_when_a_session_ends() -> None:
    session = Session()
    assert session.missed(1e9) is None
    session.deadlines[Deadline.IDLE] = 10.0
    assert session.missed(9.9) is None
    assert session.missed(10.0) is Deadline.IDLE


@both_loops
def test_limit_of_a_request_is_read_for_each_request(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    """So a request may raise the limit of the next one, also if both arrive together."""

    def handler(frame: memoryview, session: Session) -> Chunks:
        session.request_limit = int(bytes(frame))
        return [bytes(frame)]

    async def body() -> None:
        async with serving(handler, max_request_size=2) as server:
            client = await Client.connect(server)
            await client.send(framed(b"09") + framed(b"000000003") + framed(b"5"))
            assert [await client.answer() for _ in range(3)] == [b"09", b"000000003", b"5"]
            await client.send(framed(b"000006"))
            assert await client.closed()
            other = await Client.connect(server)
            await other.send(framed(b"003"))
            assert await other.closed()

    run(loop, body)
    assert "the request has 6 bytes, but socket.request.max.bytes allows 0 to 5" in caplog.text


@both_loops
def test_connections_above_the_limit_wait(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with serving(echo, connections=ConnectionQuotas(max_connections=2)) as server:
            first, second = await Client.connect(server), await Client.connect(server)
            await until(lambda: len(server.connections) == 2)
            waiting = [await Client.connect(server) for _ in range(3)]
            for index, client in enumerate(waiting):
                await client.send(framed(str(index).encode()) + framed(b"then"))
            await until(lambda: server.entrance.waiting == 3)
            await second.send(framed(b"x"))
            assert await second.answer() == b"echo:x"
            waiting[0].close()
            await until(lambda: server.entrance.waiting == 2)
            first.close()
            assert [await waiting[1].answer() for _ in range(2)] == [b"echo:1", b"echo:then"]
            assert server.entrance.waiting == 1
            server.entrance.limit(ConnectionQuotas(max_connections=3))
            assert [await waiting[2].answer() for _ in range(2)] == [b"echo:2", b"echo:then"]

    with caplog.at_level(logging.WARNING, "oncelog.net"):
        run(loop, body)
    assert caplog.text.count("max.connections=2 is reached") == 1


@both_loops
def test_waiting_connections_are_bounded(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot take the descriptors of logs, either."""
    monkeypatch.setattr(admission, "MOST_WAITING", 2)

    async def body() -> None:
        for quotas in (ConnectionQuotas(max_connections=1), ConnectionQuotas(max_connections=1, descriptors=3)):
            async with serving(echo, connections=quotas) as server:
                clients = [await Client.connect(server) for _ in range(4)]
                assert await clients[3].closed()
                await until(lambda: len(server.connections) == 3)
                assert server.entrance.waiting == 2

    run(loop, body)


@both_loops
def test_connections_of_one_address_are_limited(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line for all refused connections together."""

    async def body() -> None:
        quotas = ConnectionQuotas(per_address=1, of_addresses={"127.0.0.2": 0})
        async with serving(echo, connections=quotas) as server:
            first = await Client.connect(server)
            await first.send(framed(b"x"))
            assert await first.answer() == b"echo:x"
            for _ in range(5):
                second = await Client.connect(server)
                assert await second.closed()
            first.close()
            await until(lambda: not server.connections)
            third = await Client.connect(server)
            await third.send(framed(b"x"))
            assert await third.answer() == b"echo:x"

    with caplog.at_level(logging.WARNING, "oncelog.net"):
        run(loop, body)
    assert caplog.text.count("max.connections.per.ip allows 1") == 1


@both_loops
def test_new_connections_wait_for_the_rate(loop: str) -> None:
    async def body() -> None:
        async with serving(echo, connections=ConnectionQuotas(creation_rate=1)) as server:
            clients = [await Client.connect(server) for _ in range(12)]
            for client in clients:
                await client.send(framed(b"x"))
            await until(lambda: server.entrance.waiting > 0)
            assert [await client.answer() for client in clients] == [b"echo:x"] * 12

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

        server = Server(lambda frame, session: Deferred(later(bytes(frame))), Limits(drain_ms=30_000))
        await server.listen([Listener("127.0.0.1", 0)])
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
        assert started == [b"one"]  # the second was not started

    run(loop, body)


def test_connection_during_the_close_is_rejected_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The loop may accept a connection before `close`, and report it to the server afterwards."""

    async def body() -> None:
        gate = asyncio.Event()

        async def later() -> list[bytes | memoryview]:
            await gate.wait()
            return [b"done"]

        server = Server(lambda frame, session: Deferred(later()), Limits(drain_ms=30_000))
        await server.listen([Listener("127.0.0.1", 0)])
        client = await Client.connect(server)
        await client.send(framed(b"x"))
        await until(lambda: any(c.session.muted & BUSY for c in server.connections))
        closing = asyncio.ensure_future(server.close())
        await until(lambda: server._drained is not None)
        assert server.register(ServerConnection(server, OUTER)) == 0
        gate.set()
        assert await client.answer() == b"done"
        await closing

    with caplog.at_level(logging.WARNING, "oncelog.net"):
        asyncio.run(body())
    assert caplog.text == ""


@both_loops
def test_close_abandons_requests_that_never_end(loop: str) -> None:
    async def body() -> None:
        cancelled = []

        async def never() -> list[bytes | memoryview]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise
            return []

        server = Server(lambda frame, session: Deferred(never()), Limits(drain_ms=20))
        await server.listen([Listener("127.0.0.1", 0)])
        client = await Client.connect(server)
        await client.send(framed(b"x"))
        await until(lambda: any(c.session.muted & BUSY for c in server.connections))
        await server.close()
        assert cancelled == [True]
        assert await client.closed()
        await server.close()  # a repeated close does nothing

    run(loop, body)


@both_loops
def test_name_with_several_addresses_gets_one_port(loop: str) -> None:
    async def body() -> None:
        server = Server(echo)
        await server.listen([Listener("localhost", 0)])
        assert {sock.getsockname()[1] for sock in server.ports._bound[0].sockets} == {server.port}
        await server.close()

    run(loop, body)


@both_loops
def test_request_knows_its_listener(loop: str) -> None:
    """The limit counts the connections of all listeners together."""

    async def body() -> None:
        limits = Limits(connections=ConnectionQuotas(max_connections=2))
        server = Server(lambda frame, session: [session.listener.name.encode()], limits)
        await server.listen([Listener(name="INNER"), OUTER])
        assert list(server.listeners) == ["INNER", "OUTER"]
        assert server.port == server.listeners["INNER"].port
        for name, listener in server.listeners.items():
            client = await Client.to_port(listener.port)
            await client.send(framed(b"x"))
            assert await client.answer() == name.encode()
        third = await Client.connect(server)
        await until(lambda: server.entrance.waiting == 1)
        await server.close()
        assert await third.closed()

    run(loop, body)


@both_loops
def test_connection_of_the_protected_listener_replaces_the_most_idle_client(loop: str) -> None:
    async def body() -> None:
        server = Server(echo, Limits(connections=ConnectionQuotas(max_connections=3)))
        await server.listen([INNER, OUTER])
        idle, busy, left = [await Client.to_port(server.listeners["OUTER"].port) for _ in range(3)]
        await until(lambda: len(server.connections) == 3)
        left.close()
        await until(lambda: len(server.connections) == 2)
        inner = [await Client.to_port(server.listeners["INNER"].port)]
        await until(lambda: len(server.connections) == 3)
        for connection in server.connections:
            connection.sweep(server.loop.time(), 600)
        await busy.send(framed(b"x"))
        assert await busy.answer() == b"echo:x"
        outer = await Client.to_port(server.listeners["OUTER"].port)
        await until(lambda: server.entrance.waiting == 1)
        inner.append(await Client.to_port(server.listeners["INNER"].port))
        assert await idle.closed()
        await busy.send(framed(b"y"))
        assert await busy.answer() == b"echo:y"
        inner.append(await Client.to_port(server.listeners["INNER"].port))
        assert await busy.closed()
        fourth = await Client.to_port(server.listeners["INNER"].port)
        await until(lambda: server.entrance.waiting == 2)
        for client in inner:
            await client.send(framed(b"z"))
            assert await client.answer() == b"echo:z"
        inner[0].close()
        await fourth.send(framed(b"z"))
        assert await fourth.answer() == b"echo:z"
        outer.close()
        await until(lambda: not server.entrance.waiting)
        await server.close()

    run(loop, body)


@both_loops
def test_bound_server_accepts_connections_only_when_it_serves(loop: str) -> None:
    async def body() -> None:
        server = Server(echo)
        await server.bind([Listener("127.0.0.1", 0)])
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(server)
        await server.serve()
        client = await Client.connect(server)
        await client.send(framed(b"x"))
        assert await client.answer() == b"echo:x"
        await server.close()

    run(loop, body)


@both_loops
def test_server_that_cannot_bind_an_address_listens_on_none(loop: str) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            server = Server(echo)
            with pytest.raises(OSError, match="address already in use"):
                await server.listen([Listener("127.0.0.1", 0), Listener("127.0.0.1", taken.getsockname()[1], "OUTER")])
            with pytest.raises(ConnectionRefusedError):
                await Client.connect(server)
            await server.close()

    run(loop, body)
