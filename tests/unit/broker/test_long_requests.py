"""Long requests do not block the event loop: they run in a worker thread or in turns."""

from __future__ import annotations

import asyncio
import struct
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.handlers.list_offsets import bind as list_offsets
from oncelog.broker.handlers.produce import OPENED_A_TURN
from oncelog.broker.handlers.produce import bind as produce
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.dispatch import BadRequestError, Dispatcher
from oncelog.broker.requests.large_messages import (
    CHUNKS_AT_ONCE,
    FEW_ITEMS,
    MOST_ITEMS,
    encoded,
    encoded_elsewhere,
    free,
)
from oncelog.broker.requests.request_times import RequestTimes
from oncelog.broker.turns import ITEMS_A_TURN
from oncelog.log.steps import at_once
from oncelog.log.validate import MOST_NAMED
from oncelog.net.eager import start_eagerly
from oncelog.net.server import Deferred, Session
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.compression import Codec, compress
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from oncelog.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch, decode_records, pack_batch, set_max_timestamp
from oncelog.protocol.schema import Message
from support.broker_fixtures import running
from support.scarce_memory import refuse_large_memory
from support.turns import turns_of_others

NOW = 1_700_000_000_000
MANY = 20_000
SMALLEST = b"\x0c\x00\x00\x00\x01\x01\x00"


COMPUTED = ("first_since", "last_of", "_validated", "decode_at_most", "encoded_elsewhere", "error_answer", "free")


