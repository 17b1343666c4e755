"""A producer that does what it is told: stories need batches that no good client would send."""

from __future__ import annotations

import socket
import time
from typing import Any, NamedTuple

from oncelog.client.connections.pool import parse_bootstrap
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message

VERSIONS = {ApiKey.PRODUCE: 9, ApiKey.INIT_PRODUCER_ID: 4}
"""Versions that Kafka has served since 2.7."""
TIMEOUT_S = 30.0


class Session(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int = 0

    def next_epoch(self) -> Session:
        """Return the session after this one. Without a transactional id, no broker has to know of it (KIP-360)."""
        return self._replace(epoch=self.epoch + 1)


class RawProducer:
    """A connection to one broker, which leads the partition."""

    def __init__(self, bootstrap: str) -> None:
        self._socket = socket.create_connection(parse_bootstrap(bootstrap)[0], TIMEOUT_S)
        self._id = 0

    def __enter__(self) -> RawProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def session(self) -> Session:
        """Get a producer id."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = self._call(request)
        while ErrorCode.of(answer.error_code).retriable:
            time.sleep(0.05)
            answer = self._call(request)
        return Session(answer.producer_id, answer.producer_epoch)

    def send(self, topic: str, value: str, who: Session, sequence: int) -> str:
        """Send a batch of one record to partition 0. Return the offset, or the name of the error."""
        batch = build_batch(
            [Record(0, int(time.time() * 1000), None, value.encode())],
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=sequence,
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        answer = self._call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]))
        (found,) = answer.responses[0].partition_responses
        code = ErrorCode.of(found.error_code)
        return str(found.base_offset) if code is ErrorCode.NONE else code.name

    def _call(self, request: Message) -> Any:
        key = ApiKey(request.API_KEY)
        version = VERSIONS[key]
        self._id += 1
        frame = encode_request_header(RequestHeader(key, version, self._id, "story")) + request.encode(version)
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(self._read(4), "big")
        answer = memoryview(self._read(size))
        _, position = decode_response_header(answer, key, version)
        return messages(key)[1].decode_from(answer, position, version)[0]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker has closed the connection")
            data += part
        return data
