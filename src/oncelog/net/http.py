"""Request JSON over HTTP, with limits of time and size for the whole answer. Calls block.

The clients of the token endpoint and of the schema registry use this module, and brokers that fetch signing keys.
"""

from __future__ import annotations

import io
import json
import socket
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from time import monotonic
from typing import Any, cast

from oncelog.net.credentials import Secret
from oncelog.net.sasl import shown


class HttpError(Exception):
    """Raised if a request fails. `status` is that of the answer, or None without one. The text has no URL.

    `retriable` is True if another attempt may succeed. `untrusted` is True if the server's certificate was rejected.
    """

    def __init__(
        self,
        reason: str,
        *,
        retriable: bool = False,
        status: int | None = None,
        untrusted: bool = False,
        content: bytes = b"",
    ) -> None:
        super().__init__(reason)
        self.retriable, self.status, self.untrusted = retriable, status, untrusted
        self._content = content

    def fields(self) -> dict[str, Any]:
        """Return the JSON object in the answer, or an empty dict. A server may send anything in it."""
        return _json_object(self._content) or {}


class JsonClient:
    """Send requests. Follow no redirect, because it would carry a password to another host."""

    def __init__(self, context: ssl.SSLContext, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._opener = urllib.request.build_opener(_Http, _Https(context), _NoRedirect)

    def fetch(self, request: urllib.request.Request, timeout_s: float) -> dict[str, Any]:
        """Return the JSON object that the server answers with. Raises HttpError.

        After `timeout_s`, no byte of the answer is awaited. The connection has the same time before that.
        """
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                content: bytes = response.read(self._max_bytes + 1)
        except urllib.error.HTTPError as error:
            raise _rejected(error, self._max_bytes) from None
        except urllib.error.URLError as error:
            untrusted = isinstance(error.reason, ssl.SSLCertVerificationError)
            raise HttpError(str(error.reason), retriable=not untrusted, untrusted=untrusted) from None
        except OSError as error:
            raise HttpError(str(error) or type(error).__name__, retriable=True) from None
        except HTTPException as error:
            retriable = isinstance(error, IncompleteRead)
            raise HttpError(f"the answer is not HTTP: {shown(repr(error))}", retriable=retriable) from None
        if len(content) > self._max_bytes:
            raise HttpError(f"the answer has more than {self._max_bytes} bytes")
        found = _json_object(content)
        if found is None:
            raise HttpError("the answer is not a JSON object")
        return found


def basic(username: str, password: str) -> Secret:
    """Return the value of the header Authorization for a user name and a password."""
    return Secret("Basic " + b64encode(f"{username}:{password}".encode()).decode())


def _rejected(error: urllib.error.HTTPError, max_bytes: int) -> HttpError:
    content = b""
    with error, suppress(OSError, HTTPException):
        content = error.read(max_bytes)
    retriable = error.code >= 500 or error.code in (408, 429)
    return HttpError(f"HTTP {error.code}", retriable=retriable, status=error.code, content=content)


def _json_object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class _Answer(io.RawIOBase):
    """The bytes that a server sends, until a time. Without it, a server could send single bytes for ever."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Socket:
    """The part of a socket that HTTPResponse uses."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._answer = _Answer(sock, until)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._answer)


def _limited(kind: type[HTTPConnection], host: str, **options: Any) -> HTTPConnection:
    """Return a connection whose timeout is that of all reads together."""
    connection = kind(host, **options)
    until = monotonic() + options["timeout"]

    def answer(sock: socket.socket, *rest: Any, **more: Any) -> HTTPResponse:
        return HTTPResponse(cast(Any, _Socket(sock, until)), *rest, **more)

    connection.response_class = cast(Any, answer)
    return connection


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(_limited, HTTPConnection), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._trust = context

    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(_limited, HTTPSConnection), request, context=self._trust)
