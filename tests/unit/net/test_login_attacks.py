"""Servers that attack a client that logs in: each attempt is bounded, and its error says what the server did."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable

import pytest
import uvloop

from oncelog.net.connection import MAX_LOGIN_BYTES, connect
from oncelog.net.failures import ConnectionLostError, LoginRejectedError
from oncelog.net.sasl import MAX_ITERATIONS, Exchange, OAuthBearer, Plain, Scram
from oncelog.net.security import Security
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from support.login_server import LoginServer

SECRET = "hunter2"
NONCE = "ours"
Answer = Callable[[int, bytes], SaslAuthenticateResponse]


class Login:
    """Fixed credentials."""

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism

    async def begin(self) -> Exchange:
        if self.mechanism == "PLAIN":
            return Plain("alice", SECRET)
        return (
            OAuthBearer("token") if self.mechanism == "OAUTHBEARER" else Scram(self.mechanism, "alice", SECRET, NONCE)
        )


def says(*texts: bytes, code: int = 0, error: str | None = None) -> Answer:
    """Answer with these messages, and repeat the last one."""

    def answer(number: int, _: bytes) -> SaslAuthenticateResponse:
        text = texts[min(number, len(texts)) - 1]
        return SaslAuthenticateResponse(error_code=code, error_message=error, auth_bytes=text)

    return answer


def attacked(server: LoginServer, mechanism: str, beside: Callable[[], object] | None = None) -> Exception:
    """Log in to the server while `beside` is called every 10 ms. Return the error, which must not be the timeout."""
    caught: list[Exception] = []

    async def call_often() -> None:
        while beside is not None:
            await asyncio.sleep(0.01)
            beside()

    async def go(port: int) -> None:
        ticker = asyncio.create_task(call_often())
        try:
            (await connect("127.0.0.1", port, security=Security("SASL_PLAINTEXT", None, Login(mechanism)))).close()
        except (ConnectionLostError, LoginRejectedError) as error:
            caught.append(error)
        ticker.cancel()

    server.run(go)
    assert caught, "the client trusts the attacker"
    assert not re.search(r"within \d+ ms", str(caught[0])), caught[0]
    assert len(str(caught[0])) < 1000
    assert SECRET not in f"{caught[0]!r}{caught[0].__cause__!r}"
    return caught[0]


def server_first(nonce: str = f"{NONCE}-theirs", iterations: object = 4096) -> bytes:
    return f"r={nonce},s={b64encode(b'salt').decode()},i={iterations}".encode()


@pytest.mark.parametrize(
    ("mechanism", "answer", "words"),
    [
        ("SCRAM-SHA-256", says(server_first(iterations=2**31)), "2147483648 iterations; allowed are 4096 to 1000000"),
        ("SCRAM-SHA-256", says(server_first(iterations="9" * 100_000)), "malformed"),
        ("SCRAM-SHA-256", says(server_first(nonce="theirs")), "nonce does not begin with the client's"),
        ("SCRAM-SHA-256", says(server_first()), "malformed"),  # the same challenge without end
        ("SCRAM-SHA-512", says(server_first(), b"v=" + b64encode(b"guess")), "signature is wrong"),
        ("SCRAM-SHA-512", says(server_first(), b"e=" + b"x" * 100_000), "rejected the login: xxx"),
        ("SCRAM-SHA-512", says(b"e=unknown-user"), "the server rejected the login: unknown-user"),
        ("SCRAM-SHA-512", says(b""), "malformed"),
        ("OAUTHBEARER", says(b'{"status":"invalid_token"}'), "does not end the login after its error: status: inv"),
        ("OAUTHBEARER", says(b"no", b""), "ended the login with OAUTHBEARER too early"),
        ("OAUTHBEARER", says(b"[" * 900_000), "does not end the login"),
        ("PLAIN", says(b"", code=58, error="line\n\x1b[31m" + "x" * 30_000), r"PLAIN: line  \[31mxxx.*\.\.\.$"),
    ],
)
def test_bad_answer_is_rejected(mechanism: str, answer: Answer, words: str) -> None:
    server = LoginServer(mechanism, answer=answer)
    error = attacked(server, mechanism)
    assert isinstance(error, LoginRejectedError)
    with pytest.raises(LoginRejectedError, match=words):
        raise error
    assert server.log.count("SaslAuthenticate") <= 2


def test_long_list_of_mechanisms_is_shortened() -> None:
    server = LoginServer(*[f"M{each}" for each in range(50_000)])
    assert "it accepts: M0, M1" in str(attacked(server, "PLAIN"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_huge_answer_is_not_read(mechanism: str) -> None:
    server = LoginServer(mechanism, answer=says(b"x" * 20 * MAX_LOGIN_BYTES))
    assert "sent a response of 20971" in str(attacked(server, mechanism))


def test_many_iterations_do_not_stop_the_event_loop() -> None:
    """Other clients of a program share the loop."""
    ticks: list[float] = []
    server = LoginServer("SCRAM-SHA-512", answer=says(server_first(iterations=MAX_ITERATIONS), b"v=AAAA"))
    assert "signature" in str(attacked(server, "SCRAM-SHA-512", lambda: ticks.append(time.monotonic())))
    assert len(ticks) > 5


class AnyServer:
    """TLS with the system's authorities."""

    async def context(self) -> ssl.SSLContext:
        return ssl.create_default_context()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("security", "sent", "words"),
    [
        (Security("SSL", AnyServer()), b"", "no TCP connection, or no end of the TLS handshake"),
        (Security("SSL", AnyServer()), b"\x16\x03\x03\x40\x00", "no TCP connection, or no end of the TLS handshake"),
        (Security("SASL_PLAINTEXT", None, Login("PLAIN")), b"", "no response to ApiVersions"),
    ],
)
def test_server_that_never_answers_is_given_up(
    new_loop: Callable[[], asyncio.AbstractEventLoop], security: Security, sent: bytes, words: str
) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass
            writer.close()
            await writer.wait_closed()
        ended.set()

    async def go() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectionLostError, match=f"within 200 ms: {words}"):
                await connect("127.0.0.1", port, connect_timeout_ms=200, security=security)
            await asyncio.wait_for(ended.wait(), 60)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(go())
