"""How followers fetch from the leaders among several brokers: their sessions, high watermarks and log starts."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from support.broker_fixtures import append
from support.broker_sets import Brokers, ask, everywhere, fetch_nothing, has_record, produce, run, three
from support.turns import until


def test_fetch_with_an_invented_broker_epoch_does_not_lock_the_follower_out(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, second, _ = await three(brokers, min_insync_replicas="2")
        await first.topics.create("t", assignment=[(1, 2)])
        await everywhere(brokers, "t")
        assert await produce(first) == ErrorCode.NONE
        topic = first.metadata.image.topic("t")
        assert topic is not None
        stranger = FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=2**62),
            max_wait_ms=0,
            min_bytes=1,
            topics=[
                FetchTopic(
                    topic_id=topic.topic_id,
                    partitions=[FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)],
                )
            ],
        )
        (answer,) = (await ask(first, stranger)).responses[0].partitions
        assert (answer.error_code, answer.records) == (ErrorCode.UNKNOWN_LEADER_EPOCH, b"")
        assert await produce(first) == ErrorCode.NONE
        replica = second.partitions.opened_replica("t", 0)
        assert replica is not None
        await until(lambda: replica.log.high_watermark == 2)

    run(Brokers(tmp_path), body)


def test_follower_reports_its_sync_without_waiting_for_other_partitions(tmp_path: Path) -> None:
    """While the record is synced, the next Fetch must not wait for records of the idle partition."""

    async def body(brokers: Brokers) -> None:
        first, second, _ = await three(brokers, min_insync_replicas="2", replica_fetch_wait_max_ms="25000")
        await first.topics.create("t", assignment=[(1, 2)], configs={"flush.messages": "1"})
        await first.topics.create("idle", assignment=[(1, 2)])
        replicas = [first.partitions.require(topic, 0) for topic in ("t", "idle")]
        await until(lambda: all(second.partitions.opened_replica(replica.topic, 0) for replica in replicas))
        for replica in replicas:  # so that the next Fetch names both partitions
            assert await produce(first, replica.topic, acks=1) == ErrorCode.NONE
        await until(lambda: all(replica.log.high_watermark == 1 for replica in replicas))
        for _ in range(3):
            assert await produce(first) == ErrorCode.NONE

    run(Brokers(tmp_path), body)


async def fetch_all(broker: Broker, topic: str, session_id: int = 0, session_epoch: int = 0) -> FetchResponse:
    """Fetch partition 0 of a topic as a client, which begins a session or names one."""
    info = broker.metadata.image.topic(topic)
    assert info is not None
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic_id=info.topic_id, partitions=[partition])]
    request = FetchRequest(max_wait_ms=0, session_id=session_id, session_epoch=session_epoch, topics=topics)
    answer = await ask(broker, request)
    assert isinstance(answer, FetchResponse)
    return answer


def test_follower_gets_the_fetch_session_of_a_client(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers, max_incremental_fetch_session_cache_slots="1")
        await first.topics.create("alone", assignment=[(1,)])
        session_id = (await fetch_all(first, "alone")).session_id
        assert session_id
        await first.topics.create("t", assignment=[(1, 2)])
        assert await produce(first) == ErrorCode.NONE
        lost = await fetch_all(first, "alone", session_id, 1)
        assert lost.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (await fetch_all(first, "alone")).session_id == 0

    run(Brokers(tmp_path), body)


@pytest.mark.parametrize("slots", ["1000", "0"])
def test_followers_learn_a_high_watermark_without_a_later_record(tmp_path: Path, slots: str) -> None:
    """Their Fetch waits for records. Without a fetch session, the leader does not know what they know."""

    async def body(brokers: Brokers) -> None:
        settings = {"max_incremental_fetch_session_cache_slots": slots}
        started = await three(brokers, replica_fetch_wait_max_ms="300" if slots == "0" else "60000", **settings)
        await started[0].topics.create("t", assignment=[(1, 2, 3)])
        await until(lambda: all(broker.partitions.opened_replica("t", 0) for broker in started))
        replicas = [broker.partitions.opened_replica("t", 0) for broker in started]
        for count in (1, 2, 3):
            append(started[0].partitions.require("t", 0))
            await until(lambda count=count: all(each and each.log.high_watermark == count for each in replicas))
        fetches = [counted_fetches(broker) for broker in started]
        await asyncio.sleep(1)
        assert max(map(len, fetches)) <= (20 if slots == "0" else 1), "an idle follower waits for each response"

    run(Brokers(tmp_path), body)


def counted_fetches(broker: Broker) -> list[FetchRequest]:
    """Return a list to which each later Fetch of a broker is added."""
    found: list[FetchRequest] = []
    request = broker.peers.request

    async def counted(*arguments: Any) -> Any:
        found.extend(each for each in arguments if isinstance(each, FetchRequest))
        return await request(*arguments)

    broker.peers.request = counted  # type: ignore[method-assign]
    return found


def test_follower_that_connects_again_leaves_no_fetch_session(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers)
        await first.topics.create("t", assignment=[(1, 2)])
        for _ in range(3):
            assert await produce(first) == ErrorCode.NONE
            assert len(first.services.fetch_sessions) == 1
            first.server.abort_all()

    run(Brokers(tmp_path), body)


def test_followers_without_fetch_sessions_fetch_all_partitions_in_turn(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        limits = {"max_incremental_fetch_session_cache_slots": "0", "replica_fetch_response_max_bytes": "1000"}
        first, second, _ = await three(brokers, **limits)
        topics = ("large", "small", "wide")
        for topic in topics:
            await first.topics.create(topic, assignment=[(1, 2)])
        await everywhere(brokers, "wide")
        await brokers.stop(2)
        for _ in range(100):
            for topic in ("large", "wide"):
                assert await produce(first, topic, value=bytes(2000), acks=1) == ErrorCode.NONE
        assert await produce(first, "small", acks=1) == ErrorCode.NONE
        second = await brokers.start(2, **limits)
        fetched_before: list[int] = []

        def copied() -> bool:
            ends = [
                replica.log.log_end_offset
                for topic in topics
                if (replica := second.partitions.opened_replica(topic, 0))
            ]
            if len(ends) == 3 and ends[1] and not fetched_before:
                fetched_before.append(ends[0] + ends[2])
            return ends == [100, 1, 100]

        await until(copied)
        assert fetched_before[0] < 100, "the large topics are not copied first"

    run(Brokers(tmp_path), body)


def test_follower_that_the_leader_has_no_records_for_reports_that_it_is_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(brokers: Brokers) -> None:
        first, second, _ = await three(brokers)
        await first.topics.create("t", assignment=[(1, 2)])
        assert await produce(first) == ErrorCode.NONE
        await until(lambda: has_record(second, "t", 0))
        await brokers.stop(2)
        for _ in range(3):
            assert await produce(first, acks=1) == ErrorCode.NONE
        await until(lambda: first.partitions.require("t", 0).log.high_watermark == 4)  # without the follower
        topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=3)])
        deleted = await ask(first, DeleteRecordsRequest(topics=[topic], timeout_ms=5000))
        assert deleted.topics[0].partitions[0].error_code == ErrorCode.NONE
        second = await brokers.start(2)

        def copied() -> bool:
            replica = second.partitions.opened_replica("t", 0)
            return replica is not None and (replica.log.log_start_offset, replica.log.log_end_offset) == (3, 4)

        await until(copied)

    with caplog.at_level(logging.INFO):
        run(Brokers(tmp_path), body)
    assert (
        "t-0 ends at offset 1, before the first record of its leader, broker 1: deleting its records, and beginning at "
        "offset 3"
    ) in caplog.text
    assert "differs from the log" not in caplog.text


def test_fetches_wait_for_records_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """The follower reports its new log start after the checkpoint. Until then, it must not fetch in a busy loop."""

    async def body(brokers: Brokers) -> None:
        first, second, _ = await three(brokers)
        await first.topics.create("t", assignment=[(1, 2)])
        assert await produce(first) == ErrorCode.NONE
        await until(lambda: first.partitions.require("t", 0).log.high_watermark == 1)
        replica = second.partitions.opened_replica("t", 0)
        assert replica is not None
        released = asyncio.Event()
        write = second.checkpoints.write

        async def held(*arguments: Any) -> Any:
            await released.wait()
            return await write(*arguments)

        second.checkpoints.write = held  # type: ignore[method-assign]
        fetches = counted_fetches(second)
        topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
        deleting = asyncio.ensure_future(ask(first, DeleteRecordsRequest(topics=[topic], timeout_ms=60_000)))
        try:
            await until(lambda: replica.log.log_start_offset == 1)
            fetches.clear()
            await until(lambda: len(fetches) >= 3)
            assert min(each.max_wait_ms for each in fetches) > 0
            assert not deleting.done()
        finally:
            released.set()
        assert (await deleting).topics[0].partitions[0].error_code == ErrorCode.NONE

    run(Brokers(tmp_path), body)


def test_retry_of_a_batch_that_the_log_has_is_not_rejected_for_too_few_replicas(tmp_path: Path) -> None:
    """Otherwise, librdkafka takes the batch for lost, and may write it again under the next epoch. Kafka rejects it."""

    async def body(brokers: Brokers) -> None:
        first, second, _ = await three(brokers, min_insync_replicas="2")
        await first.topics.create("t", assignment=[(1, 2)])
        await everywhere(brokers, "t")
        assert await produce(first, sequence=0) == ErrorCode.NONE
        fetch_nothing(second)
        assert await produce(first, sequence=1, timeout_ms=500) == ErrorCode.REQUEST_TIMED_OUT
        await brokers.crash(2)
        replica = first.partitions.require("t", 0)
        await until(lambda: replica.term is not None and replica.term.isr == {1})
        assert await produce(first, sequence=0) == ErrorCode.NONE
        assert await produce(first, sequence=1, timeout_ms=10) == ErrorCode.REQUEST_TIMED_OUT
        assert await produce(first, sequence=2) == ErrorCode.NOT_ENOUGH_REPLICAS
        waiting = asyncio.create_task(produce(first, sequence=1, timeout_ms=60_000))
        await brokers.start(2, min_insync_replicas="2")
        assert await waiting == ErrorCode.NONE
        assert replica.log.log_end_offset == 2

    run(Brokers(tmp_path), body)
