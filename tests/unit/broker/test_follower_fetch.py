"""Fetch, ListOffsets and DeleteRecords of replicated partitions, as followers and clients of the leader see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from oncelog.broker.broker import Broker
from oncelog.broker.handlers import delete_records, fetch, list_offsets, offset_for_leader_epoch
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.delayed import ALWAYS_WAITS, MOST_WAITING
from oncelog.cluster.brokers import BrokerInfo, broker_path, encode_broker
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.replica import Replica
from oncelog.cluster.store import NoNodeError, Set
from oncelog.cluster.topic_nodes import write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from oncelog.protocol.records import Record, build_batch
from support.authorizers import Allowing
from support.broker_fixtures import NOW, BrokerStorage

ID = UUID(int=5)
TOPIC = TopicInfo("t", ID, (PartitionInfo((1, 2, 3), PartitionState(1, 0, (1, 2), leader_broker_epoch=0)),))
CONTEXT = RequestContext(ApiKey.FETCH, 17, 1, "test", Session())
LISTING = RequestContext(ApiKey.LIST_OFFSETS, 9, 1, "test", Session())
DELETING = RequestContext(ApiKey.DELETE_RECORDS, 2, 1, "test", Session())
FOLLOWER = 2
MOST = 1 << 20


def registered(broker: Broker, number: int, epoch: int) -> None:
    """Register another broker, or register it again."""
    path = broker_path(number)
    with suppress(NoNodeError):
        broker.store.delete(path)
    broker.store.create(path, encode_broker(BrokerInfo(epoch)))


async def leader(broker: Broker, epoch: int = 0) -> Replica:
    """Return the replica, which leads in this epoch, with three records of the epochs before.

    The follower is registered with broker epoch 0.
    """
    registered(broker, FOLLOWER, epoch=0)
    await broker.loader.refresh()
    async with broker.loader.changing() as changes:
        write_topic(changes, TOPIC)
    replica = broker.partitions.require("t", 0)
    for _ in range(3):
        replica.append(memoryview(bytearray(build_batch([Record(0, NOW, None, b"x")]))), now_ms=NOW)
    if epoch:
        path = state_path("t", 0)
        old = decode_state(broker.store.get(path))
        async with broker.loader.changing() as changes:
            changes.write([Set(path, encode_state(structs.replace(old, leader_epoch=epoch)), old.version)], path)
    return replica


def request(
    offset: int,
    *,
    broker: int = FOLLOWER,
    broker_epoch: int = 0,
    wait_ms: int = 0,
    log_start_offset: int = 0,
    **fields: int,
) -> FetchRequest:
    partition = FetchPartition(
        partition=0,
        fetch_offset=offset,
        partition_max_bytes=MOST,
        log_start_offset=log_start_offset,
        **fields,
    )
    return FetchRequest(
        replica_state=ReplicaState(replica_id=broker, replica_epoch=broker_epoch),
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[FetchTopic(topic_id=ID, partitions=[partition])],
    )


def fetched(broker: Broker, asked: FetchRequest, context: RequestContext = CONTEXT) -> PartitionData:
    answer = fetch.bind(broker.services)(asked, context)
    assert isinstance(answer, FetchResponse)
    return answer.responses[0].partitions[0]


def test_a_follower_reads_beyond_the_high_watermark_which_its_next_fetch_advances(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await leader(broker)
        assert (replica.log.high_watermark, replica.log.log_end_offset) == (0, 3)
        found = fetched(broker, request(0, current_leader_epoch=0))
        assert (found.error_code, found.high_watermark) == (0, 0)
        assert isinstance(found.records, bytes)  # a copy: the records may be truncated before they are sent
        assert len(found.records) == replica.log.size_bytes
        consumer = fetched(broker, request(0, broker=-1))
        assert (consumer.error_code, consumer.records) == (0, b"")
        assert fetched(broker, request(3, current_leader_epoch=0, last_fetched_epoch=0)).high_watermark == 3
        assert fetched(broker, request(0, broker=-1)).records

    storage.run_broker(life)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (request(0, current_leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (request(0, current_leader_epoch=6), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (request(4, current_leader_epoch=5), ErrorCode.OFFSET_OUT_OF_RANGE),
        (request(0, current_leader_epoch=5, broker=9), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (request(0, broker=9), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (request(0, current_leader_epoch=5, broker=FOLLOWER), ErrorCode.NONE),
    ],
)
def test_errors_of_a_followers_fetch(storage: BrokerStorage, asked: FetchRequest, code: ErrorCode) -> None:
    async def life(broker: Broker) -> None:
        await leader(broker, epoch=5)
        assert fetched(broker, asked).error_code == code

    storage.run_broker(life)


def test_a_fetch_of_a_replaced_process_does_not_count(storage: BrokerStorage) -> None:
    """`fetch_from_the_dead` (KAFKA-15221)."""

    async def life(broker: Broker) -> None:
        replica = await leader(broker)
        early = fetched(broker, request(3, broker_epoch=2, last_fetched_epoch=0))
        assert (early.error_code, replica.log.high_watermark) == (ErrorCode.UNKNOWN_LEADER_EPOCH, 0)
        registered(broker, FOLLOWER, epoch=2)
        await broker.loader.refresh()
        assert fetched(broker, request(1, broker_epoch=2, last_fetched_epoch=0)).error_code == 0
        late = fetched(broker, request(3, broker_epoch=1, last_fetched_epoch=0))
        assert (late.error_code, replica.log.high_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)

    storage.run_broker(life)


def read_kinds(storage: BrokerStorage) -> list[str]:
    """Return a list that gets the kind of each read of a file from now on."""
    kinds: list[str] = []

    def check(kind: str, _path: str) -> None:
        if kind in ("read", "view"):
            kinds.append(kind)

    storage.disk.before = check
    return kinds


@pytest.mark.parametrize("epoch", [-1, 1, 3])
def test_a_fetch_with_a_wrong_broker_epoch_does_not_read_the_log(storage: BrokerStorage, epoch: int) -> None:
    """Its records would be copied, and then dropped: anyone can send such a Fetch."""

    async def life(broker: Broker) -> None:
        await leader(broker)
        registered(broker, FOLLOWER, epoch=2)
        await broker.loader.refresh()
        reads = read_kinds(storage)
        code = ErrorCode.UNKNOWN_LEADER_EPOCH if epoch == 3 else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert fetched(broker, request(0, broker_epoch=epoch)).error_code == code
        assert not reads
        assert fetched(broker, request(0, broker_epoch=2)).error_code == 0
        assert reads

    storage.run_broker(life)


def test_a_follower_gets_at_most_replica_fetch_max_bytes_of_a_partition(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await leader(broker)
        size = replica.log.size_bytes // 3
        for asked, count in ((0, 2), (2, 1)):
            assert len(fetched(broker, request(asked)).records) == count * size

    storage.run_broker(life, replica_fetch_max_bytes="150")


def test_a_follower_gets_copies_of_uncommitted_records_only(storage: BrokerStorage) -> None:
    """The leader never truncates records before the high watermark, so it sends the pages of their file."""

    async def life(broker: Broker) -> None:
        replica = await leader(broker)
        fetched(broker, request(2, last_fetched_epoch=0))
        assert replica.log.high_watermark == 2
        size = replica.log.size_bytes // 3
        reads = read_kinds(storage)
        assert len(fetched(broker, request(0)).records) == 2 * size
        assert "view" in reads
        reads.clear()
        assert len(fetched(broker, request(2, last_fetched_epoch=0)).records) == size
        assert set(reads) == {"read"}

    storage.run_broker(life)


def test_a_diverging_fetch_gets_the_end_of_the_epoch_and_does_not_count(storage: BrokerStorage) -> None:
    """`diverging_fetch_counts_not` (KAFKA-13141)."""

    async def life(broker: Broker) -> None:
        replica = await leader(broker, epoch=5)
        found = fetched(broker, request(3, current_leader_epoch=5, last_fetched_epoch=4))
        assert (found.error_code, found.records, replica.log.high_watermark) == (0, b"", 0)
        assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, 3)

    storage.run_broker(life)


def test_a_follower_waits_for_records(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await leader(broker)
        answer = fetch.bind(broker.services)(request(3, last_fetched_epoch=0, wait_ms=600_000), CONTEXT)
        assert isinstance(answer, Awaitable)
        task = asyncio.ensure_future(answer)
        await asyncio.sleep(0.05)
        replica.append(memoryview(bytearray(build_batch([Record(0, NOW, None, b"x")]))), now_ms=NOW)
        found = (await asyncio.wait_for(task, 60)).responses[0].partitions[0]
        assert (found.high_watermark, len(found.records)) == (3, replica.log.size_bytes // 4)

    storage.run_broker(life)


def test_a_follower_waits_although_clients_use_up_the_limit(storage: BrokerStorage) -> None:
    """Each client with acks=all depends on replication. Followers have a limit of their own."""
    wide = TopicInfo("wide", UUID(int=6), TOPIC.partitions * (ALWAYS_WAITS + 1))

    async def life(broker: Broker) -> None:
        await leader(broker)
        async with broker.loader.changing() as changes:
            write_topic(changes, wide)
        replicas = [broker.partitions.require("wide", n) for n in range(len(wide.partitions))]
        handle: Any = fetch.bind(broker.services)
        handle._waiting.count = MOST_WAITING

        def started() -> asyncio.Future[FetchResponse]:
            asked = request(0, wait_ms=20_000)
            partitions = [FetchPartition(partition=n, partition_max_bytes=MOST) for n in range(len(wide.partitions))]
            asked.topics = [FetchTopic(topic_id=wide.topic_id, partitions=partitions)]
            return asyncio.ensure_future(handle(asked, CONTEXT))

        waiting = started()
        await asyncio.sleep(0)
        assert handle._followers_waiting.count == len(wide.partitions)
        handle._followers_waiting.count = MOST_WAITING
        pausing = started()
        await asyncio.sleep(0)
        assert handle._pausing.count == len(wide.partitions)
        await asyncio.wait_for(pausing, 20)
        replicas[0].append(memoryview(bytearray(build_batch([Record(0, NOW, None, b"x")]))), now_ms=NOW)
        found = (await asyncio.wait_for(waiting, 20)).responses[0].partitions[0]
        assert len(found.records) == replicas[0].log.size_bytes

    storage.run_broker(life)


def test_a_follower_in_a_session_does_not_wait_for_a_high_watermark(storage: BrokerStorage) -> None:
    """Its next Fetch says that it has the records, which commits them. It waits only if it knows the result."""

    async def life(broker: Broker) -> None:
        replica = await leader(broker)
        handle = fetch.bind(broker.services)
        first = request(0, wait_ms=600_000)
        first.session_epoch = 0
        begun = handle(first, CONTEXT)
        assert isinstance(begun, FetchResponse)
        assert begun.session_id
        asked = request(3, last_fetched_epoch=0, wait_ms=600_000)
        asked.session_id, asked.session_epoch = begun.session_id, 1
        answer = handle(asked, CONTEXT)
        assert isinstance(answer, Awaitable)
        found = (await asyncio.wait_for(answer, 60)).responses[0].partitions[0]
        assert (found.high_watermark, found.records) == (3, b"")
        asked.session_epoch, asked.topics = 2, []
        waiting = handle(asked, CONTEXT)
        assert isinstance(waiting, Awaitable)
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0.1)
        assert not task.done()
        replica.append(memoryview(bytearray(build_batch([Record(0, NOW, None, b"x")]))), now_ms=NOW)
        found = (await asyncio.wait_for(task, 60)).responses[0].partitions[0]
        assert found.high_watermark == 3
        assert found.records

    storage.run_broker(life)


def test_the_end_of_the_term_answers_a_waiting_follower(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await leader(broker)
        answer = fetch.bind(broker.services)(request(3, last_fetched_epoch=0, wait_ms=600_000), CONTEXT)
        task = asyncio.ensure_future(answer)
        await asyncio.sleep(0.05)
        broker.partitions.roles.end_term(replica)
        found = (await asyncio.wait_for(task, 60)).responses[0].partitions[0]
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    storage.run_broker(life)


def test_only_brokers_may_fetch_as_followers(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await leader(broker)
        denying = Allowing(lambda operation, _: operation is not AclOperation.CLUSTER_ACTION)
        context = replace(CONTEXT, authorizer=denying)
        found = fetched(broker, request(3, last_fetched_epoch=0), context)
        assert (found.error_code, replica.log.high_watermark) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)

    storage.run_broker(life)


async def listed(broker: Broker, replica_id: int) -> tuple[int, int]:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsTopic(name="t", partitions=[asked])]
    answer = await list_offsets.bind(broker.services)(ListOffsetsRequest(replica_id=replica_id, topics=topics), LISTING)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset


def test_a_new_leader_hides_its_end_from_consumers_until_its_epoch_has_begun(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await leader(broker, epoch=5)
        assert await listed(broker, -1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await listed(broker, FOLLOWER) == (0, 3)
        fetched(broker, request(3, last_fetched_epoch=0))
        assert await listed(broker, -1) == (0, 3)

    storage.run_broker(life)


def test_followers_ask_for_the_end_of_an_epoch_without_permission_for_the_topic(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await leader(broker, epoch=5)
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=5, leader_epoch=3)
        topics = [OffsetForLeaderTopic(topic="t", partitions=[asked])]
        context = RequestContext(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            1,
            "test",
            Session(),
            authorizer=Allowing(lambda operation, _: operation is AclOperation.CLUSTER_ACTION),
        )
        answer = await offset_for_leader_epoch.bind(broker.services)(
            OffsetForLeaderEpochRequest(topics=topics), context
        )
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 3)

    storage.run_broker(life)


def deleting(
    broker: Broker, timeout_ms: int, context: RequestContext = DELETING
) -> asyncio.Task[DeleteRecordsResponse]:
    """Begin to delete the first two records."""
    wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
    work = delete_records.bind(broker.services)(DeleteRecordsRequest(topics=[wanted], timeout_ms=timeout_ms), context)
    return asyncio.ensure_future(work)


@pytest.mark.parametrize("deletes", [True, False])
def test_delete_records_waits_for_the_followers(storage: BrokerStorage, deletes: bool) -> None:
    async def life(broker: Broker) -> None:
        await leader(broker)
        fetched(broker, request(3, last_fetched_epoch=0))
        task = deleting(broker, 2**31 - 1 if deletes else 100)
        await asyncio.sleep(0.05)
        assert not task.done()
        if deletes:
            fetched(broker, request(3, last_fetched_epoch=0, log_start_offset=2))
        found = (await asyncio.wait_for(task, 60)).topics[0].partitions[0]
        timed_out = ErrorCode.REQUEST_TIMED_OUT, 0
        assert (found.error_code, found.low_watermark) == ((0, 2) if deletes else timed_out)

    storage.run_broker(life)


def test_delete_records_does_not_wait_for_a_dead_follower(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await leader(broker)
        fetched(broker, request(3, last_fetched_epoch=0))
        task = deleting(broker, 2**31 - 1)
        await asyncio.sleep(0.05)
        assert not task.done()
        broker.store.delete(broker_path(FOLLOWER))
        await broker.loader.refresh()
        found = (await asyncio.wait_for(task, 60)).topics[0].partitions[0]
        assert (found.error_code, found.low_watermark) == (0, 2)

    storage.run_broker(life)


@pytest.mark.parametrize("waits", [True, False])
def test_delete_records_of_a_client_that_has_gone_ends(storage: BrokerStorage, waits: bool) -> None:
    async def life(broker: Broker) -> None:
        replica = await leader(broker)
        fetched(broker, request(3, last_fetched_epoch=0))
        context = replace(DELETING, session=Session())
        task = deleting(broker, 2**31 - 1, context)
        await asyncio.sleep(0.05 if waits else 0)
        context.session.disconnected()
        await asyncio.wait_for(task, 60)
        assert not context.session.waiting
        assert not replica._watchers

    storage.run_broker(life)


def test_a_waiting_consumer_gets_records_that_a_follower_commits(storage: BrokerStorage) -> None:
    """They were in the log when the consumer began to wait, so no new bytes arrive."""

    async def life(broker: Broker) -> None:
        await leader(broker)
        task = asyncio.ensure_future(fetch.bind(broker.services)(request(0, broker=-1, wait_ms=600_000), CONTEXT))
        await asyncio.sleep(0.05)
        assert not task.done()
        fetched(broker, request(3, last_fetched_epoch=0))
        found = (await asyncio.wait_for(task, 60)).responses[0].partitions[0]
        assert (found.high_watermark, bool(found.records)) == (3, True)

    storage.run_broker(life)
