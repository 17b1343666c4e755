"""The first requests of clients on three new brokers, which do not know the coordinators' topics yet."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import confluent_kafka
import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.metadata import loader
from oncelog.cluster.wakes import Wakes
from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from support.broker_sets import Brokers, ask, run
from support.turns import until

PARTITIONS = 6
SETTINGS = {
    "offsets_topic_num_partitions": str(PARTITIONS),
    "offsets_topic_replication_factor": "1",
    "transaction_state_log_num_partitions": str(PARTITIONS),
    "transaction_state_log_replication_factor": "1",
}


@pytest.fixture(autouse=True)
def _no_polls_and_no_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers read the metadata only for requests."""
    monkeypatch.setattr(loader, "POLL_S", 3600.0)
    monkeypatch.setattr(loader, "SHARED_POLL_S", 3600.0)
    monkeypatch.setattr(Wakes, "descriptor", None)


async def three(brokers: Brokers) -> list[Broker]:
    """Start three brokers, which know each other and the topic `t`."""
    for node_id in (1, 2, 3):
        await brokers.start(node_id, **SETTINGS)
    started = list(brokers.running.values())
    await started[0].loader.catch_up()
    await started[0].topics.create("t", assignment=[(1,)])
    for broker in started:
        await broker.loader.catch_up()
        assert len(broker.metadata.image.brokers) == 3
    return started


def id_on(first: Broker, topic: str, broker: int) -> str:
    """Return a group or transactional id whose coordinator is this broker."""
    info = first.metadata.image.topics_by_name[topic]
    return next(
        name
        for name in map("id-{}".format, range(1000))
        if info.partitions[partition_for(name, PARTITIONS)].leader == broker
    )


def commit(group: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])])


def test_named_coordinator_accepts_the_first_request(tmp_path: Path) -> None:
    """Without a read, it would return COORDINATOR_NOT_AVAILABLE."""

    async def body(brokers: Brokers) -> None:
        first, second, third = await three(brokers)
        for key_type, topic in enumerate((CONSUMER_OFFSETS, TRANSACTION_STATE)):
            (found,) = (
                await ask(first, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"]))
            ).coordinators
            assert found.error_code == ErrorCode.NONE
            assert second.metadata.image.topic(topic) is None
        answer = await ask(second, commit(id_on(first, CONSUMER_OFFSETS, 2)), 9)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        join = JoinGroupRequest(
            group_id=id_on(first, CONSUMER_OFFSETS, 3),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        assert (await ask(third, join)).error_code == ErrorCode.MEMBER_ID_REQUIRED

    run(Brokers(tmp_path), body)


def test_named_coordinator_accepts_the_first_transactional_producer(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, second, _ = await three(brokers)
        await ask(first, FindCoordinatorRequest(key_type=1, coordinator_keys=["any"]))
        assert second.metadata.image.topic(TRANSACTION_STATE) is None
        name = id_on(first, TRANSACTION_STATE, 2)
        answer = await ask(second, InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000))
        assert answer.error_code == ErrorCode.NONE

    run(Brokers(tmp_path), body)


def test_first_synchronous_commits_of_librdkafka_succeed(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers)
        await ask(first, FindCoordinatorRequest(key_type=0, coordinator_keys=["any"]))
        bootstrap = f"127.0.0.1:{first.port}"
        for broker in (2, 3):
            await asyncio.to_thread(commit_with_librdkafka, bootstrap, id_on(first, CONSUMER_OFFSETS, broker))

    run(Brokers(tmp_path), body)


def commit_with_librdkafka(bootstrap: str, group: str) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        wanted = [confluent_kafka.TopicPartition("t", 0, 7)]
        (committed,) = consumer.commit(offsets=wanted, asynchronous=False)
        assert (committed.error, committed.offset) == (None, 7)
    finally:
        consumer.close()


def test_requests_that_wait_share_a_read_of_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a read for each request, clients could occupy all threads that read."""
    reads = waiting = 0
    released = threading.Event()

    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers)
        poll, refresh = first.store.poll, first.topics.refresh

        def held_poll() -> None:
            nonlocal reads
            reads += 1
            assert released.wait(60)
            poll()

        async def counted() -> None:
            nonlocal waiting
            waiting += 1
            await refresh()

        monkeypatch.setattr(first.store, "poll", held_poll)
        monkeypatch.setattr(first.topics, "refresh", counted)
        asked = asyncio.gather(*(ask(first, DescribeGroupsRequest(groups=["g"])) for _ in range(100)))
        await until(lambda: waiting == 100 and reads)
        released.set()
        assert {answer.groups[0].group_state for answer in await asked} == {"Dead"}
        assert reads <= 2

    try:
        run(Brokers(tmp_path), body)
    finally:
        released.set()
