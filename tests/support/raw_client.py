"""A transactional writer and a read_committed reader that consist only of protocol messages.

Independent of our client on purpose, so that tests show the broker's behaviour. It retries forever, because time in the
simulation costs nothing, and relies only on the guarantees of Kafka's protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from oncelog.net.connection import ClientConnection, connect
from oncelog.net.failures import ConnectionLostError
from oncelog.net.security import PLAINTEXT, Security
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch, decode_control, decode_records, iter_batches
from oncelog.protocol.schema import Message

RETRY_S = 0.02

RETRIABLE = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class RefusedError(Exception):
    """An error that a retry cannot cure."""

    def __init__(self, request: Message, code: int) -> None:
        super().__init__(f"{ErrorCode(code).name} for {request!r:.200}")
        self.code = ErrorCode(code)


async def connect_to(host: str, port: int, security: Security = PLAINTEXT) -> ClientConnection:
    """Open a connection with short timeouts. Raises ConnectionLostError."""
    return await connect(host, port, request_timeout_ms=2000, connect_timeout_ms=500, security=security)


class RawClient:
    """One connection at a time, reopened when it is lost."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._connection: ClientConnection | None = None

    async def call(
        self, request: Message, error_of: Callable[[Any], int] = lambda r: r.error_code, version: int | None = None
    ) -> Any:
        """Send a request until the response has no retriable error. Raises RefusedError for other errors."""
        while True:
            try:
                response = await (await self.connection_for(request)).call(request, version)
            except ConnectionLostError:
                await asyncio.sleep(RETRY_S)
                continue
            code = error_of(response)
            if not code:
                return response
            if code not in RETRIABLE:
                raise RefusedError(request, code)
            await asyncio.sleep(RETRY_S)

    async def connection_for(self, request: Message) -> ClientConnection:
        """Return an open connection to the broker that a request is for. Raises ConnectionLostError."""
        if self._connection is None or self._connection.closed:
            self._connection = await connect_to(*self._address)
        return self._connection

    async def create_topic(self, name: str, partitions: int) -> UUID:
        """Create the topic if necessary, and return its id."""
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        there = ErrorCode.TOPIC_ALREADY_EXISTS

        def error_of(response: Any) -> int:
            code: int = response.topics[0].error_code
            return 0 if code == there else code

        await self.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000), error_of)
        response = await self.call(
            MetadataRequest(topics=[MetadataRequestTopic(name=name)]), lambda r: r.topics[0].error_code
        )
        topic_id: UUID = response.topics[0].topic_id
        return topic_id

    async def read_committed(self, topic_id: UUID, partition: int, *, until_stable: bool = True) -> list[bytes | None]:
        """Return the values that a read_committed consumer sees. See `read_records`."""
        records, _ = await self.read_records(topic_id, partition, until_stable=until_stable)
        return [record.value for record in records]

    async def read_records(
        self, topic_id: UUID, partition: int, *, first: int = 0, until_stable: bool = True
    ) -> tuple[list[Record], int]:
        """Return the records from the offset `first` on that a read_committed consumer sees, and where they end.

        `until_stable`: no transaction may be open after them.
        """
        records: list[Record] = []
        offset = first
        while True:
            found = await self._fetch(topic_id, partition, offset)
            if until_stable:
                assert found.last_stable_offset == found.high_watermark, f"an open transaction: {found!r:.300}"
            if offset >= found.last_stable_offset:
                return records, int(found.last_stable_offset)
            aborted = {(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions or ()}
            open_aborts: set[int] = set()
            for header, view in iter_batches(found.records):
                open_aborts |= {pid for pid, first in aborted if first <= header.last_offset}
                if header.is_control and header.count:  # compaction may have removed the marker
                    commit, _ = decode_control(view)
                    assert not (commit and header.producer_id in open_aborts)
                    aborted = {
                        entry for entry in aborted if entry[0] != header.producer_id or entry[1] > header.last_offset
                    }
                    open_aborts.discard(header.producer_id)
                elif (
                    not header.is_control
                    and header.base_offset >= offset
                    and not (header.is_transactional and header.producer_id in open_aborts)
                ):
                    records += decode_records(view)
                offset = header.next_offset

    async def _fetch(self, topic_id: UUID, partition: int, offset: int) -> Any:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
        )
        response = await self.call(request, lambda r: r.error_code or r.responses[0].partitions[0].error_code)
        return response.responses[0].partitions[0]


class RawWriter(RawClient):
    """A transactional producer under transaction.version 2."""

    def __init__(self, host: str, port: int, transactional_id: str, timeout_ms: int = 60_000) -> None:
        super().__init__(host, port)
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = -1, -1
        self._sequences: dict[int, int] = {}

    async def start(self) -> None:
        """Start a new session. When this returns, the predecessor's transaction is ended."""
        await self.call(
            FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id]),
            lambda r: r.coordinators[0].error_code,
        )
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        response = await self.call(request)
        self._become(response.producer_id, response.producer_epoch)

    def _become(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self._sequences = {}

    async def write(
        self, topic_id: UUID, partition: int, values: Sequence[bytes | None], now_ms: int, key: bytes | None = None
    ) -> int:
        """Write one batch, which adds the partition to the transaction. Return its offset."""
        sequence = self._sequences.get(partition, 0)
        batch = build_batch(
            [Record(index, now_ms, key, value) for index, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[data])],
        )
        response = await self.call(request, lambda r: r.responses[0].partition_responses[0].error_code)
        self._sequences[partition] = sequence + len(values)
        return int(response.responses[0].partition_responses[0].base_offset)

    async def end(self, commit: bool) -> None:
        """Commit or abort. The next transaction uses the next epoch."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        response = await self.call(request)
        self._become(response.producer_id, response.producer_epoch)
