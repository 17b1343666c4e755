"""Requests that differ between versions: encoded for the broker that gets them, not for another one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.admin.topics import delete_topics
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests.offsets import fetch_committed
from oncelog.net.connection import NoCommonVersionError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from oncelog.protocol.schema import Message


class Broker:
    """A connection to one broker, which supports its APIs up to `newest` and gives these answers."""

    closed = False
    address = "broker:1"

    def __init__(self, newest: int, answers: Sequence[Message] = ()) -> None:
        self.newest = newest
        self.answers = list(answers)
        self.asked: list[tuple[int, Any]] = []

    def version_for(self, kind: type[Message]) -> int:
        if self.newest < kind.MIN_VERSION:
            raise NoCommonVersionError(f"{kind.__name__}: too old")
        return min(self.newest, kind.MAX_VERSION)

    async def call(self, message: Message, version: int | None, *, timeout_ms: float) -> Message:
        assert version is not None
        assert timeout_ms > 0
        message.encode(version)  # fails if this version cannot encode a field
        self.asked.append((version, message))
        return self.answers.pop(0)


class Cluster(ClusterClient):
    """Brokers 1, 2, ...; the first is controller and coordinator, and after each lookup the next one."""

    def __init__(self, *brokers: Broker) -> None:
        super().__init__("nowhere:1", retry_backoff_ms=1, retry_backoff_max_ms=1)
        self.all = brokers
        self.topology.brokers = {node: ("unknown", node) for node, _ in enumerate(brokers, 1)}
        self.topology.controller_id = 1
        self._looks = 0

    async def connection(self, node_id: int, purpose: str = "") -> Any:
        return self.all[node_id - 1]

    async def refresh(self, *_: object, **__: object) -> None:
        self.topology.controller_id = 2

    async def coordinator(self, kind: str, key: str) -> int:
        self._looks += 1
        return self._looks


def deleted(code: ErrorCode) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(responses=[DeletableTopicResult(name="t", error_code=code)])


def test_request_is_rebuilt_for_a_controller_of_another_version() -> None:
    old, new = Broker(5, [deleted(ErrorCode.NOT_CONTROLLER)]), Broker(6, [deleted(ErrorCode.NONE)])
    asyncio.run(delete_topics(Cluster(old, new), ["t"]))
    ((version, first),) = old.asked
    assert (version, first.topic_names, first.topics) == (5, ["t"], [])
    ((version, second),) = new.asked
    assert (version, second.topic_names, [topic.name for topic in second.topics]) == (6, [], ["t"])
    assert isinstance(second, DeleteTopicsRequest)


def test_controller_that_is_too_old_is_reported() -> None:
    with pytest.raises(errors.UnsupportedError, match="too old"):
        asyncio.run(delete_topics(Cluster(Broker(0)), ["t"]))


def test_request_uses_a_version_of_its_coordinator() -> None:
    moved = OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR)
    offset = {"partition_index": 3, "committed_offset": 7, "committed_leader_epoch": 2}
    found = OffsetFetchResponseTopics(name="t", partitions=[OffsetFetchResponsePartitions(**offset)])
    old = Broker(7, [moved])
    new = Broker(10, [OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[found])])])
    assert asyncio.run(fetch_committed(Cluster(old, new), "g", [("t", 3)])) == {("t", 3): 7}
    ((version, first),) = old.asked
    assert (version, first.group_id, first.topics[0].partition_indexes, first.groups) == (7, "g", [3], [])
    ((version, second),) = new.asked
    assert (version, second.group_id, second.groups[0].topics[0].partition_indexes) == (9, "", [3])
    assert isinstance(second, OffsetFetchRequest)


def test_answer_of_an_old_coordinator_is_decoded() -> None:
    offset = {"partition_index": 0, "committed_offset": 5, "metadata": "m"}
    topic = OffsetFetchResponseTopic(name="t", partitions=[OffsetFetchResponsePartition(**offset)])
    cluster = Cluster(Broker(6, [OffsetFetchResponse(topics=[topic])]))
    found = asyncio.run(fetch_committed(cluster, "g"))
    assert found == {("t", 0): 5}
    assert found["t", 0].metadata == "m"
    assert cluster.all[0].asked[0][1].topics is None
