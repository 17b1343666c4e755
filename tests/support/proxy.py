"""A proxy between our client and a broker that loses, delays and answers Produce requests as a test configures.

`redirect` connects the client through it. Other requests pass unchanged.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from oncelog.client.connections import pool as connections
from oncelog.net.connection import ClientConnection, connect
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import decode_request_header, encode_response_header
from oncelog.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from oncelog.protocol.records import BatchHeader, parse_header
from support.wire import WAIT_S, frame_from

PASS, LOSE_REQUEST, LOSE_ANSWER, HOLD = "pass", "lose the request", "lose the answer", "hold"
"""The fate of a Produce request.

The middle two close the connection. HOLD closes it, too, but the request arrives at the broker when `Proxy.release` is
called. For an ErrorCode, the proxy answers.
"""


class Appended(NamedTuple):
    """The request arrives and takes effect, but its response is this error."""

    error: ErrorCode


Fate = str | ErrorCode | Appended


class Produced:
    """A Produce request in transit: its batches in the order of the request, and the bytes of each."""

    def __init__(self, number: int, request: ProduceRequest) -> None:
        self.number = number
        self.request = request
        self.records = [bytes(part.records or b"") for topic in request.topic_data for part in topic.partition_data]
        self.batches: list[BatchHeader] = [parse_header(records) for records in self.records]

    @property
    def sequence(self) -> int:
        """Return the first batch's sequence."""
        return self.batches[0].base_sequence

    @property
    def epoch(self) -> int:
        """Return the first batch's epoch."""
        return self.batches[0].producer_epoch


class Proxy:
    """Listen at `port`. `rule` returns the fate of each Produce request, in the order of arrival."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.rule: Callable[[Produced], Fate] = lambda request: PASS
        self.seen: list[Produced] = []
        self._held: list[tuple[socket.socket, bytes]] = []
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        for each in self._sockets:
            shut(each)

    def release(self) -> int:
        """Let the held requests arrive in order, wait for the broker's responses, and return their number."""
        with self._lock:
            held, self._held = self._held, []
        for upstream, frame in held:
            upstream.sendall(struct.pack(">i", len(frame)) + frame)
            upstream.settimeout(WAIT_S)
            assert frame_from(upstream) is not None, "the broker closed the connection on a late request"
        return len(held)

    def link(self, client: socket.socket, upstream: socket.socket) -> None:
        """Forward between a client's new connection and its connection to the broker, in threads."""
        _Link(self, client, upstream)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                try:
                    upstream = socket.create_connection(self._target, timeout=WAIT_S)
                except OSError:
                    shut(client)
                    continue
                upstream.settimeout(None)
                self._sockets.append(upstream)
                self.link(client, upstream)

    def _fate(self, frame: bytes) -> tuple[Fate, ProduceRequest | None, int]:
        header, position = decode_request_header(memoryview(frame))
        if header.api_key != ApiKey.PRODUCE:
            return PASS, None, 0
        request, _ = ProduceRequest.decode_from(memoryview(frame), position, header.api_version)
        with self._lock:
            produced = Produced(len(self.seen), request)
            self.seen.append(produced)
            return self.rule(produced), request, header.api_version


class _Link:
    """One client's connection and its connection to the broker."""

    def __init__(self, proxy: Proxy, client: socket.socket, upstream: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream = upstream
        self._cut_after: set[int] = set()
        self._instead: dict[int, bytes] = {}
        self._quiet = False
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._answers, daemon=True).start()

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            while (frame := frame_from(self._client)) is not None:
                if not self._one(frame):
                    return
        if not self._quiet:
            shut(self._upstream)

    def _one(self, frame: bytes) -> bool:
        fate, request, version = self._proxy._fate(frame)
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        if isinstance(fate, ErrorCode | Appended):
            assert request is not None
            error = fate if isinstance(fate, ErrorCode) else fate.error
            answer = encode_response_header(ApiKey.PRODUCE, version, correlation_id)
            answer += refusal(request, error).encode(version)
            if isinstance(fate, ErrorCode):
                self._client.sendall(struct.pack(">i", len(answer)) + answer)
                return True
            self._instead[correlation_id] = answer
        if fate == LOSE_REQUEST:
            shut(self._client)
            shut(self._upstream)
            return False
        if fate == HOLD:
            self._quiet = True
            upstream = socket.create_connection(self._proxy._target, timeout=WAIT_S)
            self._proxy._sockets.append(upstream)
            self._proxy._held.append((upstream, frame))
            shut(self._client)
            shut(self._upstream)
            return False
        if fate == LOSE_ANSWER:
            self._cut_after.add(correlation_id)
        self._upstream.sendall(struct.pack(">i", len(frame)) + frame)
        return True

    def _answers(self) -> None:
        with contextlib.suppress(OSError):
            while (frame := frame_from(self._upstream)) is not None:
                (correlation_id,) = struct.unpack_from(">i", frame)
                if correlation_id in self._cut_after:
                    break
                frame = self._instead.get(correlation_id, frame)
                self._client.sendall(struct.pack(">i", len(frame)) + frame)
        shut(self._client)


def refusal(request: ProduceRequest, error: ErrorCode) -> ProduceResponse:
    """Return a response with the same error for each partition."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=part.index, error_code=error, base_offset=-1)
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def redirect(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> None:
    """Connect every client created from now on through the proxy, whatever address it has."""

    async def through(host: str, port: int, **options: Any) -> ClientConnection:
        return await connect("127.0.0.1", proxy.port, **options)

    monkeypatch.setattr(connections, "connect", through)


def shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
