"""A minimal broker that requires a login: ApiVersions, SaslHandshake, SaslAuthenticate; then Heartbeat and Produce."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
import struct
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable

from oncelog.net.sasl import SCRAM_HASHES
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, decode_request_header, encode_response_header
from oncelog.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.produce import ProduceRequest
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from oncelog.protocol.schema import Message

APIS = {
    ApiVersionsRequest: 3,
    HeartbeatRequest: 2,
    ProduceRequest: 12,
    SaslHandshakeRequest: 1,
    SaslAuthenticateRequest: 2,
}


class LoginServer:
    """The server, for one user. Use `serving`; then `log` has the requests in their order, over all connections."""

    def __init__(
        self,
        *mechanisms: str,
        user: str = "alice",
        password: str = "secret",
        token: str = "token",
        lifetime_ms: int = 0,
        heartbeat_s: float = 0.0,
        context: ssl.SSLContext | None = None,
        answer: Callable[[int, bytes], SaslAuthenticateResponse] | None = None,
    ) -> None:
        """Create it. `answer` replaces the mechanism's answers: number of the message, message -> response."""
        self.mechanisms = list(mechanisms)
        self.user, self.password, self.token = user, password, token
        self.lifetime_ms, self.heartbeat_s = lifetime_ms, heartbeat_s
        self.context = context
        self.answer = answer
        self.log: list[str] = []
        self.names: list[str | None] = []
        self.port = 0
        self._serving: set[asyncio.Task[None]] = set()

    def run(self, body: Callable[[int], Awaitable[None]]) -> None:
        """Serve while `body` runs with the port."""

        async def go() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.context)
            async with server:
                await body(server.sockets[0].getsockname()[1])
                await asyncio.gather(*self._serving)

        asyncio.run(go())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        logged_in, step = not self.mechanisms, None
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                if size > 1 << 20:
                    break  # as Kafka: bytes of TLS on a plaintext listener are a length above the limit
                data = memoryview(await reader.readexactly(size))
                header, pos = decode_request_header(data)
                body, version = data[pos:], header.api_version
                kind = next(each for each in APIS if header.api_key == each.API_KEY)
                self.log.append(kind.__name__.removesuffix("Request"))
                if kind is ApiVersionsRequest:
                    self._answer_versions(header, writer)
                elif kind is SaslHandshakeRequest:
                    wanted = SaslHandshakeRequest.decode(body, version).mechanism
                    known = wanted in self.mechanisms
                    step = _Steps(self, wanted) if known else None
                    code = 0 if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
                    _reply(writer, header, SaslHandshakeResponse(error_code=code, mechanisms=self.mechanisms))
                elif kind is SaslAuthenticateRequest and step is not None:
                    response = step.answer(bytes(SaslAuthenticateRequest.decode(body, version).auth_bytes))
                    _reply(writer, header, response)
                    if response.error_code:
                        break
                    logged_in = step.done
                    step = None if step.done else step
                elif not logged_in or step is not None:
                    break  # as Kafka: another request during the login ends the connection
                elif kind is ProduceRequest:
                    continue  # as with acks=0
                else:
                    await asyncio.sleep(self.heartbeat_s)
                    number = HeartbeatRequest.decode(body, version).generation_id
                    _reply(writer, header, HeartbeatResponse(throttle_time_ms=number))
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    def _answer_versions(self, header: RequestHeader, writer: asyncio.StreamWriter) -> None:
        ranges = [ApiVersion(api_key=kind.API_KEY, min_version=0, max_version=high) for kind, high in APIS.items()]
        if header.api_version > 3:
            error = ErrorCode.UNSUPPORTED_VERSION
            response = ApiVersionsResponse(error_code=error, api_keys=ranges)
            return _reply(writer, RequestHeader(header.api_key, 0, header.correlation_id, None), response)
        return _reply(writer, header, ApiVersionsResponse(api_keys=ranges))


def _reply(writer: asyncio.StreamWriter, header: RequestHeader, response: Message) -> None:
    version = header.api_version
    body = encode_response_header(header.api_key, version, header.correlation_id) + response.encode(version)
    writer.write(struct.pack(">i", len(body)) + body)


class _Steps:
    """The server's side of one login."""

    def __init__(self, server: LoginServer, mechanism: str) -> None:
        self._server, self._mechanism = server, mechanism
        self._first = b""
        self._message = ""
        self._failed = False
        self._messages = 0
        self.done = False

    def answer(self, token: bytes) -> SaslAuthenticateResponse:
        if self._server.answer is not None:
            self._messages += 1
            return self._server.answer(self._messages, token)
        if self._mechanism == "PLAIN":
            return self._end(token == f"\0{self._server.user}\0{self._server.password}".encode())
        if self._mechanism == "OAUTHBEARER":
            if self._failed or token.split(b"\x01")[1] == f"auth=Bearer {self._server.token}".encode():
                return self._end(not self._failed)
            self._failed = True
            return SaslAuthenticateResponse(error_message=None, auth_bytes=b'{"status":"invalid_token"}')
        return self._scram(token)

    def _end(self, good: bool, auth_bytes: bytes = b"") -> SaslAuthenticateResponse:
        if not good:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return SaslAuthenticateResponse(error_code=code, error_message="Authentication failed")
        self.done = True
        lifetime_ms = self._server.lifetime_ms
        return SaslAuthenticateResponse(error_message=None, auth_bytes=auth_bytes, session_lifetime_ms=lifetime_ms)

    def _scram(self, token: bytes) -> SaslAuthenticateResponse:
        name, salt = SCRAM_HASHES[self._mechanism], b"salt"
        if not self._message:
            bare = token.decode().removeprefix("n,,")
            self._first = f"r={bare.partition(',r=')[2]}server,s={b64encode(salt).decode()},i=4096".encode()
            self._message = f"{bare},{self._first.decode()}"
            return SaslAuthenticateResponse(error_message=None, auth_bytes=self._first)
        without_proof, _, proof = token.decode().partition(",p=")
        message = f"{self._message},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(name, self._server.password.encode(), salt, 4096)
        stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
        signature = hmac.digest(stored, message, name)
        key = bytes(a ^ b for a, b in zip(signature, b64decode(proof), strict=True))
        verifier = hmac.digest(hmac.digest(salted, b"Server Key", name), message, name)
        return self._end(hashlib.new(name, key).digest() == stored, b"v=" + b64encode(verifier))
