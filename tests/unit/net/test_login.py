"""TLS and logins of the client's connection, against a minimal server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop

from oncelog.net.connection import ClientConnection, connect
from oncelog.net.failures import Cause, ConnectionLostError, LoginRejectedError
from oncelog.net.sasl import Exchange, OAuthBearer, Plain, Scram
from oncelog.net.security import Security
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from support.certificates import DAY, Pair, authority, signed_by
from support.login_server import LoginServer


class Login:
    """Fixed credentials."""

    def __init__(self, mechanism: str, password: str = "secret") -> None:
        self.mechanism, self.password = mechanism, password
        self.begun = 0

    async def begin(self) -> Exchange:
        self.begun += 1
        if self.mechanism == "PLAIN":
            return Plain("alice", self.password)
        if self.mechanism == "OAUTHBEARER":
            return OAuthBearer("token" if self.password == "secret" else self.password)
        return Scram(self.mechanism, "alice", self.password, "nonce")


class Trust:
    """TLS settings that trust one authority."""

    def __init__(self, trusted: Pair | None, client: tuple[Path, Path] | None = None, check_name: bool = True) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = check_name
        if trusted is not None:
            self._context.load_verify_locations(cadata=trusted.certificate_pem.decode())
        if client is not None:
            self._context.load_cert_chain(*client)

    async def context(self) -> ssl.SSLContext:
        return self._context


def served(folder: Path, pair: Pair, clients: Pair | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair.write(folder, "server"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.certificate_pem.decode())
    return context


def beat(number: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=number, member_id="m")


def connected(
    server: LoginServer, security: Security, body: Callable[[ClientConnection], Awaitable[Any]] | None = None
) -> None:
    async def use(connection: ClientConnection) -> None:
        assert (await connection.call(beat(7))).throttle_time_ms == 7

    async def go(port: int) -> None:
        connection = await connect("127.0.0.1", port, security=security)
        try:
            await (body or use)(connection)
        finally:
            connection.close()

    server.run(go)


MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_login(mechanism: str) -> None:
    server = LoginServer(mechanism)
    connected(server, Security("SASL_PLAINTEXT", None, Login(mechanism)))
    assert server.log[-4:-1].count("SaslHandshake") <= 1
    assert server.log[-1] == "Heartbeat"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_is_a_rejection_that_does_not_show_it(mechanism: str) -> None:
    with pytest.raises(
        LoginRejectedError, match=f"rejected the login with {mechanism}: Authentication failed"
    ) as caught:
        connected(LoginServer(mechanism), Security("SASL_PLAINTEXT", None, Login(mechanism, "wrong-one")))
    assert "wrong-one" not in repr(caught.value)
    assert ("invalid_token" in str(caught.value)) == (mechanism == "OAUTHBEARER")


def test_error_for_a_mechanism_that_the_broker_lacks_lists_those_it_has() -> None:
    server = LoginServer("SCRAM-SHA-512", "PLAIN")
    with pytest.raises(LoginRejectedError, match="mechanism OAUTHBEARER; it accepts: SCRAM-SHA-512, PLAIN"):
        connected(server, Security("SASL_PLAINTEXT", None, Login("OAUTHBEARER")))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_login_does_not_wait_for_blocking_work_of_the_program(mechanism: str) -> None:
    """`asyncio.to_thread` of the program and the serializers of `aio` clients share one executor."""

    async def go(port: int) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        done = threading.Event()
        busy = asyncio.ensure_future(asyncio.to_thread(done.wait))
        try:
            security = Security("SASL_PLAINTEXT", None, Login(mechanism))
            (await connect("127.0.0.1", port, security=security, connect_timeout_ms=3_000)).close()
        finally:
            done.set()
            await busy

    LoginServer(mechanism).run(go)


def test_new_login_before_the_session_expires_lets_other_requests_wait() -> None:
    server = LoginServer("PLAIN", lifetime_ms=100, heartbeat_s=0.02)
    login = Login("PLAIN")

    async def body(connection: ClientConnection) -> None:
        async with asyncio.timeout(60):
            number = 0
            while login.begun < 3:
                answers = [connection.send(beat(number + each)) for each in range(3)]
                connection.send(beat(99))
                assert connection.in_flight >= 3
                for each, answer in enumerate(answers):
                    assert (await answer).throttle_time_ms == number + each
                number += 3
            assert not connection.closed

    connected(server, Security("SASL_PLAINTEXT", None, login), body)
    assert server.log.count("SaslHandshake") == 3


def test_failed_new_login_ends_the_connection_and_all_waiting_requests() -> None:
    server = LoginServer("PLAIN", lifetime_ms=20)
    login = Login("PLAIN")

    async def body(connection: ClientConnection) -> None:
        login.password = "changed"
        await asyncio.sleep(0.03)
        waiting = [connection.send(beat(each)) for each in range(3)]
        for each in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(each, ConnectionLostError)
            assert "new login before the session expires failed" in str(each)
        assert connection.closed

    connected(server, Security("SASL_PLAINTEXT", None, login), body)


def test_connection_is_congested_until_a_new_login_that_is_due_is_complete() -> None:
    """Records with acks=0 must stay in the producer's buffer: here, they would be reported as delivered."""
    login = Login("PLAIN")

    async def body(connection: ClientConnection) -> None:
        while not connection.congested:
            await asyncio.sleep(0.005)
        complete = asyncio.Event()
        connection.on_writable(complete.set)
        async with asyncio.timeout(60):
            await complete.wait()
        assert (login.begun, connection.congested, connection.closed) == (2, False, False)

    connected(LoginServer("PLAIN", lifetime_ms=60), Security("SASL_PLAINTEXT", None, login), body)


