"""Send requests on one connection to a broker, and match the responses. Any number may be in flight.

A broker answers the requests of a connection in their order, so the pending requests are a queue. Correlation ids
are checked, but not used to look up a request. `ClientConnection.send` writes at once and returns a future. It needs no
task and no lock. A cancelled request stays in the queue, and its response is dropped. A request that times out closes
the connection, because later responses cannot arrive before its own (as in Kafka's NetworkClient).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, cast

from oncelog.net.failures import ConnectionLostError, RequestTimeoutError
from oncelog.net.pieces import needs_join
from oncelog.net.sasl import Exchange
from oncelog.net.security import PLAINTEXT, Login, Security, log_in
from oncelog.net.session_renewal import SessionRenewal
from oncelog.net.traffic import Traffic
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from oncelog.protocol.schema import Message
from oncelog.version import __version__

SCRATCH_BYTES = 64 * 1024
"""Size of a connection's read buffer. An incomplete response of more than half of it is read into its own memory."""
MAX_RESPONSE_BYTES = 512 * 1024 * 1024
MAX_LOGIN_BYTES = 1024 * 1024
"""Maximum size of a response until the login is complete: the client does not trust the broker yet."""
GROWTH = 16
"""A long response's memory is at most this many times the bytes received, or SCRATCH_BYTES if that is more."""
SOFTWARE_NAME = "oncelog"
TLS_ALERT = 0x1503
"""The first two bytes of a TLS alert, with which a TLS listener answers bytes that are not TLS."""

_LENGTH = struct.Struct(">i")


class NoCommonVersionError(Exception):
    """Raised if client and broker have no version of an API in common."""


class _Pending:
    """A request that waits for its response."""

    __slots__ = ("api_key", "correlation_id", "future", "response", "sent_at", "timer", "version")

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        response: type[Message],
        future: asyncio.Future[Any],
        timer: asyncio.TimerHandle,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.response = response
        self.future = future
        self.timer = timer
        self.sent_at: float | None = None
        """When `Traffic.sent` counted it; None if it was not counted."""


_Outgoing = tuple[_Pending | None, list[bytes | memoryview]]
"""A request in chunks. The broker does not answer it if it has no `_Pending`."""


