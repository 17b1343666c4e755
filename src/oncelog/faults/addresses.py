"""The brokers that responses name. No I/O.

The proxy replaces their addresses by its own, so that clients reach each broker through the proxy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from oncelog.faults.requests import items
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.headers import decode_response_header, encode_response_header
from oncelog.protocol.messages.api_versions import ApiVersionsResponse
from oncelog.protocol.messages.metadata import MetadataResponse
from oncelog.protocol.schema import Message

REWRITTEN = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER}
    | {ApiKey.PRODUCE, ApiKey.FETCH}
)
"""The APIs whose responses name brokers, and ApiVersions."""
_SHARE_GROUPS = frozenset({78, 79})
"""ShareFetch and ShareAcknowledge (KIP-932), which oncelog does not know."""


class Response:
    """A decoded response that can be encoded again. Raises UNREADABLE."""

    def __init__(self, frame: bytes, key: ApiKey, version: int) -> None:
        self._key, self._version = key, version
        self._correlation_id, position = decode_response_header(memoryview(frame), key, version)
        self.message: Message = messages(key)[1].decode_from(memoryview(frame), position, version)[0]

    def encode(self) -> bytes:
        """Return the frame of the message as it is now."""
        header = encode_response_header(self._key, self._version, self._correlation_id)
        return header + self.message.encode(self._version)


def brokers(message: Any) -> Iterator[Any]:
    """Yield the structs of a response that have the address of a broker: a node id, a host and a port."""
    if "host" in message.FIELDS and "port" in message.FIELDS and message.port > 0:
        yield message
    for _, item in items(message):
        if isinstance(item, Message):
            yield from brokers(item)


def node_id(broker: Any) -> int:
    """Return the id in one of these structs. DescribeCluster calls it the broker id."""
    found: int = broker.broker_id if "broker_id" in broker.FIELDS else broker.node_id
    return found


def topic_names(message: Message) -> dict[UUID, str]:
    """Return the names of topics by id, from a response to Metadata."""
    if not isinstance(message, MetadataResponse):
        return {}
    return {topic.topic_id: topic.name for topic in message.topics if topic.name and topic.topic_id.int}


def limit_versions(message: Message) -> bool:
    """Offer the client only what this proxy can rewrite. Return whether that changes the response.

    It leaves out later versions of these APIs, and those of share groups, whose responses name brokers, too.
    """
    changed = False
    if isinstance(message, ApiVersionsResponse):
        known = [api for api in message.api_keys if api.api_key not in _SHARE_GROUPS]
        changed = len(known) < len(message.api_keys)
        message.api_keys = known
        for api in known:
            if api.api_key in REWRITTEN:
                highest = messages(ApiKey(api.api_key))[1].MAX_VERSION
                changed |= api.max_version > highest
                api.max_version = min(api.max_version, highest)
    return changed