def test_failed_new_login_wakes_up_what_waits_for_an_uncongested_connection() -> None:
    login = Login("PLAIN")

    async def body(connection: ClientConnection) -> None:
        login.password = "changed"
        await asyncio.sleep(0.03)
        ended = asyncio.Event()
        connection.on_writable(ended.set)
        async with asyncio.timeout(60):
            await ended.wait()
        assert connection.closed

    connected(LoginServer("PLAIN", lifetime_ms=20), Security("SASL_PLAINTEXT", None, login), body)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), asyncio.CancelledError()])
def test_unexpected_error_in_a_new_login_ends_the_connection(error: BaseException) -> None:
    class Broken(Login):
        async def begin(self) -> Exchange:
            if self.begun:
                raise error
            return await super().begin()

    async def body(connection: ClientConnection) -> None:
        await asyncio.sleep(0.03)
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionLostError, match=f"new login .* failed: {type(error).__name__}"):
                await connection.call(beat(1))
        assert connection.closed

    connected(LoginServer("PLAIN", lifetime_ms=20), Security("SASL_PLAINTEXT", None, Broken("PLAIN")), body)


def test_login_to_a_broker_without_sasl() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.close()

    async def go() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectionLostError):
                await connect("127.0.0.1", port, security=Security("SASL_PLAINTEXT", None, Login("PLAIN")))

    asyncio.run(go())


def test_tls_with_login(tmp_path: Path) -> None:
    ours = authority()
    server = LoginServer("PLAIN", context=served(tmp_path, signed_by(ours, "broker", "127.0.0.1")))
    connected(server, Security("SASL_SSL", Trust(ours), Login("PLAIN")))
    assert server.log[-1] == "Heartbeat"


def test_mutual_tls(tmp_path: Path) -> None:
    ours = authority()
    context = served(tmp_path, signed_by(ours, "broker", "127.0.0.1"), clients=ours)
    client = signed_by(ours, "client").write(tmp_path, "client")
    connected(LoginServer(context=context), Security("SSL", Trust(ours, client)))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_missing_client_certificate_is_named(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop], version: ssl.TLSVersion
) -> None:
    """Use a blocking server, because asyncio's sends no alert. With TLS 1.3, the alert follows the handshake."""
    ours = authority()
    context = served(tmp_path, signed_by(ours, "broker", "127.0.0.1"), clients=ours)
    context.maximum_version = version
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted = listening.accept()[0]
            with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as tls:
                with contextlib.suppress(ssl.SSLError):
                    tls.do_handshake()
                tls.shutdown(socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    while tls.recv(4096):  # a close before unread bytes would reset the connection, and lose the alert
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        port = listening.getsockname()[1]
        with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(LoginRejectedError) as caught:
            runner.run(connect("127.0.0.1", port, security=Security("SSL", Trust(ours))))
        thread.join()
    assert caught.value.cause in (Cause.CLIENT_CERTIFICATE, Cause.HANDSHAKE)


@pytest.mark.parametrize(
    ("hosts", "ends", "trusted", "words", "cause"),
    [
        (("elsewhere",), DAY, True, "for another host name", Cause.HOST_NAME),
        (("127.0.0.1",), -datetime.timedelta(hours=1), True, "has expired", Cause.EXPIRED),
        (("127.0.0.1",), DAY, False, "unknown authority", Cause.UNKNOWN_AUTHORITY),
    ],
)
def test_certificate_errors_name_what_failed(
    tmp_path: Path, hosts: tuple[str, ...], ends: datetime.timedelta, trusted: bool, words: str, cause: Cause
) -> None:
    ours = authority()
    server = LoginServer(context=served(tmp_path, signed_by(ours, "broker", *hosts, ends=ends)))
    with pytest.raises(LoginRejectedError, match=words) as caught:
        connected(server, Security("SSL", Trust(ours if trusted else authority())))
    assert caught.value.cause is cause


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connection_that_ends_after_the_tls_handshake_is_no_failure_of_tls(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    ours = authority()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.transport.abort()

    async def go() -> None:
        context = served(tmp_path, signed_by(ours, "broker", "127.0.0.1"))
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectionLostError) as caught:
                await connect("127.0.0.1", port, security=Security("SSL", Trust(ours)))
        assert "handshake" not in str(caught.value)
        assert caught.value.cause is None

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(go())


def test_host_name_check_can_be_disabled(tmp_path: Path) -> None:
    ours = authority()
    server = LoginServer(context=served(tmp_path, signed_by(ours, "elsewhere")))
    connected(server, Security("SSL", Trust(ours, check_name=False)))


def test_tls_to_a_plaintext_listener() -> None:
    with pytest.raises((LoginRejectedError, ConnectionLostError)) as caught:
        connected(LoginServer(), Security("SSL", Trust(None)))
    assert caught.value.cause in (Cause.NO_TLS, Cause.HANDSHAKE_ENDED)


def test_plaintext_to_a_listener_that_requires_a_login() -> None:
    with pytest.raises(ConnectionLostError, match=r"closed the connection; .* check security\.protocol"):
        connected(LoginServer("PLAIN"), Security())


def test_plaintext_to_a_tls_listener_that_answers_with_an_alert() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"\x15\x03\x03\x00\x02\x02\x0a")
        writer.close()

    async def go() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            with pytest.raises(ConnectionLostError, match=r"bytes of TLS; set security\.protocol"):
                await connect("127.0.0.1", server.sockets[0].getsockname()[1])

    asyncio.run(go())


def test_repr_of_security() -> None:
    assert repr(Security("SASL_SSL", None, Login("PLAIN"))) == "Security(SASL_SSL, PLAIN)"
