"""Produce, Fetch and ListOffsets at the protocol level: behaviour that clients rely on without showing it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.requests.apis import PRODUCE_ADVERTISED_MIN, SERVED
from oncelog.net.connection import ClientConnection, connect
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch, decode_records, iter_batches
from support.servers import Server


class Wire:
    """A topic with one partition, over one connection."""

    def __init__(self, connection: ClientConnection, topic: str, topic_id: UUID) -> None:
        self.connection = connection
        self.topic = topic
        self.topic_id = topic_id

    async def produce(self, batch: bytes | bytearray, acks: int = -1) -> Any:
        data = PartitionProduceData(index=0, records=batch)
        topic = TopicProduceData(topic_id=self.topic_id, partition_data=[data])
        response = await self.connection.call(ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[topic]), 13)
        return response.responses[0].partition_responses[0]

    async def fetch(
        self, offset: int, *, session: int = 0, epoch: int = -1, name_it: bool = True, **options: Any
    ) -> Any:
        leader_epoch = options.pop("leader_epoch", -1)
        topic_id = options.pop("topic_id", self.topic_id)
        wanted = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=leader_epoch
        )
        topics = [FetchTopic(topic_id=topic_id, partitions=[wanted])] if name_it else []
        request = FetchRequest(
            **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | options,
            session_id=session,
            session_epoch=epoch,
            topics=topics,
        )
        return await self.connection.call(request, 16)

    async def list_offset(self, timestamp: int, times: int = 1) -> Any:
        wanted = [ListOffsetsPartition(partition_index=0, timestamp=timestamp) for _ in range(times)]
        topic = ListOffsetsTopic(name=self.topic, partitions=wanted)
        response = await self.connection.call(ListOffsetsRequest(replica_id=-1, topics=[topic], timeout_ms=1000), 10)
        return response.topics[0].partitions[0]


def plain(*values: bytes, timestamp: int = 1000) -> bytearray:
    return build_batch([Record(i, timestamp + i, None, value) for i, value in enumerate(values)])


def values_of(partition: Any) -> list[bytes | None]:
    return [record.value for _, view in iter_batches(partition.records) for record in decode_records(view)]


def over_the_wire(
    server: Server, name: str, body: Callable[[Wire], Awaitable[None]], configs: dict[str, str] | None = None
) -> None:
    """Create the topic and run `body` with it."""

    async def run() -> None:
        host, port = server.bootstrap.split(":")
        connection = await connect(host, int(port))
        try:
            entries = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
            topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=entries)
            created: Any = await connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=5000))
            assert created.topics[0].error_code == 0, created.topics[0].error_message
            wire = Wire(connection, name, created.topics[0].topic_id)
            while (await wire.fetch(0)).responses[0].partitions[0].error_code:
                await asyncio.sleep(0.05)  # Apache Kafka answers before the partition has a leader
            await body(wire)
        finally:
            connection.close()

    asyncio.run(run())


def test_served_versions_equal_apache_kafkas(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        response: Any = await wire.connection.call(request)
        ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
        for key, served in SERVED.items():
            if key in (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY):
                assert key not in ranges, "a broker that exports no metrics asks for none"
                continue
            lowest = PRODUCE_ADVERTISED_MIN if key == ApiKey.PRODUCE else served.min_version
            highest = served.max_version
            if key == ApiKey.INIT_PRODUCER_ID and server.name == "apache-kafka":
                highest = 5  # version 6 is unstable there: two-phase commit (KIP-939)
            assert ranges[key] == (lowest, highest), ApiKey(key).name
        finalized = {entry.name: entry.max_version_level for entry in response.finalized_features}
        assert finalized["transaction.version"] == 2

    over_the_wire(server, name, body)


def test_session_names_its_partitions_once(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        await wire.produce(plain(b"one"))
        first = await wire.fetch(0, epoch=0)
        assert first.session_id != 0
        assert values_of(first.responses[0].partitions[0]) == [b"one"]
        session = first.session_id
        # the position moves on; afterwards nothing is new, so the partition is omitted
        await wire.fetch(1, session=session, epoch=1)
        nothing = await wire.fetch(0, session=session, epoch=2, name_it=False)
        assert nothing.responses == []
        await wire.produce(plain(b"two"))
        news = await wire.fetch(0, session=session, epoch=3, name_it=False)
        assert values_of(news.responses[0].partitions[0]) == [b"two"]
        assert (await wire.fetch(0, session=session, epoch=9)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (await wire.fetch(0, session=2**30, epoch=1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    over_the_wire(server, name, body)


def test_fetch_waits_for_the_next_record(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        host, port = server.bootstrap.split(":")
        other = Wire(await connect(host, int(port)), wire.topic, wire.topic_id)
        waiting = asyncio.create_task(wire.fetch(0, max_wait_ms=25_000))
        empty = await other.fetch(0, max_wait_ms=50)
        assert empty.responses[0].partitions[0].error_code == 0
        assert not values_of(empty.responses[0].partitions[0])
        assert not waiting.done()
        await other.produce(plain(b"late"))
        assert values_of((await waiting).responses[0].partitions[0]) == [b"late"]
        other.connection.close()

    over_the_wire(server, name, body)


def test_min_bytes_delays_the_answer(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        host, port = server.bootstrap.split(":")
        other = Wire(await connect(host, int(port)), wire.topic, wire.topic_id)
        waiting = asyncio.create_task(wire.fetch(0, max_wait_ms=25_000, min_bytes=5_000))
        await other.produce(plain(b"x" * 100))
        await other.fetch(0, max_wait_ms=50)
        assert not waiting.done()
        await other.produce(plain(b"y" * 5_000))
        assert len(values_of((await waiting).responses[0].partitions[0])) == 2
        other.connection.close()

    over_the_wire(server, name, body)


def test_fetch_errors(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        async def code(offset: int, **options: Any) -> int:
            response = await wire.fetch(offset, **options)
            return response.error_code or response.responses[0].partitions[0].error_code  # type: ignore[no-any-return]

        await wire.produce(plain(b"a"))
        assert await code(0) == 0
        assert await code(1) == 0
        assert await code(2) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await code(0, leader_epoch=99) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await code(0, topic_id=UUID(int=1)) == ErrorCode.UNKNOWN_TOPIC_ID

    over_the_wire(server, name, body)


def test_offsets_by_time_and_special_values(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        await wire.produce(plain(b"a", b"b", timestamp=1000))
        await wire.produce(plain(b"c", b"d", timestamp=3000))

        async def found(timestamp: int) -> tuple[int, int]:
            answer = await wire.list_offset(timestamp)
            assert answer.error_code == 0
            return answer.timestamp, answer.offset

        assert await found(-2) == (-1, 0)
        assert await found(-1) == (-1, 4)
        assert await found(-3) == (3001, 3)
        assert await found(1001) == (1001, 1)
        assert await found(1002) == (3000, 2)
        assert await found(9000) == (-1, -1)
        assert (await wire.list_offset(-1, times=2)).error_code == ErrorCode.INVALID_REQUEST

    over_the_wire(server, name, body)


def test_damaged_batch_is_rejected_and_the_next_one_accepted(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        damaged = plain(b"payload")
        damaged[-3] ^= 0x40
        assert (await wire.produce(damaged)).error_code == ErrorCode.CORRUPT_MESSAGE
        taken = await wire.produce(plain(b"payload"))
        assert (taken.error_code, taken.base_offset) == (0, 0)

    over_the_wire(server, name, body)


async def producer_id(wire: Wire) -> Any:
    while True:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        response: Any = await wire.connection.call(request)
        if response.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            assert response.error_code == 0
            return response
        await asyncio.sleep(0.05)


def test_retries_gaps_and_stale_sequences(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        now_ms = int(time.time() * 1000)
        ids = await producer_id(wire)

        def numbered(sequence: int) -> bytearray:
            return build_batch(
                # a current timestamp: Apache Kafka drops at once a producer whose last record is a day old
                [Record(0, now_ms, None, b"%d" % sequence)],
                producer_id=ids.producer_id,
                producer_epoch=ids.producer_epoch,
                base_sequence=sequence,
            )

        assert [(await wire.produce(numbered(n))).base_offset for n in range(7)] == list(range(7))
        assert (await wire.produce(numbered(3))).base_offset == 3
        assert (await wire.produce(numbered(8))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await wire.produce(numbered(1))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await wire.produce(numbered(7))).base_offset == 7

    over_the_wire(server, name, body)


def test_min_insync_replicas_above_the_replica_count_is_capped(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        assert (await wire.produce(plain(b"a"))).error_code == 0

    over_the_wire(server, name, body, {"min.insync.replicas": "2"})


def test_invalid_acks(server: Server, name: str) -> None:
    async def body(wire: Wire) -> None:
        assert (await wire.produce(plain(b"a"), acks=2)).error_code == ErrorCode.INVALID_REQUIRED_ACKS

    over_the_wire(server, name, body)


@pytest.mark.parametrize(
    ("setting", "value"), [("segment.bytes", "many"), ("no.such.setting", "1"), ("cleanup.policy", "shred")]
)
def test_wrong_topic_settings(server: Server, name: str, setting: str, value: str) -> None:
    async def body(wire: Wire) -> None:
        entry = CreatableTopicConfig(name=setting, value=value)
        topic = CreatableTopic(name=f"{name}-x", num_partitions=1, replication_factor=1, configs=[entry])
        response: Any = await wire.connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=5000))
        assert response.topics[0].error_code == ErrorCode.INVALID_CONFIG
        assert setting in response.topics[0].error_message

    over_the_wire(server, name, body)
