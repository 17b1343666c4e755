"""The broker frees a request's bytes after its answer, without a garbage collection."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.requests.dispatch import Dispatcher
from oncelog.broker.requests.large_messages import FEW_ITEMS
from oncelog.net.server import BadFrameError, Deferred
from oncelog.net.session import Session
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from oncelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message
from support.broker_fixtures import NOW, BrokerStorage

E = ErrorCode
PEER = Session("127.0.0.1", 1, 1)


class Frame(bytearray):
    """Bytes of a request. Unlike a bytearray, it can be weakly referenced."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def frame(request: Message, version: int) -> Frame:
    header = RequestHeader(request.API_KEY, version, 1, "test")
    return Frame(encode_request_header(header) + request.encode(version))


async def serve(broker: Broker, request: Message, version: int) -> tuple[bytes | None, weakref.ref[Frame]]:
    """Serve one request as a connection does. Return the answer, and a reference to the request's bytes."""
    bytes_of_it = frame(request, version)
    reference = weakref.ref(bytes_of_it)
    answer: Any = Dispatcher(broker.services)(memoryview(bytes_of_it), PEER)
    del bytes_of_it, request
    if isinstance(answer, Deferred):
        answer = answer.answer
    if isinstance(answer, Awaitable):
        answer = await answer
    return (None if answer is None else b"".join(answer)), reference


def produce(records: bytes | bytearray | None, topic: str = "t", acks: int = 1, **fields: Any) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=records)]
    where = {"topic_id": UUID(int=7)} if not topic else {"name": topic}
    topics = [TopicProduceData(**where, partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics, **fields)


def batch(values: int = 1, **options: Any) -> bytearray:
    return build_batch([Record(index, NOW, None, b"v" * 100) for index in range(values)], **options)


def damaged() -> bytearray:
    found = batch()
    found[-1] ^= 1
    return found


TRANSACTIONAL = {"producer_id": 77, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
REFUSED: dict[str, tuple[Callable[[], ProduceRequest], int, ErrorCode]] = {
    "too large": (lambda: produce(batch(20)), 9, E.MESSAGE_TOO_LARGE),
    "damaged": (lambda: produce(damaged()), 9, E.CORRUPT_MESSAGE),
    "cut off": (lambda: produce(batch()[:-1]), 9, E.CORRUPT_MESSAGE),
    "no records": (lambda: produce(None), 9, E.INVALID_RECORD),
    "unknown topic": (lambda: produce(batch(), "nope"), 9, E.UNKNOWN_TOPIC_OR_PARTITION),
    "unknown id": (lambda: produce(batch(), ""), 13, E.UNKNOWN_TOPIC_ID),
    "internal topic": (lambda: produce(batch(), "__consumer_offsets"), 9, E.INVALID_TOPIC_EXCEPTION),
    "wrong acks": (lambda: produce(batch(), acks=7), 9, E.INVALID_REQUIRED_ACKS),
    "zstd too early": (lambda: produce(batch(codec=Codec.ZSTD)), 3, E.UNSUPPORTED_COMPRESSION_TYPE),
    "no key": (lambda: produce(batch(3), "compacted"), 9, E.INVALID_RECORD),
    "no transactional id": (
        lambda: produce(batch(**TRANSACTIONAL)), 9, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    ),
    "unknown transaction": (
        lambda: produce(batch(**TRANSACTIONAL), transactional_id="unknown"), 12, E.INVALID_PRODUCER_ID_MAPPING
    ),
    "unverified": (
        lambda: produce(batch(**TRANSACTIONAL), transactional_id="unknown"), 11, E.INVALID_PRODUCER_ID_MAPPING
    ),
    "damaged in a transaction": (lambda: produce(damaged(), transactional_id="unknown"), 11, E.CORRUPT_MESSAGE),
}  # fmt: skip


async def start(broker: Broker) -> None:
    await broker.topics.create("t", partitions=1, configs={"max.message.bytes": "1000"})
    await broker.topics.create("compacted", partitions=1, configs={"cleanup.policy": "compact"})
    await broker.topics.ensure_internal("__transaction_state")
    await broker.topics.ensure_internal("__consumer_offsets")


@pytest.mark.parametrize("case", REFUSED)
def test_rejected_produce_releases_its_bytes(storage: BrokerStorage, case: str) -> None:
    request, version, code = REFUSED[case]

    async def life(broker: Broker) -> None:
        await start(broker)
        answer, reference = await serve(broker, request(), version)
        assert answer is not None
        view = memoryview(answer)
        _, position = decode_response_header(view, ProduceRequest.API_KEY, version)
        partition = ProduceResponse.decode(view[position:], version).responses[0].partition_responses[0]
        assert partition.error_code == code, partition
        assert partition.error_message or version < 8
        assert reference() is None, "the rejected request is still in memory"

    storage.run_broker(life)


def test_produce_that_a_failed_disk_rejects_releases_its_bytes(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await start(broker)
        storage.disk.break_down("write", str(Path(storage.paths[0]).parent))
        answer, reference = await serve(broker, produce(batch()), 9)
        assert answer is not None
        assert int(E.KAFKA_STORAGE_ERROR).to_bytes(2, "big") in answer
        while not broker.partitions.is_offline("t", 0):
            await asyncio.sleep(0.001)
        assert reference() is None, "the failure of the directory holds the request"
        storage.disk.repair()

    storage.run_broker(life)


def test_waiting_request_of_many_elements_releases_its_bytes(storage: BrokerStorage) -> None:
    """A worker thread decodes a copy, because the read buffer is reused for the next requests."""

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        partitions = [FetchPartition(partition=0, partition_max_bytes=1) for _ in range(FEW_ITEMS + 1)]
        request = FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=partitions)])
        bytes_of_it = frame(request, 12)
        reference = weakref.ref(bytes_of_it)
        session = Session()
        deferred: Any = Dispatcher(broker.services)(memoryview(bytes_of_it), session)
        del bytes_of_it, request, partitions
        assert not deferred.keeps_frame
        task = asyncio.ensure_future(deferred.answer)
        while not session.waiting:
            await asyncio.sleep(0.001)
        assert reference() is None
        assert not task.done()
        session.disconnected()
        await task

    storage.run_broker(life)


def joining(protocols: list[JoinGroupRequestProtocol]) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=protocols,
    )


async def settled_group(broker: Broker) -> None:
    """Create a group of one member, for which others have to wait."""
    protocols = [JoinGroupRequestProtocol(name="p0", metadata=b"")]
    while True:
        answer, _ = await serve(broker, joining(protocols), 3)
        assert answer is not None
        _, position = decode_response_header(memoryview(answer), JoinGroupRequest.API_KEY, 3)
        if not JoinGroupResponse.decode(answer[position:], 3).error_code:
            return
        await asyncio.sleep(0.001)


def test_rejected_produce_with_acks_0_releases_its_bytes(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await start(broker)
        references = []
        for records in (batch(20), damaged()):
            bytes_of_it = frame(produce(records, acks=0), 9)
            references.append(weakref.ref(bytes_of_it))
            message = ""
            try:
                Dispatcher(broker.services)(memoryview(bytes_of_it), PEER)
            except BadFrameError as error:
                message = str(error)
            assert message.startswith("Produce with acks=0 failed: ")
            del bytes_of_it
        assert [reference() for reference in references] == [None, None]

    storage.run_broker(life)
