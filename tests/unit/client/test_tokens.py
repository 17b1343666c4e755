"""Tokens for OAUTHBEARER: from a callback, a file, and a token endpoint."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from oncelog.client.option_readers import Secret
from oncelog.client.security.tokens import Callback, TokenEndpoint, TokenLogin
from oncelog.net.connection import ConnectionLostError, LoginRejectedError

SECRET = "hunter2"


@contextmanager
def endpoint(
    status: int, answer: Any, headers: dict[str, str] | None = None
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
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", asked
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
        (200, {"token": "x"}, LoginRejectedError, "no access_token"),
        (200, b"[", LoginRejectedError, "no access_token"),
        (200, {"access_token": "a b"}, LoginRejectedError, "RFC 6750"),
    ],
)
def test_errors_of_the_endpoint(status: int, answer: Any, kind: type[Exception], words: str) -> None:
    with endpoint(status, answer) as (url, _), pytest.raises(kind, match=words) as caught:
        first(TokenLogin(TokenEndpoint(url, "me", Secret(SECRET)), {}))
    assert SECRET not in repr(caught.value)
    assert SECRET not in repr(TokenEndpoint(url, "me", Secret(SECRET)))


def test_redirect_is_not_followed() -> None:
    with endpoint(200, {"access_token": "abc"}) as (other, asked):
        with endpoint(302, b"", {"Location": other}) as (url, _), pytest.raises(LoginRejectedError, match="302"):
            first(TokenLogin(TokenEndpoint(url, "me", Secret(SECRET)), {}))
        assert not asked


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
    ],
)
def test_errors_of_callbacks(provider: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        first(TokenLogin(Callback(provider), {}))
