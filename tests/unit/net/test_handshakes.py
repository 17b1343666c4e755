"""TLS on a server's listener: handshakes that succeed, fail, take too long or come in a flood."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.net import alerts, handshakes
from oncelog.net.admission import ConnectionQuotas
from oncelog.net.server import Limits, Listener, Server
from oncelog.net.tls_files import OwnTls, ServerTlsFiles, Store
from support.certificates import authority, signed_by
from support.sockets import Client, both_loops, echo, framed, run
from support.turns import until

HOST = "localhost"


class Certificates:
    """An authority, the server's files, and contexts of clients that trust it."""

    def __init__(self, folder: Path) -> None:
        self.authority = authority()
        self.key = folder / "server.pem"
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.authority.certificate_pem)
        self.folder = folder
        self.write()

    def write(self, name: str = HOST) -> None:
        pair = signed_by(self.authority, name)
        self.key.write_bytes(pair.key_pem() + pair.certificate_pem)

    def server(self, clients: ssl.VerifyMode = ssl.CERT_NONE) -> ServerTlsFiles:
        trust = Store("ssl.truststore.location", str(self.ca))
        return ServerTlsFiles(Store("ssl.keystore.location", str(self.key)), trust=trust, clients=clients)

    def client(self, name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if name is not None:
            certificate, key = signed_by(self.authority, name).write(self.folder, name)
            context.load_cert_chain(certificate, key)
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@contextlib.asynccontextmanager
async def serving(tls: Any, handler: Any = echo, **limits: Any) -> AsyncIterator[Server]:
    server = Server(handler, Limits(**limits))
    await server.listen([Listener("127.0.0.1", 0, protocol="SSL", tls=tls)])
    try:
        yield server
    finally:
        await server.close()


async def ask(server: Server, context: ssl.SSLContext, *payloads: bytes) -> list[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname=HOST)
    try:
        writer.write(b"".join(map(framed, payloads)))
        answers = []
        for _ in payloads:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answers.append(await reader.readexactly(size))
        return answers
    finally:
        writer.close()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()


@both_loops
def test_requests_are_answered_over_tls(loop: str, certificates: Certificates) -> None:
    async def body() -> None:
        async with serving(OwnTls(certificates.server().load())) as server:
            big = bytes(300_000)
            assert await ask(server, certificates.client(), b"a", b"b") == [b"echo:a", b"echo:b"]
            assert await ask(server, certificates.client(), big, big, b"c") == [b"echo:" + big] * 2 + [b"echo:c"]
            await until(lambda: not server.connections)

    run(loop, body)


@both_loops
def test_client_certificate_is_required(loop: str, certificates: Certificates) -> None:
    async def body() -> None:
        async with serving(OwnTls(certificates.server(ssl.CERT_REQUIRED).load())) as server:
            assert await ask(server, certificates.client("alice"), b"a") == [b"echo:a"]
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await ask(server, certificates.client(), b"a")
            await until(lambda: not server.connections)

    run(loop, body)


@both_loops
def test_bytes_that_are_no_tls_close_the_connection(loop: str, certificates: Certificates) -> None:
    async def body() -> None:
        async with serving(OwnTls(certificates.server().load())) as server:
            client = await Client.connect(server)
            await client.send(framed(b"plain text"))
            while await client.loop.sock_recv(client.socket, 1000):
                pass  # a TLS alert
            await until(lambda: not server.connections)
            assert await ask(server, certificates.client(), b"a") == [b"echo:a"]

    run(loop, body)


@both_loops
def test_slow_handshakes_end_and_do_not_delay_others(
    loop: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "DEADLINE_S", 0.2)

    async def body() -> None:
        async with serving(OwnTls(certificates.server().load())) as server:
            silent = [await Client.connect(server) for _ in range(20)]
            assert await ask(server, certificates.client(), b"a") == [b"echo:a"]
            assert all([await each.closed() for each in silent])
            await until(lambda: not server.ports.handshakes)

    run(loop, body)


@both_loops
def test_flood_of_handshakes_ends_the_oldest(
    loop: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "MOST", 4)

    async def body() -> None:
        async with serving(OwnTls(certificates.server().load())) as server:
            silent = [await Client.connect(server) for _ in range(10)]
            assert all([await each.closed() for each in silent[:6]])
            assert await ask(server, certificates.client(), b"a") == [b"echo:a"]
            assert server.ports.handshakes <= 4

    run(loop, body)


def flight(context: ssl.SSLContext) -> bytes:
    """Return the first message of a client."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST).do_handshake()
    return outgoing.read()


@both_loops
def test_clients_without_an_answer_give_way_before_others(
    loop: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could send their first message all at once, and the answer costs a signature."""
    monkeypatch.setattr(handshakes, "MOST_UNANSWERED", 3)

    async def body() -> None:
        async with serving(OwnTls(certificates.server().load())) as server:
            hello = flight(certificates.client())
            for _ in range(10):
                answered = await Client.connect(server)
                await answered.send(hello)
                assert await answered.loop.sock_recv(answered.socket, 100_000)
            silent = []
            for _ in range(10):
                silent.append(await Client.connect(server))
                port = silent[-1].socket.getsockname()[1]
                await until(lambda port=port: begun(server, port))
            assert all([await each.closed() for each in silent[:7]])
            await until(lambda: server.ports.handshakes == 13)
            assert await ask(server, certificates.client(), b"a") == [b"echo:a"]

    run(loop, body)


@both_loops
def test_client_that_is_asked_for_another_first_message_has_no_answer(loop: str, certificates: Certificates) -> None:
    async def body() -> None:
        tls = certificates.server().load()
        tls.set_ecdh_curve("secp384r1")  # clients begin with another one
        async with serving(OwnTls(tls)) as server:
            asked = await Client.connect(server)
            await asked.send(flight(certificates.client()))
            assert b"\xcf\x21\xad\x74" in await asked.loop.sock_recv(asked.socket, 100_000)  # HelloRetryRequest
            assert [own.unanswered for _, _, own in acceptor(server)] == [True]

    run(loop, body)


def begun(server: Server, port: int) -> bool:
    """Return whether the handshake of the client with this port is in progress, and is the newest one."""
    newest, _, own = acceptor(server)[-1]
    return own.unanswered and newest.getpeername()[1] == port


def acceptor(server: Server) -> list[Any]:
    """Return the handshakes in progress of the only listener."""
    return list(server.ports._acceptors[0]._handshakes.values())


@both_loops
def test_server_closes_during_a_handshake(loop: str, certificates: Certificates) -> None:
    async def body() -> None:
        async with serving(OwnTls(certificates.server().load()), drain_ms=10) as server:
            client = await Client.connect(server)
            await until(lambda: server.ports.handshakes == 1)
        assert await client.closed()
        assert server.ports.handshakes == 0

    run(loop, body)


@both_loops
def test_connections_are_admitted_before_their_handshakes(loop: str, certificates: Certificates) -> None:
    """A failed handshake makes room for the next connection."""

    async def body() -> None:
        tls, quotas = OwnTls(certificates.server().load()), ConnectionQuotas(max_connections=1)
        async with serving(tls, connections=quotas) as server:
            silent = await Client.connect(server)
            await until(lambda: server.ports.handshakes == 1)
            asked = asyncio.ensure_future(ask(server, certificates.client(), b"a"))
            await until(lambda: server.entrance.waiting == 1)
            silent.close()
            assert await asked == [b"echo:a"]
            await until(lambda: not server.connections)
            assert await ask(server, certificates.client(), b"b") == [b"echo:b"]

    run(loop, body)


@both_loops
def test_connections_of_one_address_are_refused_before_their_handshakes(loop: str, certificates: Certificates) -> None:
    async def body() -> None:
        tls, quotas = OwnTls(certificates.server().load()), ConnectionQuotas(per_address=1)
        async with serving(tls, connections=quotas) as server:
            silent = await Client.connect(server)
            await until(lambda: server.ports.handshakes == 1)
            refused = await Client.connect(server)
            assert await refused.closed()
            assert server.ports.handshakes == 1
            silent.close()
            await until(lambda: not server.ports.handshakes)
            assert await ask(server, certificates.client(), b"b") == [b"echo:b"]

    run(loop, body)


@both_loops
def test_closed_server_closes_connections_that_wait(loop: str, certificates: Certificates) -> None:
    async def body() -> None:
        tls, quotas = OwnTls(certificates.server().load()), ConnectionQuotas(max_connections=0)
        async with serving(tls, connections=quotas) as server:
            waiting = await Client.connect(server)
            await until(lambda: server.entrance.waiting == 1)
        assert await waiting.closed()

    run(loop, body)


@both_loops
def test_lost_connections_are_freed_without_garbage_collection(loop: str, certificates: Certificates) -> None:
    """Each has 300 KB. A broker collects garbage so seldom that strangers could fill its memory."""
    kinds = {"ServerConnection", "Session", "SSLProtocol", "AlertingObject", "_SSLSocket"}

    def found() -> list[str]:
        return sorted(name for each in gc.get_objects() if (name := type(each).__name__) in kinds)

    async def visit(server: Server) -> None:
        """Connect, and be lost during the handshake or after a request."""
        sockets = [await Client.connect(server) for _ in range(3)]
        await sockets[0].send(b"no TLS")
        for each in sockets:
            each.close()
        client = await Client.connect(server)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        machine = certificates.client().wrap_bio(incoming, outgoing, server_hostname=HOST)
        while True:
            try:
                machine.do_handshake()
                break
            except ssl.SSLWantReadError:
                await client.send(outgoing.read())
                incoming.write(await client.loop.sock_recv(client.socket, 100_000))
        machine.write(framed(bytes(100_000)))
        await client.send(outgoing.read())
        await until(lambda: server.connections)
        client.close()
        await until(lambda: not server.connections and not server.ports.handshakes)

    async def body() -> None:
        async with serving(OwnTls(certificates.server().load())) as server:
            await visit(server)
            gc.collect()
            before = found()
            gc.disable()
            try:
                for _ in range(3):
                    await visit(server)
                await asyncio.sleep(0)
                assert found() == before
            finally:
                gc.enable()

    run(loop, body)


@both_loops
def test_failed_handshake_sends_its_alert_before_the_connection_closes(loop: str, certificates: Certificates) -> None:
    async def body() -> None:
        async with serving(OwnTls(certificates.server(ssl.CERT_REQUIRED).load())) as server:

            def reason() -> str:
                """Return what a client learns that has no certificate, and has sent a request."""
                with socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain:
                    try:
                        with certificates.client().wrap_socket(plain, server_hostname=HOST) as made:
                            made.sendall(framed(b"a"))
                            made.recv(1)
                    except ssl.SSLError as error:
                        return str(error.reason)
                return ""

            assert "CERTIFICATE_REQUIRED" in await asyncio.get_running_loop().run_in_executor(None, reason)
            await until(lambda: not server.ports.handshakes)

    run(loop, body)


@both_loops
def test_connections_that_were_sent_an_alert_count_as_handshakes(
    loop: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "MOST", 3)
    monkeypatch.setattr(alerts, "LINGER_S", 60)

    async def body() -> None:
        async with serving(OwnTls(certificates.server().load())) as server:
            clients = [await Client.connect(server) for _ in range(5)]
            for client in clients:
                with contextlib.suppress(ConnectionError):  # the oldest were closed for the others
                    await client.send(framed(b"plain text"))
                    await client.loop.sock_recv(client.socket, 1000)
            assert server.ports.handshakes <= 3
            assert await ask(server, certificates.client(), b"a") == [b"echo:a"]

    run(loop, body)
