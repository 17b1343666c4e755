"""A partition that a coordinator omits from its answer is an error: neither committed, nor without an offset."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.requests import offsets
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)


def coordinator(response: Any) -> Any:
    async def call_coordinator(*_: object, **__: object) -> Any:
        return response

    return SimpleNamespace(call_coordinator=call_coordinator)


def test_commit_without_an_answer_is_not_a_success() -> None:
    answered = OffsetCommitResponseTopic(name="t", partitions=[OffsetCommitResponsePartition(partition_index=0)])
    cluster = coordinator(OffsetCommitResponse(topics=[answered]))
    asyncio.run(offsets.commit(cluster, GroupMetadata("g"), {("t", 0): 1}))
    with pytest.raises(errors.KafkaError, match="response does not contain t-1, u-0"):
        asyncio.run(offsets.commit(cluster, GroupMetadata("g"), {("t", 0): 1, ("u", 0): 1, ("t", 1): 1}))


def test_partition_without_an_answer_may_have_a_committed_offset() -> None:
    found = [OffsetFetchResponsePartitions(partition_index=index, committed_offset=index - 1) for index in range(2)]
    topic = OffsetFetchResponseTopics(name="t", partitions=found)
    cluster = coordinator(OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])]))
    assert asyncio.run(offsets.fetch_committed(cluster, "g", [("t", 0), ("t", 1)])) == {("t", 1): 0}
    assert asyncio.run(offsets.fetch_committed(cluster, "g")) == {("t", 1): 0}
    with pytest.raises(errors.KafkaError, match="response does not contain t-2"):
        asyncio.run(offsets.fetch_committed(cluster, "g", [("t", 1), ("t", 2)]))
