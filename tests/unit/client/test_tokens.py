"""Tokens for OAUTHBEARER: from a callback, a file, and a token endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
import threading
import time
import traceback
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from oncelog.net.credentials import Secret
from oncelog.net.failures import ConnectionLostError, LoginRejectedError
from oncelog.net.tokens import Callback, TokenEndpoint, TokenLogin
from support.certificates import authority, signed_by
from support.raw_endpoint import raw_endpoint
from support.turns import until

SECRET = "hunter2"


@contextmanager
def endpoint(
    status: int, answer: Any, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Serve one answer to all requests. Yield the URL, and the credentials and forms that arrive."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append((b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode(), form))
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}/token", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def first(login: TokenLogin, times: int = 1) -> list[bytes]:
    async def go() -> list[bytes]:
        return [(await login.begin()).first() for _ in range(times)]

    return asyncio.run(go())


def test_client_credentials_and_a_kept_token() -> None:
    with endpoint(200, {"access_token": "abc", "expires_in": 60}) as (url, asked):
        login = TokenLogin(TokenEndpoint(url, "me", Secret(SECRET), "kafka read"), {"a": "b"})
        assert first(login, 3) == [b"n,,\x01auth=Bearer abc\x01a=b\x01\x01"] * 3
    assert asked == [("me:hunter2", "grant_type=client_credentials&scope=kafka+read")], "one request for three logins"


def test_token_without_a_life_is_not_kept() -> None:
    with endpoint(200, {"access_token": "abc"}) as (url, asked):
        first(TokenLogin(TokenEndpoint(url, "m:e", Secret("a b"), url_encode=True), {}), 2)
    assert [credentials for credentials, _ in asked] == ["m%3Ae:a+b"] * 2


@pytest.mark.parametrize(
    ("status", "answer", "kind", "words"),
    [
        (401, {"error": "invalid_client", "error_description": "no"}, LoginRejectedError, "401 invalid_client: no"),
        (400, b"<html>", LoginRejectedError, "400; check client id"),
        (503, b"", ConnectionLostError, "503"),
        (408, b"", ConnectionLostError, "408"),
        (429, b"", ConnectionLostError, "429"),
        (200, {"token": "x"}, LoginRejectedError, "no access_token"),
        (200, b"[", LoginRejectedError, "not a JSON object"),
        (200, b"[" * 1_000_000, LoginRejectedError, "not a JSON object"),
        (200, ["access_token"], LoginRejectedError, "not a JSON object"),
        (200, {"access_token": None}, LoginRejectedError, "no access_token"),
        (200, {"access_token": "abc", "expires_in": "soon"}, LoginRejectedError, "no access_token"),
        (400, {"error": "x" * 1_000_000}, LoginRejectedError, "400 xxx"),
        (200, {"access_token": "a b"}, LoginRejectedError, "RFC 6750"),
    ],
)
def test_errors_of_the_endpoint(status: int, answer: Any, kind: type[Exception], words: str) -> None:
    with endpoint(status, answer) as (url, _), pytest.raises(kind, match=words) as caught:
        first(TokenLogin(TokenEndpoint(url, "me", Secret(SECRET)), {}))
    assert len(str(caught.value)) < 1000
    assert SECRET not in repr(caught.value)
    assert SECRET not in repr(TokenEndpoint(url, "me", Secret(SECRET)))


def test_redirect_is_not_followed() -> None:
    with endpoint(200, {"access_token": "abc"}) as (other, asked):
        with endpoint(302, b"", {"Location": other}) as (url, _), pytest.raises(LoginRejectedError, match="302"):
            first(TokenLogin(TokenEndpoint(url, "me", Secret(SECRET)), {}))
        assert not asked


@pytest.mark.parametrize(
    "pieces", [(b"",), (b"HTTP/1.1 200 OK\r\n", b"a"), (b"SSH-2.0\r\n",), (b"HTTP/1.1 401 No\r\n\r\n", b"a")]
)
def test_no_failure_of_the_endpoint_shows_the_secret(
    pieces: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with raw_endpoint(*pieces, pause_s=0.05) as (url, _):
        with pytest.raises((ConnectionLostError, LoginRejectedError)) as caught:
            first(login_with(url))
        shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    for each in (SECRET, b64encode(f"me:{SECRET}".encode()).decode()):
        assert each not in shown


def test_endpoint_with_tls(tmp_path: Path) -> None:
    ours = authority()
    ca = tmp_path / "ca.pem"
    ca.write_bytes(ours.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed_by(ours, "endpoint", "127.0.0.1").write(tmp_path, "endpoint"))
    with endpoint(200, {"access_token": "abc"}, context=context) as (url, asked):
        assert first(TokenLogin(TokenEndpoint(url, "me", Secret(SECRET), ca=str(ca)), {}))
        with pytest.raises(LoginRejectedError, match=r"CERTIFICATE_VERIFY_FAILED.*; check https\.ca\.location"):
            first(TokenLogin(TokenEndpoint(url, "me", Secret(SECRET)), {}))
        assert len(asked) == 1, "no secret for an endpoint that is not trusted"


def test_endpoint_that_is_down_is_worth_another_attempt() -> None:
    with endpoint(200, {}) as (url, _):
        pass
    with pytest.raises(ConnectionLostError, match="refused"):
        first(TokenLogin(TokenEndpoint(url, "me", Secret(SECRET)), {}))


def test_token_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    login = TokenLogin(TokenEndpoint(path.as_uri(), "", Secret("")), {})
    with pytest.raises(ConnectionLostError, match="No such file"):
        first(login)
    for text in ("one", "two"):
        path.write_text(f"{text}\n")
        assert first(login) == [f"n,,\x01auth=Bearer {text}\x01\x01".encode()]


class Provider:
    def __init__(self) -> None:
        self.calls = 0

    def token(self) -> str:
        self.calls += 1
        return f"t{self.calls}"


def test_callbacks() -> None:
    async def coroutine() -> str:
        return "t1"

    provider = Provider()
    for each in (provider, coroutine, lambda: "t1", lambda: ("t1", time.time() + 60)):
        assert first(TokenLogin(Callback(each), {})) == [b"n,,\x01auth=Bearer t1\x01\x01"]
    first(TokenLogin(Callback(provider), {}), 2)
    assert provider.calls == 3, "each login gets a new token"
    kept = Provider()
    first(TokenLogin(Callback(lambda: (kept.token(), time.time() + 60)), {}), 3)
    assert kept.calls == 1, "a token with an expiry is kept"


def fails(error: Exception) -> Any:
    def provider() -> str:
        raise error

    return provider


@pytest.mark.parametrize(
    ("provider", "kind", "words"),
    [
        (fails(OSError("down")), ConnectionLostError, "down"),
        (fails(KeyError("x")), LoginRejectedError, "raised KeyError"),
        (lambda: None, LoginRejectedError, "NoneType"),
        (lambda: ("t", "tomorrow"), LoginRejectedError, "not tuple"),
        (lambda: next(iter(())), LoginRejectedError, "StopIteration"),
    ],
)
def test_errors_of_callbacks(provider: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        first(TokenLogin(Callback(provider), {}))


def login_with(url: str, timeout_ms: int = 300) -> TokenLogin:
    return TokenLogin(TokenEndpoint(url, "me", Secret(SECRET)), {}, timeout_ms)


def test_endpoint_that_sends_a_gigabyte_is_cut_off() -> None:
    piece = b"x" * (1 << 20)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n"
    with raw_endpoint(head, piece) as (url, sent), pytest.raises(LoginRejectedError, match="more than 1048576 bytes"):
        first(login_with(url, 10_000))
    assert sum(sent) < 64 << 20, "what the socket buffers hold"


@pytest.mark.parametrize(
    "pieces",
    [(b"",), (b"HTTP/1.1 200 OK\r\n", b"a"), (b"HTTP/1.1 200 OK\r\n\r\n", b"a")],
    ids=["silent", "head", "body"],
)
def test_endpoint_that_never_ends_its_answer_is_given_up(pieces: tuple[bytes, ...]) -> None:
    with raw_endpoint(*pieces, pause_s=0.05) as (url, _):
        login = login_with(url)

        async def go() -> None:
            for _ in range(2):
                with pytest.raises(ConnectionLostError, match=r"sasl\.oauthbearer\.token.*(within|timed out)"):
                    await asyncio.gather(*(login.begin() for _ in range(20)))
                await until(lambda: login._calls.hung == 0)

        asyncio.run(go())


def test_endpoint_that_is_no_web_server() -> None:
    with (
        raw_endpoint(b"SSH-2.0\r\n" * 20_000) as (url, _),
        pytest.raises(LoginRejectedError, match="the answer is not HTTP"),
    ):
        first(login_with(url, 10_000))


async def logins(login: TokenLogin, seconds: float) -> list[Exception]:
    """Log in one after the other. Return the errors until a login succeeds, or until the time is over."""
    failures: list[Exception] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            await login.begin()
        except ConnectionLostError as error:
            failures.append(error)
            await asyncio.sleep(0.01)  # as the pool's back-off
        else:
            break
    return failures


def test_callback_that_hung_is_called_again() -> None:
    """As after an outage of the network, in which a provider without a timeout waits for ever."""
    stopped, calls = threading.Event(), iter(range(100))

    def provider() -> str:
        if next(calls) < 2:
            stopped.wait()
        return "t"

    try:
        failures = asyncio.run(logins(TokenLogin(Callback(provider), {}, 1000), 60))
        assert next(calls) == 3, "the third call returned a token"
        expected = "sasl_oauth_token_provider returned no token within sasl.login.read.timeout.ms = 1000"
        assert {str(each) for each in failures} == {expected}
    finally:
        stopped.set()


def test_coroutine_that_ignores_its_cancellation_is_called_again() -> None:
    """Before, each login waited for this coroutine until its timeout, and failed."""
    calls = iter(range(100))

    async def main() -> list[Exception]:
        stopped = asyncio.Event()

        async def provider() -> str:
            hangs = next(calls) < 2
            while hangs and not stopped.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await stopped.wait()
            return "t"

        login = TokenLogin(Callback(provider), {}, 1000)
        try:
            return await logins(login, 20)
        finally:
            stopped.set()
            await until(lambda: login._calls.hung == 0)

    failures = asyncio.run(main())
    assert next(calls) == 3, "the third call returned a token"
    expected = "sasl_oauth_token_provider returned no token within sasl.login.read.timeout.ms = 1000"
    assert {str(each) for each in failures} == {expected}


def test_number_of_calls_that_never_return_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.net.tokens.MAX_HUNG", 3)
    stopped, calls = threading.Event(), []

    def provider() -> None:
        calls.append(threading.current_thread())
        stopped.wait()

    try:
        failures = asyncio.run(logins(TokenLogin(Callback(provider), {}, 20), 3))
        assert len(calls) == 3
        assert "3 calls of sasl_oauth_token_provider have not returned" in str(failures[-1])
    finally:
        stopped.set()


def exits_at_once() -> str:
    raise SystemExit(1)


def is_interrupted() -> str:
    raise KeyboardInterrupt


async def exits_later() -> str:
    await asyncio.sleep(0)
    raise SystemExit(1)


async def is_cancelled() -> str:
    await asyncio.sleep(0)
    raise asyncio.CancelledError


@pytest.mark.parametrize("provider", [exits_at_once, is_interrupted, exits_later, is_cancelled])
def test_callback_that_exits_fails_the_login_and_not_the_program(provider: Any) -> None:
    with pytest.raises(LoginRejectedError, match=r"raised .*(SystemExit|KeyboardInterrupt|CancelledError)"):
        first(TokenLogin(Callback(provider), {}, 5_000))


def test_program_ends_although_a_callback_never_returns() -> None:
    code = """
