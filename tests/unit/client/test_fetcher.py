"""Requests of a consumer and its reactions: sessions (KIP-227), truncated logs (KIP-320), nearer followers
(KIP-392).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.consumer.core import ConsumerCore
from oncelog.client.consumer.options import consumer_options
from oncelog.client.consumer.subscription_state import PartitionState
from oncelog.client.discovery.topology import Partition, Topic
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from oncelog.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message

TP = ("t", 0)
SESSION_LOST, NOTHING = PartitionData(), PartitionData()
TOPIC_ID = uuid.uuid4()


class Brokers:
    """Nodes 1 (leader) and 2 (follower) of a cluster with configured answers."""

    def __init__(self, core: ConsumerCore, leader_epoch: int = 5) -> None:
        self.asked: list[tuple[int, Message]] = []
        self.end = EpochEndOffset(end_offset=100, leader_epoch=4)
        self.answers: dict[int, Callable[[FetchRequest], PartitionData]] = {}
        self.session_id = 0
        cluster = core.cluster
        cluster.topology.brokers = {1: ("a", 1), 2: ("b", 1)}
        cluster.topology.topics["t"] = Topic("t", TOPIC_ID, False, {0: Partition(1, leader_epoch, (1, 2), (1, 2))})
        cluster.topology.names[TOPIC_ID] = "t"
        cluster.connection = self.connection  # type: ignore[method-assign, assignment]

    async def connection(self, node: int, purpose: str = "") -> Any:
        async def call(request: Message, version: int | None = None, **_: object) -> Message:
            self.asked.append((node, request))
            if isinstance(request, OffsetForLeaderEpochRequest):
                return OffsetForLeaderEpochResponse(
                    topics=[OffsetForLeaderTopicResult(topic="t", partitions=[self.end])]
                )
            assert isinstance(request, FetchRequest)
            while node not in self.answers:
                await asyncio.sleep(0.001)
            data = self.answers.pop(node)(request)
            if data is SESSION_LOST:
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if data is NOTHING:
                return FetchResponse(session_id=9)
            return FetchResponse(
                session_id=self.session_id, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])]
            )

        return SimpleNamespace(call=call, version_for=lambda request: request.MAX_VERSION)

    def fetches(self) -> list[tuple[int, int]]:
        """Return (node, offset) of each Fetch."""
        return [
            (node, item.fetch_offset)
            for node, request in self.asked
            if isinstance(request, FetchRequest)
            for topic in request.topics
            for item in topic.partitions
        ]


def run(body: Callable[[ConsumerCore, Brokers, PartitionState], Coroutine[Any, Any, None]], **options: object) -> None:
    """Run `body` with a consumer at offset 50, after a record of leader epoch 4, while the leader is in epoch 5."""

    async def main() -> None:
        core = ConsumerCore(consumer_options(None, {"bootstrap_servers": "n:1", **options}), asyncio.get_running_loop())
        core.assign([TP])
        core.subscription.partitions[TP].seek(OffsetAndMetadata(50, leader_epoch=4))
        brokers = Brokers(core)
        async with asyncio.timeout(60):
            await body(core, brokers, core.subscription.partitions[TP])
        await core.close()

    asyncio.run(main())


def batch(offset: int, epoch: int) -> bytes:
    return bytes(build_batch([Record(offset, 1_000, None, b"x")], base_offset=offset, leader_epoch=epoch))


async def poll_until(core: ConsumerCore, done: Callable[[], bool]) -> None:
    while not done():
        await core.poll(10)


def test_position_is_validated_once_per_epoch_before_reading() -> None:
    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        await poll_until(core, lambda: bool(brokers.fetches()))
        asked = [request for _, request in brokers.asked if isinstance(request, OffsetForLeaderEpochRequest)]
        assert len(asked) == 1
        (item,) = asked[0].topics[0].partitions
        assert (item.leader_epoch, item.current_leader_epoch) == (4, 5)
        assert brokers.fetches() == [(1, 50)]

    run(body)


def test_consumer_of_a_truncated_log_continues_at_its_end() -> None:
    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        brokers.end = EpochEndOffset(end_offset=30, leader_epoch=4)
        await poll_until(core, lambda: bool(brokers.fetches()))
        assert brokers.fetches() == [(1, 30)]
        assert state.consumed == 30

    run(body, auto_offset_reset="earliest")


def test_truncated_log_is_an_error_without_a_reset_policy() -> None:
    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        brokers.end = EpochEndOffset(end_offset=30, leader_epoch=4)
        with pytest.raises(errors.LogTruncatedError, match="ended at 30, before 50"):
            await core.poll(5_000)
        assert brokers.fetches() == []
        assert state.consumed == 50

    run(body, auto_offset_reset="none")


def test_truncation_of_prefetched_records_is_not_an_error() -> None:
    """The user has not seen these records, so the truncation does not matter."""

    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        state.position, state.consumed = 60, 50
        brokers.end = EpochEndOffset(end_offset=55, leader_epoch=4)
        await poll_until(core, lambda: bool(brokers.fetches()))
        assert brokers.fetches() == [(1, 50)]

    run(body, auto_offset_reset="none")


def test_epoch_is_taken_from_the_records() -> None:
    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        state.seek(50)
        brokers.answers[1] = lambda _: PartitionData(records=batch(50, 5), high_watermark=51)
        assert [record.offset for record in await core.poll(5_000)] == [50]
        assert not any(isinstance(request, OffsetForLeaderEpochRequest) for _, request in brokers.asked)
        (offset,) = core.subscription.consumed().values()
        assert isinstance(offset, OffsetAndMetadata)
        assert (offset, offset.leader_epoch) == (51, 5)

    run(body)


def test_nearer_follower_is_read_until_it_fails() -> None:
    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        state.seek(50)
        brokers.answers[1] = lambda _: PartitionData(preferred_read_replica=2)
        brokers.answers[2] = lambda _: PartitionData(records=batch(50, 5))
        assert [record.offset for record in await core.poll(5_000)] == [50]
        assert brokers.fetches()[:2] == [(1, 50), (2, 50)]
        assert all(request.rack_id == "r2" for _, request in brokers.asked if isinstance(request, FetchRequest))
        brokers.answers[2] = lambda _: PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        brokers.answers[1] = lambda _: PartitionData(records=batch(51, 5))
        assert [record.offset for record in await core.poll(5_000)] == [51], "the leader decides"

    run(body, client_rack="r2", auto_offset_reset="none")


def test_idle_partitions_are_not_sent_again_until_the_session_is_lost() -> None:
    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        state.seek(50)
        brokers.session_id = 9
        answers = [PartitionData(high_watermark=50), NOTHING, SESSION_LOST, PartitionData(records=batch(50, 5))]
        for answer in answers:
            brokers.answers[1] = lambda _, answer=answer: answer
            await poll_until(core, lambda: not brokers.answers)
        await poll_until(core, lambda: state.consumed == 51)
        sent = [request for _, request in brokers.asked if isinstance(request, FetchRequest)][:4]
        assert [(request.session_id, request.session_epoch) for request in sent] == [(0, 0), (9, 1), (9, 2), (0, 0)]
        assert [len(request.topics) for request in sent] == [1, 0, 0, 1]

    run(body)


def test_idle_partition_does_not_delay_the_others() -> None:
    """While records of one partition are buffered, the broker is asked for the other without a wait, and only once."""

    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        topic = core.cluster.topology.topics["t"]
        topic.partitions[1] = Partition(1, 5, (1, 2), (1, 2))
        core.assign([TP, ("t", 1)])
        for each in core.subscription.partitions.values():
            each.seek(OffsetAndMetadata(50, leader_epoch=5))
        brokers.answers[1] = lambda request: records(50)
        await core.poll(5_000, 1)  # takes one of two: the other stays buffered
        brokers.answers[1] = lambda request: NOTHING
        while 1 in brokers.answers:
            await asyncio.sleep(0.001)
        for _ in range(3):
            await core.poll(0, 0)
        waits = [request.max_wait_ms for _, request in brokers.asked if isinstance(request, FetchRequest)]
        assert waits == [60_000, 0]
        await core.poll(5_000, 5)  # takes the last buffered one: both are fetched again
        await asyncio.sleep(0.01)
        waits = [request.max_wait_ms for _, request in brokers.asked if isinstance(request, FetchRequest)]
        assert waits == [60_000, 0, 60_000]

    run(body, fetch_max_wait_ms=60_000, request_timeout_ms=120_000)


def records(offset: int, partition: int = 0) -> PartitionData:
    found = [Record(offset + index, 0, None, b"x") for index in range(2)]
    return PartitionData(partition_index=partition, records=build_batch(found, base_offset=offset, leader_epoch=5))


def asked_without_waiting(brokers: Brokers) -> list[set[int]]:
    """Return the partitions of each request that did not wait."""
    return [
        {item.partition for topic in request.topics for item in topic.partitions}
        for _, request in brokers.asked
        if isinstance(request, FetchRequest) and request.max_wait_ms == 0
    ]


@pytest.mark.parametrize(("max_wait_ms", "why"), [(1, "time"), (60_000, "seek"), (60_000, "leader"), (60_000, "other")])
def test_idle_partition_is_fetched_although_others_have_buffered_records(max_wait_ms: int, why: str) -> None:
    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        partitions = core.cluster.topology.topics["t"].partitions
        partitions[1] = partitions[2] = partitions[0]
        core.assign([TP, ("t", 1), ("t", 2)])
        for each in core.subscription.partitions.values():
            each.seek(OffsetAndMetadata(50, leader_epoch=5))
        core.subscription.partitions["t", 2].paused = True
        brokers.answers[1] = lambda request: records(50)
        await core.poll(5_000, 1)  # the other one stays buffered from now on
        brokers.answers[1] = lambda request: PartitionData(partition_index=1)
        while not core.fetcher._empty_until:
            await asyncio.sleep(0.001)
        assert asked_without_waiting(brokers) == [{1}]
        offset = 50
        if why == "seek":
            offset = 70
            core.subscription.partitions["t", 1].seek(OffsetAndMetadata(offset, leader_epoch=5))
        if why == "leader":
            partitions[1] = Partition(1, 6, (1, 2), (1, 2))
            core.subscription.partitions["t", 1].seek(50)
        if why == "other":
            core.subscription.partitions["t", 2].paused = False
        brokers.answers[1] = lambda request: records(offset, 1)
        async with asyncio.timeout(60):
            while not core.subscription.partitions["t", 1].buffered:
                await core.poll(1, 0)
                await asyncio.sleep(0.001)
        assert 1 in asked_without_waiting(brokers)[1], asked_without_waiting(brokers)

    run(body, fetch_max_wait_ms=max_wait_ms, request_timeout_ms=120_000)


def test_broker_that_reports_a_damaged_log_ends_the_poll() -> None:
    """A retry reads the same bytes: Java's consumer raises, too."""

    async def body(core: ConsumerCore, brokers: Brokers, state: PartitionState) -> None:
        brokers.answers[1] = lambda _: PartitionData(error_code=ErrorCode.CORRUPT_MESSAGE)
        with pytest.raises(errors.CorruptRecordError, match="t-0 at offset 50"):
            await core.poll(10_000)
        assert state.position == 50

    run(body)