class ClientConnection(asyncio.BufferedProtocol):
    """A connection to one broker. `connect` creates it, and requests the broker's versions and features.

    `versions` maps an API key to the (lowest, highest) version that the broker serves. `features` maps a finalized
    feature to its level (KIP-584).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, client_id: str, request_timeout_ms: int) -> None:
        self._loop = loop
        self._joins = needs_join(loop)
        self._client_id = client_id
        self._timeout = request_timeout_ms / 1000
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._correlation_id = 0
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._end = 0
        self._frame: memoryview | None = None
        self._frame_size = self._got = 0
        self._error: ConnectionLostError | None = None
        self._writable: asyncio.Future[None] | None = None
        self._on_writable: set[Callable[[], object]] = set()
        self._max_response = MAX_LOGIN_BYTES
        self._renewal: SessionRenewal[_Outgoing] | None = None
        """The session; None without a login."""
        self._answered = False
        """Whether the broker has answered any request except ApiVersions."""
        self.ended_by: Exception | None = None
        """The transport's error that ended the connection, if any."""
        self.address = ""
        self.traffic: Traffic | None = None
        """Counts requests and responses from the moment it is set, if it is."""
        self.made_at = self.used_at = loop.time()
        """The loop's time in seconds when the connection was created, and when it last sent a request."""
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}

    # -- calls ----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, so that it can send no more requests."""
        return self._error is not None

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for their responses."""
        renewal = self._renewal
        return len(self._pending) + (0 if renewal is None else renewal.held)

    def version_for(self, request: type[Message]) -> int:
        """Return the highest version of an API that both sides support. Raises NoCommonVersionError."""
        low, high = self.versions.get(request.API_KEY, (0, -1))
        chosen = min(high, request.MAX_VERSION)
        if chosen < max(low, request.MIN_VERSION):
            raise NoCommonVersionError(
                f"{request.__name__}: oncelog supports versions {request.MIN_VERSION} to {request.MAX_VERSION}, but "
                + (
                    f"{self.address} supports {low} to {high}"
                    if high >= 0
                    else f"{self.address} does not support this API"
                )
            )
        return chosen

    def send(
        self, request: Message, version: int | None = None, *, timeout_ms: float | None = None
    ) -> asyncio.Future[Any]:
        """Write a request now. Return a future for its response.

        If there is no response within `timeout_ms` (default: the connection's), the connection is closed. If the
        connection ends, the future fails with ConnectionLostError. Raises ConnectionLostError if it has ended already,
        and NoCommonVersionError.
        """
        self._require_connected()
        pending, chunks = self._encode(request, version, timeout_ms)
        if self._renewal is None or not self._renewal.hold((pending, chunks)):
            self._pending.append(pending)
            self._write(chunks, pending)
        return pending.future

    def _encode(
        self, request: Message, version: int | None, timeout_ms: float | None
    ) -> tuple[_Pending, list[bytes | memoryview]]:
        if version is None:
            version = self.version_for(type(request))
        chunks = self._chunks(request, version)
        future: asyncio.Future[Any] = self._loop.create_future()
        delay = self._timeout if timeout_ms is None else timeout_ms / 1000
        response = messages(ApiKey(request.API_KEY))[1]
        timer = self._loop.call_later(delay, self._timed_out, request)
        return _Pending(request.API_KEY, version, self._correlation_id, response, future, timer), chunks

    def _chunks(self, request: Message, version: int) -> list[bytes | memoryview]:
        """Return the chunks of a request with the next correlation id."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = RequestHeader(request.API_KEY, version, self._correlation_id, self._client_id)
        chunks: list[bytes | memoryview] = [b"", encode_request_header(header), *request.chunks(version)]
        chunks[0] = _LENGTH.pack(sum(map(len, chunks)))
        return chunks

    def send_unanswered(self, request: Message, version: int | None = None) -> None:
        """Write a request that the broker does not answer (Produce with acks=0). Raises the errors of `send`."""
        self._require_connected()
        if version is None:
            version = self.version_for(type(request))
        chunks = self._chunks(request, version)
        if self._renewal is None or not self._renewal.hold((None, chunks)):
            self._write(chunks)

    async def call(self, request: Message, version: int | None = None, *, timeout_ms: float | None = None) -> Any:
        """Send a request and return its response. If it is cancelled, later requests still get their own responses."""
        future = self.send(request, version, timeout_ms=timeout_ms)
        try:
            if self._writable is not None:
                await asyncio.shield(self._writable)
            return await future
        finally:
            del future  # a failed future has an exception, which would keep this frame and the request alive

    def _require_connected(self) -> None:
        if self._transport is None:
            raise self._error or ConnectionLostError("not connected")
        if self._error is not None:
            raise copy(self._error)  # raising one exception many times would collect the frames of all raises

    def close(self, reason: str = "closed by the client") -> None:
        """Close the connection. Requests in flight fail with ConnectionLostError."""
        self._lose(ConnectionLostError(f"{self.address}: {reason}"))

    def _write(self, chunks: list[bytes | memoryview], pending: _Pending | None = None) -> None:
        assert self._transport is not None
        self.used_at = self._loop.time()
        if self.traffic is not None:
            sent_at = self.traffic.sent(_LENGTH.size + _LENGTH.unpack(chunks[0])[0])
            if pending is not None:
                pending.sent_at = sent_at
        if self._joins:
            self._transport.write(b"".join(chunks))
        else:
            self._transport.writelines(chunks)

    def missing(self, security: Security) -> str:
        """Return the first step of `connect` that is not complete."""
        if self._transport is None:
            return "no TCP connection" if security.tls is None else "no TCP connection, or no end of the TLS handshake"
        return "no end of the login" if self.versions else "no response to ApiVersions"

    def trust(self) -> None:
        """Accept responses of any size, because the broker has accepted the login."""
        self._max_response = MAX_RESPONSE_BYTES

    # -- login ----------------------------------------------------------------------------------------------------

    async def log_in(self, login: Login, exchange: Exchange) -> None:
        """Log in, and again before the session expires. Raises LoginRejectedError and ConnectionLostError."""

        def again(exchange: Exchange) -> Awaitable[int]:
            return log_in(self._call_first, login.mechanism, exchange, self.versions, self.address)

        self._renewal = SessionRenewal(
            self._loop,
            login,
            again,
            idle=lambda: not self._pending,
            release=self._release,
            fail=self.close,
        )
        await self._renewal.log_in(exchange)

    async def _call_first(self, request: Message, version: int) -> Any:
        """Send a request of a login, before the requests that wait for it."""
        self._require_connected()
        pending, chunks = self._encode(request, version, None)
        self._pending.append(pending)
        self._write(chunks, pending)
        return await pending.future

    def _release(self, held: list[_Outgoing]) -> None:
        """Send the requests that have waited for a new login."""
        for pending, chunks in held:
            if pending is not None:
                self._pending.append(pending)
            self._write(chunks, pending)
        if not self.congested:
            self._call_back()

    def _timed_out(self, request: Message) -> None:
        self._lose(RequestTimeoutError(f"{self.address} did not answer {type(request).__name__} in time"))

    def _lose(self, error: ConnectionLostError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, deque()
        if self.traffic is not None and pending:
            self.traffic.lost(len(pending))
        if self._renewal is not None:
            pending.extend(item for item, _ in self._renewal.end() if item is not None)
            self._renewal = None
        for item in pending:
            item.timer.cancel()
            if not item.future.done():
                item.future.set_exception(copy(error))
        self.resume_writing()

    # -- called by the transport ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Configure the socket of a new connection."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all requests in flight, because the connection has ended."""
        self.ended_by = error
        why = str(error or "the broker closed the connection")
        if error is None and self._pending and not self._answered and self._renewal is None:
            why += "; a listener that requires TLS or a login does so: check security.protocol"
        self._lose(ConnectionLostError(f"{self.address}: {why}"))

    def pause_writing(self) -> None:
        """Let `call` wait, because the broker reads too slowly."""
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Let waiting calls continue, because the broker has caught up or the connection has ended."""
        waiter, self._writable = self._writable, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if not self.congested:
            self._call_back()

    def _call_back(self) -> None:
        callbacks, self._on_writable = self._on_writable, set()
        for callback in callbacks:
            callback()

    def on_writable(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, when the connection is no longer `congested` or has ended.

        Begin a login that is due.
        """
        self._on_writable.add(callback)
        if self._renewal is not None and self._renewal.due:
            self._renewal.begin()

    @property
    def congested(self) -> bool:
        """Whether the transport's write buffer is above its limit, or requests have to wait for a new login."""
        return self._writable is not None or (self._renewal is not None and self._renewal.due)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next read: the rest of a long response, or the scratch buffer."""
        if self._frame is not None:
            if self._got == len(self._frame):
                grown = memoryview(bytearray(min(self._frame_size, GROWTH * self._got)))
                grown[: self._got] = self._frame
                self._frame = grown
            return self._frame[self._got :]
        return self._scratch[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes of a read."""
        if self._frame is not None:
            self._got += nbytes
            if self._got == self._frame_size:
                frame, self._frame = self._frame, None
                self._answer(frame)
            return
        self._end += nbytes
        start, end, scratch = 0, self._end, self._scratch
        while end - start >= 4 and self._error is None:
            size: int = _LENGTH.unpack_from(scratch, start)[0]
            tls = size >> 16 == TLS_ALERT and not self._answered
            if tls or not 4 <= size <= self._max_response:
                why = (
                    "sent bytes of TLS; set security.protocol to SSL or SASL_SSL"
                    if tls
                    else (f"sent a response of {size} bytes; is it a Kafka broker?")
                )
                self._lose(ConnectionLostError(f"{self.address} {why}"))
                return
            got = end - start - 4
            if got >= size:
                self._answer(memoryview(bytes(scratch[start + 4 : start + 4 + size])))
                start += 4 + size
                continue
            if 4 + size > SCRATCH_BYTES // 2:
                self._frame = memoryview(bytearray(min(size, max(GROWTH * got, SCRATCH_BYTES))))
                self._frame[:got] = scratch[start + 4 : end]
                self._frame_size, self._got = size, got
                start = end
            break
        if start:
            scratch[: end - start] = scratch[start:end]
        self._end = end - start

    def _answer(self, frame: memoryview) -> None:
        if not self._pending:
            self._lose(ConnectionLostError(f"{self.address} sent a response without a request"))
            return
        item = self._pending.popleft()
        item.timer.cancel()
        if self.traffic is not None and item.sent_at is not None:
            self.traffic.answered(item.api_key, _LENGTH.size + len(frame), item.sent_at)
        if self._renewal is not None and not self._pending:
            self._renewal.drained()
        try:
            correlation_id, pos = decode_response_header(frame, item.api_key, item.version)
            if correlation_id != item.correlation_id:
                raise ValueError(f"the response has correlation id {correlation_id} instead of {item.correlation_id}")
            if item.future.done():
                return
            response = _decode(item, frame, pos)
        except ValueError as error:
            failure = ConnectionLostError(f"{self.address}: {item.response.__name__}: {error}")
            if not item.future.done():
                item.future.set_exception(failure)
            self._lose(failure)
            return
        if item.api_key != ApiKey.API_VERSIONS:
            self._answered = True
        item.future.set_result(response)


def _decode(item: _Pending, frame: memoryview, pos: int) -> Message:
    version = item.version
    if item.api_key == ApiKey.API_VERSIONS and frame[pos : pos + 2] == _UNSUPPORTED_VERSION:
        version = 0  # a broker that does not support the version answers in version 0 (KIP-511)
    response, end = item.response.decode_from(frame, pos, version)
    if end != len(frame):
        raise ValueError(f"the response has {len(frame) - end} extra bytes")
    return response


_UNSUPPORTED_VERSION = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")


async def connect(
    host: str,
    port: int,
    *,
    client_id: str = "oncelog",
    request_timeout_ms: int = 30_000,
    connect_timeout_ms: int = 10_000,
    security: Security = PLAINTEXT,
) -> ClientConnection:
    """Connect to a broker, request its versions and features, and log in.

    `connect_timeout_ms` does not include the time for the credentials, which may come from a token endpoint. Raises
    ConnectionLostError, and LoginRejectedError if another attempt with the same settings fails again.
    """
    loop = asyncio.get_running_loop()
    connection = ClientConnection(loop, client_id, request_timeout_ms)
    connection.address = f"{host}:{port}"
    exchange = None if security.login is None else await security.login.begin()
    try:
        async with asyncio.timeout(connect_timeout_ms / 1000):
            context = None if security.tls is None else await security.tls.context()
            await loop.create_connection(lambda: connection, host, port, ssl=context)
            await _learn_versions(connection)
            if security.login is not None and exchange is not None:
                await connection.log_in(security.login, exchange)
    except TimeoutError:
        connection.close("no answer")
        missing = connection.missing(security)
        raise RequestTimeoutError(
            f"cannot connect to {connection.address} within {connect_timeout_ms} ms: {missing}"
        ) from None
    except ConnectionLostError as error:
        connection.close()  # it is open if the broker answered with an error, or with invalid bytes
        raise _tls_failure(security, connection.ended_by, connection) or error from None
    except OSError as error:
        failure = _tls_failure(security, error, connection)
        raise failure or ConnectionLostError(f"{connection.address}: {error.strerror or error}") from error
    except BaseException:
        connection.close()
        raise
    connection.trust()
    return connection


def _tls_failure(security: Security, error: Exception | None, connection: ClientConnection) -> Exception | None:
    """Return the error to raise if TLS failed, otherwise None."""
    if security.tls is None or error is None:
        return None
    from oncelog.net.tls_failures import explain

    return explain(error, connection.address, connected=connection._transport is not None)


async def _learn_versions(connection: ClientConnection) -> None:
    from oncelog.protocol.messages.api_versions import ApiVersionsRequest

    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=__version__)
    response = await connection.call(request, ApiVersionsRequest.MAX_VERSION)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        ranges = {item.api_key: item for item in response.api_keys}
        ours = ranges.get(ApiVersionsRequest.API_KEY)
        highest = min(ours.max_version, ApiVersionsRequest.MAX_VERSION) if ours is not None else 0
        response = await connection.call(request, highest)
    if response.error_code:
        raise ConnectionLostError(
            f"{connection.address} rejected ApiVersions: {ErrorCode.of(response.error_code).name}"
        )
    connection.versions = {item.api_key: (item.min_version, item.max_version) for item in response.api_keys}
    connection.features = {item.name: item.max_version_level for item in response.finalized_features}