import threading
from oncelog import Admin, errors
options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.login.read.timeout.ms": 100,
           "sasl_oauth_token_provider": threading.Event().wait, "default.api.timeout.ms": 300}
with Admin("127.0.0.1:1", options) as admin:
    try:
        admin.describe_cluster()
    except errors.ConnectionFailedError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert "sasl_oauth_token_provider returned no token" in done.stdout
    assert done.stderr == ""


class Tokens:
    """A provider that returns t1, t2, ... with this life. `failure` is raised, and `hold` waited for, if set."""

    def __init__(self, life_s: float = 60.0) -> None:
        self.life_s = life_s
        self.calls = 0
        self.failure: Exception | None = None
        self.hold: threading.Event | None = None

    def token(self) -> tuple[str, float]:
        self.calls += 1
        if self.hold is not None:
            self.hold.wait(60)
        if self.failure is not None:
            raise self.failure
        return f"t{self.calls}", time.time() + self.life_s


def aged(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the clock of the logins advance."""
    clock, at = time.monotonic, seconds
    monkeypatch.setattr("oncelog.net.tokens.monotonic", lambda: clock() + at)


async def used(login: TokenLogin) -> str:
    return (await login.begin()).first().decode().split("\x01")[1].removeprefix("auth=Bearer ")


def test_valid_token_is_used_at_once_while_a_new_one_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens()

    async def go() -> None:
        login = TokenLogin(Callback(tokens), {})
        assert await used(login) == "t1"
        tokens.hold = threading.Event()
        aged(monkeypatch, 50)
        assert [await used(login) for _ in range(5)] == ["t1"] * 5
        tokens.hold.set()
        await until(lambda: login._token == "t2")
        assert await used(login) == "t2"

    asyncio.run(go())
    assert tokens.calls == 2


def test_token_that_expires_soon_is_used_only_if_there_is_no_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker would reject a token that expires on the way, and the client would not try again."""
    tokens = Tokens()

    async def go() -> None:
        login = TokenLogin(Callback(tokens), {})
        assert await used(login) == "t1"
        aged(monkeypatch, 58.5)
        assert await used(login) == "t2"
        aged(monkeypatch, 58.5 + 58.5)
        tokens.failure = OSError("down")
        assert [await used(login) for _ in range(3)] == ["t2"] * 3
        assert tokens.calls == 3, "the first login waited, the others did not"

    asyncio.run(go())


@pytest.mark.parametrize(
    ("failure", "words", "kind"),
    [
        (OSError("down"), "failed: down", ConnectionLostError),
        (RuntimeError("down"), "raised RuntimeError: down", LoginRejectedError),
    ],
)
def test_failed_refresh_is_logged_and_retried_after_a_pause(
    failure: Exception,
    words: str,
    kind: type[Exception],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = Tokens()

    async def go() -> None:
        login = TokenLogin(Callback(tokens), {})
        await used(login)
        tokens.failure = failure
        for seconds, calls in ((49, 2), (50, 2), (60 - 0.5, 3)):
            aged(monkeypatch, seconds)
            for _ in range(3):
                assert await used(login) == "t1"
                await until(lambda: login._request is None)
            assert tokens.calls == calls, f"after {seconds} s"
        assert f"uses the previous one: sasl_oauth_token_provider {words}" in caplog.text
        assert len(caplog.records) == 2
        assert "t1" not in caplog.text
        aged(monkeypatch, 61)
        with pytest.raises(kind, match="down"):
            await used(login)

    asyncio.run(go())


def test_malformed_token_does_not_replace_a_valid_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [("t1", 60), ("a b", 60), ("t3", 60)]

    def provider() -> tuple[str, float]:
        token, life = given.pop(0)
        return token, time.time() + life

    async def go() -> None:
        login = TokenLogin(Callback(provider), {})
        assert await used(login) == "t1"
        aged(monkeypatch, 58)
        assert await used(login) == "t1"
        aged(monkeypatch, 61)
        assert await used(login) == "t3"

    asyncio.run(go())


@pytest.mark.parametrize("life", [float("nan"), float("inf"), 1e300, -5])
def test_token_with_a_senseless_life_is_not_kept(life: float) -> None:
    with endpoint(200, {"access_token": "abc", "expires_in": life}) as (url, asked):
        first(login_with(url, 10_000), 2)
    assert len(asked) == 2
