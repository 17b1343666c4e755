"""A connection of an attacker: any bytes and requests in any order, in plain text or with TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import Any, Self

from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from oncelog.protocol.messages.metadata import MetadataRequest
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from oncelog.protocol.schema import Message
from support.wire import WAIT_S, frame_from

Call = tuple[Message, int]
"""A request and its version."""


def choose(mechanism: str, version: int = 1) -> Call:
    """Return a SaslHandshake."""
    return SaslHandshakeRequest(mechanism=mechanism), version


def say(token: bytes | str) -> Call:
    """Return a SaslAuthenticate with a message of the mechanism."""
    return SaslAuthenticateRequest(auth_bytes=token.encode() if isinstance(token, str) else token), 2


def plain(user: str, password: str, other: str = "") -> Call:
    """Return the SaslAuthenticate of PLAIN."""
    return say(f"{other}\0{user}\0{password}")


ASK: Call = (MetadataRequest(topics=[]), 12)
"""A request that only a client may send that has logged in."""


def framed(payload: bytes) -> bytes:
    """Return a frame: its length and the payload."""
    return struct.pack(">i", len(payload)) + payload


def encoded(call: Call, correlation_id: int = 1) -> bytes:
    """Return the frame of a request."""
    request, version = call
    header = RequestHeader(request.API_KEY, version, correlation_id, "attacker")
    return framed(encode_request_header(header) + request.encode(version))


class Attacker:
    """One connection. Use it in a `with` block."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, host: str = "localhost") -> None:
        where, _, port = address.rpartition(":")
        self._socket: socket.socket = socket.create_connection((where, int(port)), timeout=WAIT_S)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Write bytes. The server may have closed the connection."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            self._socket.sendall(data)

    def end(self) -> None:
        """Send no more."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)  # that of SSLSocket ends the decryption, too

    def answer(self, call: Call) -> Any:
        """Return the next response, which must be that of `call`, or None if the connection is closed."""
        try:
            found = frame_from(self._socket)
        except (ConnectionError, ssl.SSLError):
            return None
        if found is None:
            return None
        request, version = call
        frame = memoryview(found)
        _, position = decode_response_header(frame, request.API_KEY, version)
        return messages(ApiKey(request.API_KEY))[1].decode(frame[position:], version)

    def call(self, *calls: Call) -> list[Any]:
        """Send these requests at once, and return the responses. None stands for those of a closed connection."""
        self.write(b"".join(map(encoded, calls)))
        return [self.answer(each) for each in calls]

    def log_in(self, user: str, password: str) -> None:
        """Log in with PLAIN."""
        started, done = self.call(choose("PLAIN"), plain(user, password))
        assert not started.error_code, started
        assert not done.error_code, done

    def some(self) -> bytes:
        """Return the next bytes, or none if the connection is closed."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            return self._socket.recv(65536)
        return b""

    def rest(self) -> bytes:
        """Return all bytes until the server closes the connection."""
        found = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while part := self._socket.recv(65536):
                found += part
        return found


def codes(answers: Sequence[Any]) -> list[int | None]:
    """Return the error codes of responses, and None for those that did not come."""
    return [None if each is None else getattr(each, "error_code", 0) for each in answers]


def salt(address: str, user: str, mechanism: str, tls: ssl.SSLContext | None = None) -> bytes:
    """Return the salt that a server sends in the first step of a login with SCRAM."""
    with Attacker(address, tls) as attacker:
        _, challenge = attacker.call(choose(mechanism), say(f"n,,n={user},r=nonce"))
        return bytes(challenge.auth_bytes).split(b",")[1]
