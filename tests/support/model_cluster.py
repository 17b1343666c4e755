"""A minimal cluster of one broker for a producer's sender, with injected faults.

It knows only the parts of Kafka that exactly-once relies on: producer epochs, sequences and the last five batches per
partition, and one transaction per transactional id, in both protocol versions. `fault()` returns the fate of every
request.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.calls import Calls
from oncelog.client.discovery.topology import Partition, Topic, Topology
from oncelog.client.metrics.requests import Requests
from oncelog.client.troubles import Troubles
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from oncelog.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from oncelog.protocol.records import check_batch, decode_records, parse_header
from oncelog.protocol.schema import NO_UUID, Message

NODE = 1
REMEMBERED = 5
FINE, LOST_REQUEST, LOST_ANSWER, BUSY, LATE, SLOW = "fine", "lost request", "lost answer", "busy", "late", "slow"
REQUEST_TIMEOUT = 0.03
"""Seconds after which a client closes a connection. Its requests may still arrive later."""
SLOW_SECONDS = 0.02
"""How long a slow Produce takes to reach the log. Its connection remains open."""
FAULTS = (FINE, LOST_REQUEST, LOST_ANSWER, BUSY, LATE, SLOW)


class Entry(NamedTuple):
    """One record in a partition's log, or (value None) a marker."""

    producer_id: int
    epoch: int
    transactional: bool
    value: bytes | None
    commit: bool = False


class Log:
    """One partition, which accepts batches of at most `largest` records."""

    def __init__(self, largest: int = 1 << 20) -> None:
        self.largest = largest
        self.entries: list[Entry] = []
        self.producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        """Producer id -> (epoch, last five batches as (first sequence, last sequence, offset))."""

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        header = parse_header(data)
        check_batch(header, memoryview(data))
        if header.count > self.largest:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        epoch, batches = self.producers.get(header.producer_id, (-1, []))
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch > epoch:
            if epoch >= 0 and header.base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            batches = []
        for first, last, offset in batches:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return ErrorCode.NONE, offset
        expected = (batches[-1][1] + 1) & 0x7FFFFFFF if batches else 0
        if epoch >= 0 and header.base_sequence != expected:  # any sequence is accepted from an unknown producer
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = len(self.entries)
        remembered = [*batches, (header.base_sequence, header.last_sequence, offset)][-REMEMBERED:]
        self.producers[header.producer_id] = (header.producer_epoch, remembered)
        for record in decode_records(data):
            self.entries.append(Entry(header.producer_id, header.producer_epoch, header.is_transactional, record.value))
        return ErrorCode.NONE, offset

    def mark(self, producer_id: int, epoch: int, commit: bool) -> None:
        self.entries.append(Entry(producer_id, epoch, True, None, commit))
        known, batches = self.producers.get(producer_id, (-1, []))
        self.producers[producer_id] = (max(known, epoch), batches if known >= epoch else [])

    def committed(self) -> list[bytes]:
        """Return what a read_committed reader sees."""
        seen: list[bytes] = []
        pending: dict[int, list[bytes]] = {}
        for entry in self.entries:
            if entry.value is None:
                values = pending.pop(entry.producer_id, [])
                seen += values if entry.commit else []
            elif entry.transactional:
                pending.setdefault(entry.producer_id, []).append(entry.value)
            else:
                seen.append(entry.value)
        return seen


