"""What a small request costs at the edge of a connection: no task, no timer, and no more memory than it needs.

A Produce that waits for its records to be stored or committed has one task, and one timer.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.net.server import ServerConnection
from oncelog.net.server_options import DEFAULT_LISTENER
from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import NOW, BrokerStorage

ROUNDS = 200
WAITING_BYTES = 5700
"""The memory that a Produce may take while it waits, with its task and its timer: a fifth more than in CPython 3.11."""
MOST_BYTES = {ProduceRequest.API_KEY: 4000, FetchRequest.API_KEY: 3500}
"""The memory that all objects of a request may take at once: a fifth more than in CPython 3.11."""
RECORDS = bytes(build_batch([Record(0, NOW, b"k", b"v")]))
PRODUCE = ProduceRequest(
    acks=1, topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=RECORDS)])]
)
FETCH = FetchRequest(
    session_epoch=-1,
    max_wait_ms=0,
    min_bytes=1,
    topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)])],
)
small_requests = pytest.mark.parametrize(("request_", "version"), [(PRODUCE, 9), (FETCH, 12)], ids=["Produce", "Fetch"])


class Wire:
    """A transport that keeps nothing of what is written."""

    def __init__(self) -> None:
        self.answers = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: bytes) -> None:
        self.answers += 1

    def abort(self) -> None:
        """Do nothing."""


class Client:
    """A connection to a broker without a socket. Its requests and the server's work share a step of the event loop."""

    def __init__(self, broker: Broker, request: Any, version: int) -> None:
        header = encode_request_header(RequestHeader(request.API_KEY, version, 1, "test"))
        body = bytes(header) + bytes(request.encode(version))
        self._frame = struct.pack(">i", len(body)) + body
        self._connection = ServerConnection(broker.server, DEFAULT_LISTENER)
        self._wire: Any = Wire()
        self._connection.connection_made(self._wire)

    def ask(self, count: int) -> None:
        before = self.answers
        for _ in range(count):
            self.send()
        assert self.answers == before + count

    def send(self) -> None:
        self._connection.get_buffer(-1)[: len(self._frame)] = self._frame
        self._connection.buffer_updated(len(self._frame))

    @property
    def answers(self) -> int:
        """The number of responses."""
        answers: int = self._wire.answers
        return answers

    def close(self) -> None:
        self._connection.connection_lost(None)


def serve(folder: Path, life: Callable[[Broker], Awaitable[None]], **settings: str) -> None:
    async def body(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        await life(broker)

    BrokerStorage(folder).run_broker(body, **settings)


@small_requests
def test_small_request_creates_no_task_and_no_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: Any, version: int
) -> None:
    async def life(broker: Broker) -> None:
        client = Client(broker, request_, version)
        client.ask(10)
        loop, made = asyncio.get_running_loop(), []
        for name in ("create_task", "call_soon", "call_later", "call_at", "create_future"):
            monkeypatch.setattr(loop, name, lambda *arguments, name=name, **options: made.append(name))
        client.ask(ROUNDS)
        monkeypatch.undo()
        client.close()
        assert made == []

    serve(tmp_path, life)


@small_requests
def test_small_request_takes_little_memory_and_keeps_none(tmp_path: Path, request_: Any, version: int) -> None:
    async def life(broker: Broker) -> None:
        client = Client(broker, request_, version)
        client.ask(ROUNDS)
        gc.collect()
        gc.disable()
        blocks = sys.getallocatedblocks()
        client.ask(ROUNDS)
        kept = sys.getallocatedblocks() - blocks
        tracemalloc.start()
        try:
            client.ask(10)
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            client.ask(1)
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
            gc.enable()
        client.close()
        assert kept < ROUNDS  # less than one object of each request
        assert peak <= MOST_BYTES[request_.API_KEY]

    serve(tmp_path, life)


@pytest.mark.parametrize("acks", [1, -1])
def test_waiting_produce_takes_little_memory_one_task_and_one_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    async def life(broker: Broker) -> None:
        request = copy(PRODUCE)
        request.acks, request.timeout_ms = acks, 60_000
        clients = [Client(broker, request, 9) for _ in range(ROUNDS + 2)]
        clients[0].send()  # it begins the sync that all wait for
        loop, made = asyncio.get_running_loop(), []
        with monkeypatch.context() as patch:
            for name in ("create_task", "call_soon", "call_later", "call_at", "create_future"):
                make = getattr(loop, name)
                patch.setattr(
                    loop,
                    name,
                    lambda *given, _make=make, _name=name, **named: made.append(_name) or _make(*given, **named),
                )
            clients[1].send()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for client in clients[2:]:
                client.send()
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            gc.enable()
        assert [client.answers for client in clients] == [0] * len(clients)
        while sum(client.answers for client in clients) < len(clients):
            await asyncio.sleep(0.001)
        for client in clients:
            client.close()
        assert sorted(set(made)) == sorted(made), "one of each"
        assert {"call_later", "create_future", "create_task"} <= set(made)
        assert taken / ROUNDS <= WAITING_BYTES

    serve(tmp_path, life, log_flush_interval_messages="1")
