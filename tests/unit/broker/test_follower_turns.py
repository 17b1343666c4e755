"""Followers append in steps, between which the broker serves other requests. Errors affect one partition."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.peers import Failure
from oncelog.cluster.follower import Fetch, Fetched, Following
from oncelog.cluster.partition_state import PartitionState
from oncelog.log.steps import BATCHES_A_STEP
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import NOW, BrokerStorage
from support.followed_leader import BATCHES, ID, LEADER, OTHER, Leader, batches, follower


def test_other_requests_have_turns_while_a_follower_appends_small_batches(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        leader = Leader(batches())
        leader.high_watermark = BATCHES
        replica = await follower(broker, leader)
        ends = []
        async with asyncio.timeout(60):
            while replica.log.high_watermark < BATCHES:
                if not ends or ends[-1] != replica.log.log_end_offset:
                    ends.append(replica.log.log_end_offset)
                await asyncio.sleep(0)
        assert len(ends) > BATCHES / BATCHES_A_STEP
        assert max(after - before for before, after in pairwise(ends)) <= BATCHES_A_STEP

    storage.run_broker(life)


def test_a_follower_that_is_elected_in_the_middle_of_an_append_appends_no_more(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await follower(broker, Leader(batches()))
        async with asyncio.timeout(60):
            while not replica.log.log_end_offset:
                await asyncio.sleep(0)
        replica.lead(1, [1], PartitionState(1, 1, (1,), 1))
        end = replica.log.log_end_offset
        assert 0 < end < BATCHES
        await asyncio.sleep(0.1)
        assert replica.log.log_end_offset == end
        replica.append(memoryview(bytearray(build_batch([Record(0, NOW, None, b"x")]))), now_ms=NOW)

    storage.run_broker(life)


def test_an_unexpected_error_of_one_partition_does_not_end_the_fetch(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        leader = Leader(batches(count=1))
        replica = await follower(broker, leader)
        monkeypatch.setattr(broker.replication, "now_ms", None)
        async with asyncio.timeout(60):
            while "cannot replicate" not in caplog.text:
                await asyncio.sleep(0.01)
        monkeypatch.undo()
        leader.records = batches(count=1)
        async with asyncio.timeout(60):
            while not replica.log.log_end_offset:
                await asyncio.sleep(0.01)
        assert "the fetch from broker" not in caplog.text

    storage.run_broker(life)


def test_an_error_while_one_response_is_processed_affects_only_its_partition(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The partitions after it in the response would starve, because the next response has the same order."""

    async def life(broker: Broker) -> None:
        leader = Leader(batches(count=1))
        bad = await follower(broker, leader)

        async def both(number: int, _purpose: Any, request: Any, *_: Any) -> Any:
            await asyncio.sleep(0.01)
            if not isinstance(request, FetchRequest) or number != LEADER:
                return Failure("no such broker")
            asked = [topic.topic_id for topic in request.topics]
            data = [PartitionData(partition_index=0, records=batches(count=1))]
            topics = [FetchableTopicResponse(topic_id=each, partitions=data) for each in (ID, OTHER) if each in asked]
            return FetchResponse(session_id=0, responses=topics)

        received = Following.received

        def fail(self: Following, fetch: Fetch, response: Fetched) -> Any:
            if self._log is bad.log:
                raise RuntimeError("an unexpected error")
            return received(self, fetch, response)

        monkeypatch.setattr(Following, "received", fail)
        good = await follower(broker, leader, "u", OTHER, both)
        async with asyncio.timeout(10):
            while not (good.log.log_end_offset and "cannot replicate t-0" in caplog.text):
                await asyncio.sleep(0.01)
        assert "the fetch from broker" not in caplog.text

    storage.run_broker(life)


def test_error_of_a_leader_is_logged_once_until_it_changes(
    storage: BrokerStorage, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        leader = Leader()
        await follower(broker, leader)
        for error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE) * 2:
            leader.error = error
            fetches = leader.fetches
            async with asyncio.timeout(60):
                while leader.fetches < fetches + 3:
                    await asyncio.sleep(0.01)

    with caplog.at_level(logging.DEBUG):
        storage.run_broker(life, replica_fetch_backoff_ms="1")
    for error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        assert caplog.text.count(f"cannot fetch t-0 from broker 2: {error.name}") == 2