class ModelCluster:
    """The methods of a ClusterClient that `ProducerCore` uses, with one topic `t` and every coordinator on one
    broker. As in the client, Produce has a connection of its own.

    `verifies`: before TV2, a leader asks the coordinator whether the transaction has the partition, as since Kafka 3.6.
    """

    connection_type: type[ModelConnection]
    backoff_ms = (100, 1_000)
    """The first and the longest pause before a retry."""

    def __init__(
        self,
        partitions: int,
        fault: Callable[[], str],
        *,
        version: int,
        largest: int = 1 << 20,
        verifies: bool = True,
    ) -> None:
        self.logs = {("t", index): Log(largest) for index in range(partitions)}
        self.topology = Topology()
        self.unreachable = ""
        self.calls = Calls("producer")
        self.requests = Requests(time.monotonic)
        self._topic = Topic("t", NO_UUID, False, {i: Partition(NODE, 0, (NODE,), (NODE,)) for i in range(partitions)})
        self.topology.brokers[NODE] = ("model", 1)
        self.topology.topics["t"] = self._topic
        self.fault = fault
        self.version = version
        self.verifies = verifies
        self.next_id = 1000
        self.producer_id = self.epoch = -1
        self.last_epoch = -1
        self.ongoing: set[tuple[str, int]] = set()
        self.ended: tuple[int, bool] | None = None
        """TV2: (epoch, outcome) of the last transaction, for a repeated EndTxn."""
        self._connections: dict[str, ModelConnection] = {}

    async def topic(self, name: str, **_: object) -> Topic:
        return self._topic

    async def refresh(self, topics: object = None) -> None:
        self.topology.topics["t"] = self._topic

    def open_connection(self, node: int, purpose: str = "") -> ModelConnection | None:
        found = self._connections.get(purpose)
        return None if found is None or found.closed else found

    async def connection(self, node: int, purpose: str = "") -> ModelConnection:
        await asyncio.sleep(0.001)
        if self.open_connection(node, purpose) is None:
            self._connections[purpose] = self.connection_type(self)
        return self._connections[purpose]

    async def coordinator(self, kind: str, key: str) -> int:
        return NODE

    def troubles(self, log: logging.Logger) -> Troubles:
        return Troubles(log, asyncio.get_running_loop().time, outage=lambda: self.unreachable)

    def backoff(self, failures: int = 0, *, first_ms: float | None = None) -> Backoff:
        usual_ms, most_ms = self.backoff_ms
        return Backoff(usual_ms if first_ms is None else first_ms, most_ms, random.random, failures)

    def forget_coordinator(self, kind: str, key: str) -> None:
        pass

    async def call_any(self, request: Message) -> Any:
        try:
            return await (await self.connection(NODE)).call(request)
        except ConnectionLostError as error:
            raise errors.ConnectionFailedError(str(error)) from error

    async def close(self) -> None:
        self.calls.close()

    def time_out(self) -> None:
        """Abort the open transaction as the coordinator does, and bump the epoch."""
        if self.ongoing:
            self.last_epoch, self.epoch = self.epoch, self.epoch + 1
            self._write_markers(commit=False)
            self.ended = (self.last_epoch, False) if self.version >= 2 else None

    def _write_markers(self, *, commit: bool) -> None:
        for tp in sorted(self.ongoing):
            self.logs[tp].mark(self.producer_id, self.epoch, commit)
        self.ongoing.clear()

    # -- the APIs -------------------------------------------------------------------------------------------------

    def answer(self, request: Message, version: int) -> Message:
        handlers: dict[type[Message], Callable[[Any, int], Message]] = {
            ProduceRequest: self._produce,
            InitProducerIdRequest: self._init,
            AddPartitionsToTxnRequest: self._add_partitions,
            EndTxnRequest: self._end,
        }
        return handlers[type(request)](request, version)

    def may_be_late(self, request: Message) -> bool:
        """Return whether a request may arrive late.

        Not if the protocol itself is at fault: before KIP-890, a late EndTxn ends the *next* transaction, and a late
        InitProducerId without an epoch fences the current producer, even the sender.
        """
        if isinstance(request, InitProducerIdRequest) and request.producer_id < 0:
            return False
        return self.version >= 2 or isinstance(request, ProduceRequest)

    def busy(self, request: Message) -> Message:
        """Return a retriable error without any effect."""
        if isinstance(request, ProduceRequest):
            return self._each(request, lambda _tp, _data: (ErrorCode.NOT_ENOUGH_REPLICAS, -1))
        if isinstance(request, InitProducerIdRequest):
            return InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS, producer_epoch=-1)
        if isinstance(request, EndTxnRequest):
            return EndTxnResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert isinstance(request, AddPartitionsToTxnRequest)
        return self._added(request, ErrorCode.CONCURRENT_TRANSACTIONS)

    def _each(
        self, request: ProduceRequest, append: Callable[[tuple[str, int], Any], tuple[ErrorCode, int]]
    ) -> ProduceResponse:
        topics = []
        for topic in request.topic_data:
            answers = []
            for item in topic.partition_data:
                code, offset = append((topic.name, item.index), item.records)
                answers.append(PartitionProduceResponse(index=item.index, error_code=code, base_offset=offset))
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
        return ProduceResponse(responses=topics)

    def _produce(self, request: ProduceRequest, version: int) -> Message:
        def append(tp: tuple[str, int], data: Any) -> tuple[ErrorCode, int]:
            if request.transactional_id is not None and (self.version >= 2 or self.verifies):
                header = parse_header(data)
                if (header.producer_id, header.producer_epoch) != (self.producer_id, self.epoch):
                    return ErrorCode.INVALID_PRODUCER_EPOCH, -1
                if self.version >= 2 and version >= 12:
                    self.ongoing.add(tp)
                elif tp not in self.ongoing:
                    return ErrorCode.INVALID_TXN_STATE, -1
            return self.logs[tp].append(bytes(data))

        return self._each(request, append)

    def _init(self, request: InitProducerIdRequest, version: int) -> Message:
        if request.transactional_id is None:
            self.next_id += 1
            return InitProducerIdResponse(producer_id=self.next_id, producer_epoch=0)
        if request.producer_id >= 0 and request.producer_epoch not in (self.epoch, self.last_epoch):
            return InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED, producer_epoch=-1)
        if self.ongoing:
            self.last_epoch, self.epoch = self.epoch, self.epoch + 1
            self._write_markers(commit=False)
            return InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS, producer_epoch=-1)
        if self.producer_id < 0:
            self.next_id += 1
            self.producer_id = self.next_id
        if request.producer_id < 0 or request.producer_epoch == self.epoch:
            self.last_epoch = self.epoch if request.producer_id >= 0 else -1
            self.epoch += 1
        self.ended = None
        return InitProducerIdResponse(producer_id=self.producer_id, producer_epoch=self.epoch)

    def _added(self, request: AddPartitionsToTxnRequest, code: ErrorCode) -> Message:
        topics = [
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _add_partitions(self, request: AddPartitionsToTxnRequest, version: int) -> Message:
        if request.v3_and_below_producer_epoch != self.epoch:
            return self._added(request, ErrorCode.PRODUCER_FENCED)
        for topic in request.v3_and_below_topics:
            self.ongoing |= {(topic.name, index) for index in topic.partitions}
        self.ended = None
        return self._added(request, ErrorCode.NONE)

    def _end(self, request: EndTxnRequest, version: int) -> Message:
        if self.version >= 2 and version >= 5:
            if self.ended == (request.producer_epoch, request.committed) and not self.ongoing:
                return EndTxnResponse(producer_id=self.producer_id, producer_epoch=self.epoch)
            if request.producer_epoch != self.epoch:
                is_retry = self.ended is not None and self.ended[0] == request.producer_epoch
                code = ErrorCode.INVALID_TXN_STATE if is_retry else ErrorCode.PRODUCER_FENCED
                return EndTxnResponse(error_code=code)
            if not self.ongoing and request.committed:
                return EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)
            self.ended = (self.epoch, request.committed)
            self.last_epoch, self.epoch = self.epoch, self.epoch + 1
            self._write_markers(commit=request.committed)
            return EndTxnResponse(producer_id=self.producer_id, producer_epoch=self.epoch)
        if request.producer_epoch != self.epoch:
            return EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
        if not self.ongoing:
            same = self.ended == (request.producer_epoch, request.committed)
            return EndTxnResponse(error_code=ErrorCode.NONE if same else ErrorCode.INVALID_TXN_STATE)
        self.ended = (self.epoch, request.committed)
        self._write_markers(commit=request.committed)
        return EndTxnResponse()


