"""The client's connection against a minimal server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from oncelog.net.connection import ClientConnection, NoCommonVersionError, connect
from oncelog.net.failures import ConnectionLostError, RequestTimeoutError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import decode_request_header, encode_response_header
from oncelog.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.metadata import MetadataRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.schema import Message
from support.tracebacks import depth

VERSIONS = [
    ApiVersion(api_key=ApiVersionsRequest.API_KEY, min_version=0, max_version=3),
    ApiVersion(api_key=HeartbeatRequest.API_KEY, min_version=0, max_version=2),
    ApiVersion(api_key=MetadataRequest.API_KEY, min_version=90, max_version=99),
]
Answer = Callable[[HeartbeatRequest, int, asyncio.StreamWriter], Awaitable[None]]


def frame(api_key: int, version: int, correlation_id: int, response: Message) -> bytes:
    body = encode_response_header(api_key, version, correlation_id) + response.encode(version)
    return struct.pack(">i", len(body)) + body


async def with_server(answer: Answer, body: Callable[[int], Awaitable[None]]) -> None:
    """Serve ApiVersions up to version 3 and leave heartbeats to `answer`."""

    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                data = memoryview(await reader.readexactly(size))
                header, pos = decode_request_header(data)
                if header.api_key == ApiVersionsRequest.API_KEY:
                    known = header.api_version <= 3
                    version = header.api_version if known else 0
                    feature = FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2)
                    response = ApiVersionsResponse(
                        error_code=0 if known else ErrorCode.UNSUPPORTED_VERSION,
                        api_keys=VERSIONS,
                        finalized_features=[feature] if known else [],
                    )
                    writer.write(frame(header.api_key, version, header.correlation_id, response))
                else:
                    request = HeartbeatRequest.decode(data[pos:], header.api_version)
                    await answer(request, header.correlation_id, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        await body(server.sockets[0].getsockname()[1])
        await asyncio.gather(*(task for task in serving if task is not None))


def beat(number: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=number, member_id="m")


async def echo(request: HeartbeatRequest, correlation_id: int, writer: asyncio.StreamWriter) -> None:
    """Answer with the received number, byte by byte."""
    response = HeartbeatResponse(throttle_time_ms=request.generation_id)
    for byte in frame(HeartbeatRequest.API_KEY, 2, correlation_id, response):
        writer.write(bytes([byte]))
        await writer.drain()


def run(answer: Answer, body: Callable[[ClientConnection], Awaitable[Any]], **options: Any) -> None:
    async def connected(port: int) -> None:
        connection = await connect("127.0.0.1", port, **options)
        try:
            await body(connection)
        finally:
            connection.close()

    asyncio.run(with_server(answer, connected))


def test_negotiation_falls_back_and_picks_the_highest_common_version() -> None:
    async def body(connection: ClientConnection) -> None:
        assert connection.features == {"transaction.version": 2}
        assert connection.version_for(HeartbeatRequest) == 2
        with pytest.raises(NoCommonVersionError, match="90 to 99"):
            connection.version_for(MetadataRequest)

    run(echo, body)


def test_answers_find_their_requests_even_when_some_are_cancelled() -> None:
    async def body(connection: ClientConnection) -> None:
        tasks = [asyncio.ensure_future(connection.call(beat(number))) for number in range(20)]
        await asyncio.sleep(0)
        for number in range(0, 20, 3):
            tasks[number].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for number, answer in enumerate(done):
            if number % 3:
                assert answer.throttle_time_ms == number
            else:
                assert isinstance(answer, asyncio.CancelledError)
        assert connection.in_flight == 0

    run(echo, body)


def test_long_answers() -> None:
    async def long(request: HeartbeatRequest, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        response = ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=1, min_version=0, max_version=1)] * request.generation_id
        )
        writer.write(frame(ApiVersionsRequest.API_KEY, 0, correlation_id, response))

    async def body(connection: ClientConnection) -> None:
        pending = []
        for count in (100_000, 3, 30_000):
            future = connection.send(beat(count))
            connection._pending[-1].response = ApiVersionsResponse
            connection._pending[-1].version = 0
            pending.append((count, future))
        for count, future in pending:
            assert len((await future).api_keys) == count

    run(long, body)


def test_missing_answer_closes_the_connection() -> None:
    async def silent(request: HeartbeatRequest, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        pass

    async def body(connection: ClientConnection) -> None:
        following = connection.send(beat(2), timeout_ms=60_000)
        with pytest.raises(RequestTimeoutError):
            await connection.call(beat(1), timeout_ms=20)
        with pytest.raises(ConnectionLostError):
            await following
        assert connection.closed
        with pytest.raises(ConnectionLostError):
            connection.send(beat(3))

    run(silent, body)


GARBAGE = [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x04\0\0\0\x63", b"\0\0\0\x05\0\0\0\x02\0"]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_and_disconnects_fail_the_waiting_requests(garbage: bytes) -> None:
    async def broken(request: HeartbeatRequest, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        await writer.drain()
        writer.close()

    async def body(connection: ClientConnection) -> None:
        with pytest.raises(ConnectionLostError):
            await connection.call(beat(1))

    run(broken, body)


def test_refused_connection() -> None:
    async def body() -> None:
        with pytest.raises(ConnectionLostError, match=r"127\.0\.0\.1:1"):
            await connect("127.0.0.1", 1)

    asyncio.run(body())


def test_connection_is_closed_if_the_broker_rejects_it_at_the_start() -> None:
    async def body() -> None:
        hung_up = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            header, _ = decode_request_header(memoryview(await reader.readexactly(size)))
            refusal = ApiVersionsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api_keys=[])
            writer.write(frame(header.api_key, header.api_version, header.correlation_id, refusal))
            await reader.read()
            hung_up.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        with pytest.raises(ConnectionLostError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await connect("127.0.0.1", server.sockets[0].getsockname()[1])
        await asyncio.wait_for(hung_up.wait(), 60)
        server.close()
        await server.wait_closed()

    asyncio.run(body())


class _Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.pieces: list[list[bytes]] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.pieces.append([bytes(data) for data in list_of_data])


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_request_is_written_in_pieces_only_on_loops_that_support_it(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    loop = new_loop()
    try:
        connection, transport = ClientConnection(loop, "client", 1000), _Written()
        connection.connection_made(transport)
        request = ProduceRequest(acks=0, topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=b"")])
        ])  # fmt: skip
        connection.send_unanswered(request, 8)
    finally:
        loop.close()
    (pieces,) = transport.pieces or [transport.writes]
    assert b"".join(pieces).endswith(b"\x00\x00\x00\x00")
    assert (len(pieces) > 1) == bool(transport.pieces) == (new_loop is uvloop.new_event_loop)


class Held(str):
    """A text that can be weakly referenced."""


def test_lost_connection_keeps_no_request() -> None:
    """Before, a shared exception kept the frames of all calls, and the requests in them, until a full collection."""
    references: list[weakref.ref[Held]] = []

    async def hang_up(request: HeartbeatRequest, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def ask(connection: ClientConnection) -> None:
        group = Held("g")
        references.append(weakref.ref(group))
        request = HeartbeatRequest(group_id=group)
        del group
        with contextlib.suppress(ConnectionLostError):
            await connection.call(request)

    async def body(connection: ClientConnection) -> None:
        asked = [asyncio.ensure_future(ask(connection)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ConnectionLostError):
            await connection.call(beat(0))
        await asyncio.gather(*asked)
        del asked
        assert len({depth(lambda: connection.send(beat(1)), ConnectionLostError) for _ in range(5)}) == 1
        await asyncio.sleep(0)
        assert [reference() for reference in references] == 3 * [None]

    gc.disable()
    try:
        run(hang_up, body)
    finally:
        gc.enable()
