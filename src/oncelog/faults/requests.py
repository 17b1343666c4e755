"""What a rule can see of a request that passes the proxy. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from uuid import UUID

from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.error_responses import error_answer
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.headers import decode_request_header, encode_response_header
from oncelog.protocol.kinds import CoordinatorType
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.produce import ProduceRequest
from oncelog.protocol.records import BatchHeader, parse_header
from oncelog.protocol.schema import NO_UUID, DecodeError, Message, UnsupportedVersionError

UNREADABLE = (DecodeError, UnsupportedVersionError, ValueError)
"""What decoding raises for bytes that are no message, or one that this version of oncelog does not know."""


def api_name(key: ApiKey) -> str:
    """Return the name of an API in Kafka's protocol guide: `AddPartitionsToTxn`."""
    return "".join(word.capitalize() for word in key.name.split("_"))


class Request:
    """One request in transit.

    `broker` is the node id of the broker that it is sent to, or None if that is not known yet. `number` counts the
    requests of this API through the proxy, from 1. A request that this version of oncelog cannot read has `api` None,
    or `message` None.
    """

    def __init__(self, frame: bytes, broker: int | None, topic_names: Mapping[UUID, str]) -> None:
        self.frame = frame
        self.broker = broker
        self.number = 0
        self.api: ApiKey | None = None
        self.version = self.correlation_id = -1
        self.client_id: str | None = None
        self._topic_names = topic_names
        self._body = 0
        try:
            header, self._body = decode_request_header(memoryview(frame))
            self.version, self.correlation_id, self.client_id = (
                header.api_version,
                header.correlation_id,
                header.client_id,
            )
            self.api = ApiKey(header.api_key)
        except UNREADABLE:  # a raw login token, an API that oncelog does not know, or no request at all
            pass

    @cached_property
    def message(self) -> Message | None:
        """The decoded request, or None if it cannot be decoded."""
        if self.api is None:
            return None
        try:
            return messages(self.api)[0].decode_from(memoryview(self.frame), self._body, self.version)[0]
        except UNREADABLE:
            return None

    @property
    def answered(self) -> bool:
        """Whether the broker answers the request. It does not answer Produce with acks=0."""
        return not (isinstance(self.message, ProduceRequest) and self.message.acks == 0)

    @cached_property
    def batches(self) -> list[BatchHeader]:
        """The headers of a Produce request's batches: producer id, epoch, sequence, number of records."""
        found = []
        for records in self.records:
            try:
                found.append(parse_header(records))
            except ProtocolError:  # the broker rejects it
                continue
        return found

    @cached_property
    def records(self) -> list[bytes]:
        """The bytes of a Produce request's batches, in the order of its partitions."""
        if not isinstance(self.message, ProduceRequest):
            return []
        return [bytes(part.records or b"") for topic in self.message.topic_data for part in topic.partition_data]

    def groups(self) -> set[str]:
        """Return the groups that the request names."""
        return self._values("group_id", "groups", "group_ids", "groups_names") | self._sought(CoordinatorType.GROUP)

    def transactional_ids(self) -> set[str]:
        """Return the transactional ids that the request names."""
        names = "transactional_id", "v3_and_below_transactional_id", "transactional_ids"
        return self._values(*names) | self._sought(CoordinatorType.TRANSACTION)

    def _values(self, *names: str) -> set[str]:
        return set() if self.message is None else set(_texts(self.message, names))

    def _sought(self, kind: CoordinatorType) -> set[str]:
        """Return the keys for which FindCoordinator seeks the coordinator of this kind."""
        message = self.message
        if not isinstance(message, FindCoordinatorRequest) or message.key_type != kind:
            return set()
        return {message.key, *message.coordinator_keys}

    @cached_property
    def partitions(self) -> set[tuple[str, str]]:
        """The (topic, partition) that the request names. Topics without partitions have the partition ""."""
        return set() if self.message is None else set(_partitions(self.message, self._topic_names, ""))

    def error(self, code: ErrorCode) -> bytes | None:
        """Return the response that carries an error code, with its header, or None if the request cannot be decoded."""
        if self.api is None or self.message is None:
            return None
        header = encode_response_header(self.api, self.version, self.correlation_id)
        return header + error_answer(self.message, self.version, code).encode(self.version)

    def __str__(self) -> str:
        """Return a description for log lines."""
        what = "a request that oncelog does not know" if self.api is None else f"{api_name(self.api)} {self.number}"
        where = "" if self.broker is None else f" to broker {self.broker}"
        batches = "".join(
            f"; sequences {batch.base_sequence} to {batch.last_sequence} of producer id {batch.producer_id}, "
            f"epoch {batch.producer_epoch}"
            for batch in self.batches
            if batch.base_sequence >= 0
        )
        return f"{what} of client {self.client_id!r}{where}{batches}"


def items(message: Message) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field, for an array those of each element."""
    for name in message.FIELDS:
        value: Any = getattr(message, name)
        for item in value if isinstance(value, list) else (value,):
            yield name, item


def _texts(message: Message, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts in the fields with these names, at any depth."""
    for name, item in items(message):
        if isinstance(item, Message):
            yield from _texts(item, names)
        elif name in names and item:
            yield str(item)


_TOPIC = ("name", "topic", "topic_name")
_PARTITION = ("index", "partition", "partition_index")
_PARTITIONS = ("partitions", "partition_indexes", "partition_ids")


def _partitions(message: Message, names: Mapping[UUID, str], topic: str) -> Iterator[tuple[str, str]]:
    """Yield the (topic, partition) in a struct inside a request. `topic` is that of the struct around it."""
    fields = message.FIELDS
    if "Topic" in type(message).__name__:
        found = [getattr(message, name) for name in _TOPIC if name in fields]
        topic = next(filter(None, found), "") or names.get(getattr(message, "topic_id", NO_UUID), topic)
        yield topic, ""
    for name in _PARTITION:
        if topic and name in fields:
            yield topic, str(getattr(message, name))
    for name, item in items(message):
        if isinstance(item, Message):
            yield from _partitions(item, names, topic)
        elif topic and name in _PARTITIONS:
            yield topic, str(item)
        elif name == "topic_names":
            yield str(item), ""