class ModelConnection:
    """Answer in order, each time after a short delay. A lost request or answer closes the connection."""

    congested = False

    def __init__(self, cluster: ModelCluster) -> None:
        self._cluster = cluster
        self._pending: list[asyncio.Future[Any]] = []
        self.closed = False
        self.features = {"transaction.version": cluster.version}

    def version_for(self, request: type[Message]) -> int:
        return min(request.MAX_VERSION, 12) if request is ProduceRequest else request.MAX_VERSION

    def send(self, request: Message, version: int | None = None, **_: object) -> asyncio.Future[Any]:
        if self.closed:
            raise ConnectionLostError("gone")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        fault = self._cluster.fault()
        chosen = self.version_for(type(request)) if version is None else version
        copy = type(request).decode(request.encode(chosen), chosen)
        self._pending.append(future)
        if fault == LATE and self._cluster.may_be_late(request):
            loop.call_later(REQUEST_TIMEOUT, self._hang_up)
            loop.call_later(1.5 * REQUEST_TIMEOUT, self._late, copy, chosen)
        else:
            delay = SLOW_SECONDS if fault == SLOW and isinstance(request, ProduceRequest) else 0.002
            loop.call_later(delay, self._arrive, copy, chosen, fault, future)
        return future

    def _late(self, request: Message, version: int) -> None:
        self._cluster.answer(request, version)

    async def call(self, request: Message, version: int | None = None, **_: object) -> Any:
        return await self.send(request, version)

    def _arrive(self, request: Message, version: int, fault: str, future: asyncio.Future[Any]) -> None:
        if self.closed:
            return
        if future is not self._pending[0]:  # an earlier response is late: wait for it
            asyncio.get_running_loop().call_later(0.001, self._arrive, request, version, fault, future)
            return
        response = None
        if fault == BUSY:
            response = self._cluster.busy(request)
        elif fault != LOST_REQUEST:
            response = self._cluster.answer(request, version)
        if response is None or fault == LOST_ANSWER:
            self._hang_up()
            return
        self._pending.pop(0)
        if not future.done():
            future.set_result(response)

    def _hang_up(self) -> None:
        self.closed = True
        for future in self._pending:
            if not future.done():
                future.set_exception(ConnectionLostError("lost"))


ModelCluster.connection_type = ModelConnection