class Workers:
    """Run offloaded work when the gate is open, and record the computations."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.work: list[str] = []

    async def __call__(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await self.gate.wait()
        name = getattr(work, "__name__", "")
        if name in COMPUTED:
            self.work.append(name)
        return work(*arguments)


def live(folder: Path, body: Callable[[Broker, Workers], Awaitable[None]]) -> None:
    """Run `body` on a broker with the topics plain, compacted and compressed."""

    async def run() -> None:
        workers = Workers()
        async with running(folder, now_ms=lambda: NOW, offload=workers) as broker:
            await broker.topics.create("plain", partitions=300)
            await broker.topics.create("compacted", partitions=1, configs={"cleanup.policy": "compact"})
            await broker.topics.create("compressed", partitions=1, configs={"compression.type": "lz4"})
            workers.work.clear()
            try:
                await asyncio.wait_for(body(broker, workers), 60)
            finally:
                workers.gate.set()

    asyncio.run(run())


def context(api: ApiKey, version: int) -> RequestContext:
    return RequestContext(api, version, 1, "test", Session())


async def answer(result: Any) -> Any:
    return result if isinstance(result, Message | None) else await later(result)


async def later(result: Any) -> Any:
    return await (result.answer if isinstance(result, Deferred) else result)


def send(broker: Broker, records: bytes, topic: str, partition: int = 0) -> Any:
    data = PartitionProduceData(index=partition, records=memoryview(bytearray(records)))
    request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=topic, partition_data=[data])])
    return produce(broker.services)(request, context(ApiKey.PRODUCE, 9))


async def sent(broker: Broker, records: bytes, topic: str) -> Any:
    return (await answer(send(broker, records, topic))).responses[0].partition_responses[0]


def many(count: int = MANY, *, claims: int = 0, record: bytes = SMALLEST) -> bytes:
    """Return a small batch of many identical records."""
    payload = compress(Codec.ZSTD, record * count)
    return bytes(pack_batch(payload, claims or count, attributes=Codec.ZSTD, base_timestamp=NOW, max_timestamp=NOW))


def keyed(count: int, codec: Codec = Codec.NONE, value: bytes = b"") -> bytes:
    return bytes(build_batch([Record(0, NOW + index, b"k", value) for index in range(count)], codec=codec))


def by_time(broker: Broker, timestamp: int, topic: str = "plain") -> Any:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    return start_eagerly(list_offsets(broker.services)(request, context(ApiKey.LIST_OFFSETS, 7)))


# --- ListOffsets ---


def test_lookup_by_time_decodes_compressed_batch_in_a_worker_while_others_are_served(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        await sent(broker, many(), "plain")
        workers.gate.clear()
        lookup = asyncio.ensure_future(by_time(broker, NOW))
        await asyncio.sleep(0.05)
        assert not lookup.done()
        assert not (await sent(broker, keyed(1), "plain")).error_code
        workers.gate.set()
        found = (await lookup).topics[0].partitions[0]
        assert (found.error_code, found.timestamp, found.offset) == (0, NOW, 0)
        assert workers.work == ["first_since"]

    live(tmp_path, body)


def test_lookup_by_time_in_small_plain_batch_needs_no_worker(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        await sent(broker, keyed(5), "plain")
        assert by_time(broker, NOW + 3).topics[0].partitions[0].offset == 3
        assert by_time(broker, NOW + 9).topics[0].partitions[0].offset == -1
        assert not workers.work

    live(tmp_path, body)


def test_lookup_by_time_skips_batch_whose_header_is_wrong(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        lying = build_batch([Record(0, NOW, b"k", b"")])
        set_max_timestamp(lying, 0, 0, NOW + 500)
        for records in (bytes(lying), keyed(1), keyed(20)):
            assert not (await sent(broker, records, "plain")).error_code
        assert (await answer(by_time(broker, NOW + 15))).topics[0].partitions[0].offset == 17

    live(tmp_path, body)


def test_lookup_by_time_yields_between_many_headers(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        for _ in range(2980):
            await sent(broker, keyed(1), "plain")
        await sent(broker, keyed(2), "plain")
        lookup = by_time(broker, NOW + 1)
        assert not isinstance(lookup, Message), "the work waits between two steps"
        assert (await lookup).topics[0].partitions[0].offset == 2981

    live(tmp_path, body)


# --- Produce ---


def test_records_of_compressed_batch_are_checked_in_a_worker_while_others_are_served(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        workers.gate.clear()
        first = asyncio.ensure_future(sent(broker, keyed(100, Codec.ZSTD), "compacted"))
        await asyncio.sleep(0.05)
        assert not first.done()
        assert not (await sent(broker, keyed(1), "plain")).error_code
        workers.gate.set()
        assert ((await first).error_code, (await first).base_offset) == (0, 0)
        assert workers.work == ["_validated"]

    live(tmp_path, body)


def test_small_plain_batch_is_checked_at_once(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        assert isinstance(send(broker, keyed(10), "compacted"), Message)
        assert not workers.work

    live(tmp_path, body)


def test_batch_for_another_codec_is_compressed_in_a_worker(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        result = await sent(broker, keyed(10, Codec.ZSTD, bytes(2000)), "compressed")
        assert not result.error_code
        assert workers.work == ["_validated"]
        log = broker.partitions.require("compressed", 0).log
        assert len(decode_records(log.read(0, 10**6, upto=10, at_least_one=True))) == 10

    live(tmp_path, body)


def test_first_invalid_records_are_named_by_the_worker(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        result = await sent(broker, many(), "compacted")
        assert result.error_code == ErrorCode.INVALID_RECORD
        assert result.log_start_offset == 0
        assert [error.batch_index for error in result.record_errors] == list(range(MOST_NAMED))
        assert f"{MANY} of {MANY} records are invalid" in result.error_message
        assert workers.work == ["_validated"]
        assert broker.partitions.require("compacted", 0).log.log_end_offset == 0

    live(tmp_path, body)


@pytest.mark.parametrize("claims", [MANY + 1, 2**31 - 1])
def test_batch_that_claims_too_many_records_is_rejected(tmp_path: Path, claims: int) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        result = await sent(broker, many(claims=claims), "compacted")
        assert result.error_code == ErrorCode.INVALID_RECORD

    live(tmp_path, body)


def test_topic_deleted_while_its_records_are_checked_returns_an_error(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        workers.gate.clear()
        pending = asyncio.ensure_future(sent(broker, keyed(100, Codec.ZSTD), "compacted"))
        await asyncio.sleep(0)
        topic = broker.metadata.image.topic("compacted")
        assert topic is not None
        at_once(broker.partitions.dropping(topic))
        workers.gate.set()
        assert (await pending).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    live(tmp_path, body)


def test_request_for_many_partitions_yields_between_appends(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        data = [PartitionProduceData(index=index, records=keyed(1)) for index in range(300)]
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="plain", partition_data=data)])
        pending = produce(broker.services)(request, context(ApiKey.PRODUCE, 9))
        assert isinstance(pending, Deferred)
        with turns_of_others() as turns:
            response = await answer(pending)
        assert turns.count >= 4
        assert not any(part.error_code for part in response.responses[0].partition_responses)

    live(tmp_path, body)


def test_topics_without_partitions_yield_to_other_requests(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="plain") for _ in range(1000)])
        pending = produce(broker.services)(request, context(ApiKey.PRODUCE, 9))
        assert isinstance(pending, Deferred)
        with turns_of_others() as turns:
            response = await answer(pending)
        assert turns.count >= 1000 // (OPENED_A_TURN + 1) + 1000 // (ITEMS_A_TURN + 1)
        assert len(response.responses) == 1000

    live(tmp_path, body)


# --- memory ---


def test_request_that_needs_too_much_memory_gets_a_retriable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = keyed(10, Codec.ZSTD, bytes(200_000))

    async def body(broker: Broker, workers: Workers) -> None:
        await sent(broker, large, "plain")
        with monkeypatch.context() as scarce:
            refuse_large_memory(scarce)
            refused = await sent(broker, large, "compacted")
            found = (await answer(by_time(broker, NOW + 3))).topics[0].partitions[0]
            parts = [PartitionProduceData(index=0, records=memoryview(bytearray(batch))) for batch in (large, keyed(1))]
            topics = [
                TopicProduceData(name=name, partition_data=[part])
                for name, part in zip(("compacted", "plain"), parts, strict=True)
            ]
            request = ProduceRequest(acks=-1, topic_data=topics)
            both = await answer(produce(broker.services)(request, context(ApiKey.PRODUCE, 9)))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "memory" in refused.error_message
        assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        codes = [topic.partition_responses[0].error_code for topic in both.responses]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
        assert all(directory.online for directory in broker.directories)
        assert not (await sent(broker, large, "compacted")).error_code
        assert (await answer(by_time(broker, NOW + 3))).topics[0].partitions[0].offset == 3

    live(tmp_path, body)


# --- decoding and encoding ---


def metadata_frame(count: int) -> memoryview:
    topics = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(count)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    header = encode_request_header(RequestHeader(ApiKey.METADATA, 8, 5, "test"))
    return memoryview(bytearray(header + request.encode(8)))


def test_request_with_many_elements_is_decoded_and_answered_by_a_worker(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        result = Dispatcher(broker.services)(metadata_frame(FEW_ITEMS + 1), Session("", 1, 1))
        chunks = b"".join(await later(result))
        _, pos = decode_response_header(memoryview(chunks), ApiKey.METADATA, 8)
        response: Any = messages(ApiKey.METADATA)[1].decode(chunks[pos:], 8)
        assert [topic.name for topic in response.topics] == [f"unknown-{number}" for number in range(FEW_ITEMS + 1)]
        assert workers.work[:2] == ["decode_at_most", "encoded_elsewhere"]

    live(tmp_path, body)


def test_request_with_few_elements_needs_no_worker(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        result = Dispatcher(broker.services)(metadata_frame(10), Session("", 1, 1))
        chunks = result if isinstance(result, list) else start_eagerly(result.answer)  # type: ignore[arg-type]
        assert isinstance(chunks, list)
        assert not workers.work

    live(tmp_path, body)


def test_request_that_fails_at_once_is_counted(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        times = RequestTimes()
        dispatcher = Dispatcher(broker.services, times)

        def reject(*_: object) -> None:
            raise ProtocolError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")

        dispatcher._handlers[ApiKey.METADATA] = reject  # type: ignore[assignment]
        for _ in range(3):
            dispatcher(metadata_frame(1), Session("", 1, 1))
        assert times.of("Metadata").count == 3

    live(tmp_path, body)


def test_pieces_of_a_large_answer_stay_in_order_and_its_records_are_not_copied() -> None:
    records = memoryview(bytearray(b"records" * 100))
    partitions = [
        PartitionData(partition_index=index, high_watermark=0, records=records if index % 5000 == 7 else b"")
        for index in range(12_000)
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    plain = encoded(response, ApiKey.FETCH, 12, 3)
    assert len(plain) > 2 * CHUNKS_AT_ONCE
    holder: list[Message | None] = [response]
    chunks = encoded_elsewhere(holder, ApiKey.FETCH, 12, 3)
    assert holder == []
    assert b"".join(chunks) == b"".join(plain)
    assert [chunk for chunk in chunks if chunk is records] == [records] * 3
    assert len(chunks) < 20


def test_request_with_many_elements_is_freed_by_a_worker(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        await later(Dispatcher(broker.services)(metadata_frame(FEW_ITEMS + 1), Session("", 1, 1)))
        while "free" not in workers.work:
            await asyncio.sleep(0)

    live(tmp_path, body)


def test_message_is_freed_with_its_elements() -> None:
    class Payload:
        """The object that an element refers to."""

    data = [PartitionProduceData(index=index, records=Payload()) for index in range(10)]
    references = [weakref.ref(each.records) for each in data]
    holder: list[Message | None] = [ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=data)])]
    del data
    assert all(reference() is not None for reference in references)
    free(holder)
    assert all(reference() is None for reference in references)


def test_refusal_of_request_with_many_elements_is_built_by_a_worker(tmp_path: Path) -> None:
    topics = [MetadataRequestTopic(name=None, topic_id=UUID(int=number)) for number in range(FEW_ITEMS + 1)]
    header = encode_request_header(RequestHeader(ApiKey.METADATA, 10, 5, "test"))
    frame = header + MetadataRequest(topics=topics).encode(10)

    async def body(broker: Broker, workers: Workers) -> None:
        chunks = b"".join(await later(Dispatcher(broker.services)(memoryview(bytearray(frame)), Session("", 1, 1))))
        _, pos = decode_response_header(memoryview(chunks), ApiKey.METADATA, 10)
        response: Any = messages(ApiKey.METADATA)[1].decode(chunks[pos:], 10)
        assert {topic.error_code for topic in response.topics} == {ErrorCode.INVALID_REQUEST}
        assert len(response.topics) == FEW_ITEMS + 1
        assert workers.work[:3] == ["decode_at_most", "error_answer", "encoded_elsewhere"]

    live(tmp_path, body)


def test_request_with_too_many_elements_is_rejected(tmp_path: Path) -> None:
    async def body(broker: Broker, workers: Workers) -> None:
        header = encode_request_header(RequestHeader(ApiKey.METADATA, 1, 5, "test"))
        frame = header + struct.pack(">i", MOST_ITEMS + 1) + b"\x00\x01a" * (MOST_ITEMS + 1)
        result = Dispatcher(broker.services)(memoryview(bytearray(frame)), Session("", 1, 1))
        with pytest.raises(BadRequestError, match="more than 500000 array elements"):
            await later(result)

    live(tmp_path, body)
