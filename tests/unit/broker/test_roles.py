"""The newest metadata decides which partitions a broker leads, and under which epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs

from oncelog.broker.broker import Broker
from oncelog.broker.replication import in_sync
from oncelog.broker.storage.data_directory import HIGH_WATERMARKS
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.replica import Replica
from oncelog.cluster.state_writes import StateWrite
from oncelog.cluster.store import ANY, Set, StoreError
from oncelog.cluster.topic_nodes import write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.log.checkpoint import read_offset_checkpoint
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import NOW, BrokerStorage
from support.broker_sets import ask
from support.logs import of_producer
from support.turns import until

TOPIC = TopicInfo(
    "t",
    UUID(int=5),
    (PartitionInfo((1, 2), PartitionState(1, 0, (1, 2), leader_broker_epoch=0)),),
    {"min.insync.replicas": "2"},
)
ALONE = TopicInfo("a", UUID(int=6), (PartitionInfo((1,), PartitionState(1, 0, (1,))),))


def batch() -> memoryview:
    return memoryview(bytearray(build_batch([Record(0, NOW, None, b"x")])))


async def create(broker: Broker, topic: TopicInfo = TOPIC) -> None:
    async with broker.loader.changing() as changes:
        write_topic(changes, topic)


async def change(broker: Broker, topic: str = "t", **fields: object) -> PartitionState:
    """Write a new state of partition 0, as the controller does."""
    path = state_path(topic, 0)
    old = decode_state(broker.store.get(path))
    async with broker.loader.changing() as changes:
        changes.write([Set(path, encode_state(structs.replace(old, **fields)), old.version)], path)
    return decode_state(broker.store.get(path))


def found(broker: Broker, topic: str = "t") -> Replica:
    return broker.partitions.require(topic, 0)


def refused(broker: Broker, topic: str = "t") -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        broker.partitions.require(topic, 0)
    return caught.value.code


def test_a_replicated_partition_commits_what_its_followers_have(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await create(broker)
        replica = found(broker)
        assert replica.term is not None
        assert (replica.term.min_insync_replicas, replica.term.leader_epoch) == (2, 0)
        replica.append(batch(), now_ms=NOW, all_replicas=True)
        assert replica.log.high_watermark == 0
        replica.term.live_changed({1: 0, 2: 0}, 0)
        replica.term.fetched(2, 0, 1, log_start=0, now_ms=0)
        assert replica.log.high_watermark == 1

    storage.run_broker(life)


def test_a_later_epoch_ends_the_term_and_begins_another(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await create(broker)
        replica = found(broker)
        outcomes: list[ErrorCode] = []
        ended: list[tuple[str, int]] = []
        broker.partitions.roles.term_ended.subscribe(lambda topic, partition: ended.append((topic, partition)))
        replica.append(batch(), now_ms=NOW)
        replica.when_committed(0, outcomes.append)
        await change(broker, leader=2, leader_epoch=1)
        assert (outcomes, ended, replica.term) == ([ErrorCode.NOT_LEADER_OR_FOLLOWER], [("t", 0)], None)
        assert (replica.leader, replica.leader_epoch) == (2, 1)
        assert refused(broker) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not broker.partitions.leads("t", 0)
        await change(broker, leader=1, leader_epoch=2)
        assert found(broker) is replica
        assert (replica.leader, replica.leader_epoch) == (-1, 2)
        await change(broker, leader=1, leader_epoch=3)
        assert replica.leader_epoch == 3
        assert len(ended) == 2

    storage.run_broker(life)


def test_an_older_state_is_ignored(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await create(broker)
        replica = found(broker)
        stale = broker.metadata.image
        await change(broker, leader=2, leader_epoch=1)
        newest, broker.metadata.image = broker.metadata.image, stale
        broker.partitions.roles.apply(replica)
        assert (replica.term, replica.leader, replica.leader_epoch) == (None, 2, 1)
        broker.metadata.image = newest

    storage.run_broker(life)


def test_the_term_adopts_changes_of_the_in_sync_replicas(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await create(broker)
        replica = found(broker)
        term = replica.term
        replica.append(batch(), now_ms=NOW)
        await change(broker, isr=(1,))
        assert replica.term is term
        assert term is not None
        assert (term.isr, term.state.version, replica.log.high_watermark) == ({1}, 1, 0)  # 1 < min.insync.replicas

    storage.run_broker(life)


def test_delete_records_ends_when_another_has_removed_the_member_first(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller removes a member that may lack records while the leader does."""
    original = in_sync.write_states

    def overtaken(
        changes: ChangeLog, writes: Sequence[StateWrite], *, session: int | None
    ) -> Iterator[tuple[StateWrite, StoreError | None]]:
        for write in writes:
            path = state_path(write.topic, write.partition)
            changes.write([Set(path, encode_state(write.state), ANY)], path)
        return original(changes, writes, session=session)

    monkeypatch.setattr(in_sync, "write_states", overtaken)

    async def life(broker: Broker) -> None:
        await create(broker, replace(TOPIC, configs={}))
        replica = found(broker)
        term = replica.leading()
        replica.append(batch(), now_ms=NOW)
        term.live_changed({1: 0, 2: 0}, 0)
        term.fetched(2, 0, 1, log_start=0, now_ms=0)
        topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)
        deleting = asyncio.ensure_future(ask(broker, request))
        while not replica._watchers:  # until the request waits for broker 2
            await asyncio.sleep(0.005)
        broker.partitions.roles.brokers_changed(replica)  # broker 2 does not run
        (answer,) = (await deleting).topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 1)

    storage.run_broker(life)


@pytest.mark.parametrize("least", [1, 2])
def test_dead_member_leaves_at_once_if_the_leader_may_lack_records(storage: BrokerStorage, least: int) -> None:
    """No other broker can lead. The leader forgets the loss when no other replica is in the ISR or ELR."""

    async def life(broker: Broker) -> None:
        await create(broker, replace(TOPIC, configs={"min.insync.replicas": str(least)}))
        term = found(broker).leading()
        broker.registration.records_missing(broker.directories.online[0])
        await until(lambda: term.isr == {1}, limit_s=10)  # less than replica.lag.time.max.ms
        if least == 1:
            await until(lambda: not broker.membership.info.lost_unsynced)
        else:  # broker 2 leads as soon as it runs
            assert term.state.elr == (2,)
            assert broker.membership.info.may_lack("t", 0)

    storage.run_broker(life)


def test_a_process_leads_only_under_its_own_registration(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await create(broker)
        await create(broker, ALONE)
        await change(broker, leader_epoch=1, leader_broker_epoch=7)
        assert refused(broker) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker.membership.info = replace(broker.membership.info, epoch=7)
        await broker.partitions.apply_roles()
        replica = found(broker)
        assert replica.leader_epoch == 1
        broker.membership.info = replace(broker.membership.info, epoch=8)
        await broker.partitions.apply_roles()
        assert refused(broker) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await change(broker, leader_epoch=2, leader_broker_epoch=8)
        assert found(broker) is replica
        await change(broker, "a", leader_broker_epoch=3)
        found(broker, "a")  # a single replica has no followers

    storage.run_broker(life)


def test_logs_of_followed_partitions_are_opened(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await create(broker, replace(TOPIC, partitions=(PartitionInfo((1, 2), PartitionState(2, 0, (2,))),)))
        while (replica := broker.partitions.opened_replica("t", 0)) is None:
            await asyncio.sleep(0.01)
        assert (replica.term, replica.leader, replica.leader_epoch) == (None, 2, 0)
        await create(broker, replace(ALONE, partitions=(PartitionInfo((2,), PartitionState(2, 0, (2,))),)))
        await asyncio.sleep(0.05)
        assert broker.partitions.opened_replica("a", 0) is None

    storage.run_broker(life)


def test_the_checkpointed_high_watermark_is_kept_over_a_restart(storage: BrokerStorage) -> None:
    async def first(broker: Broker) -> None:
        await create(broker)
        replica = found(broker)
        assert replica.term is not None
        for _ in range(3):
            replica.append(batch(), now_ms=NOW)
        replica.term.live_changed({1: 0, 2: 0}, 0)
        replica.term.fetched(2, 0, 2, log_start=0, now_ms=0)

    async def second(broker: Broker) -> None:
        assert refused(broker) is ErrorCode.NOT_LEADER_OR_FOLLOWER  # this process is not elected yet
        await change(broker, leader_epoch=1, leader_broker_epoch=1)
        replica = found(broker)
        assert replica.term is not None
        assert (replica.log.high_watermark, replica.log.log_end_offset) == (2, 3)
        assert replica.term.exposed_high_watermark is None  # the last leader may have shown a higher one
        replica.term.live_changed({1: 1, 2: 0}, 0)
        replica.term.fetched(2, 0, 3, log_start=0, now_ms=0)
        assert replica.term.exposed_high_watermark == 3

    async def third(broker: Broker) -> None:
        """Open no log: the broker keeps the checkpoints."""

    storage.run_broker(first)
    storage.run_broker(second)
    storage.run_broker(third)
    kept = [read_offset_checkpoint(storage.disk, f"{path}/{HIGH_WATERMARKS}") for path in storage.paths]
    assert {("t", 0): 3} in kept


def test_a_transaction_is_unstable_after_a_restart_without_a_checkpointed_high_watermark(
    storage: BrokerStorage,
) -> None:
    """Its marker may not be committed. The partition is younger than the last checkpoint, or the file is damaged."""

    async def first(broker: Broker) -> None:
        await create(broker)
        log = found(broker).log
        log.append_as_leader(of_producer(7, 0, txn=True, timestamp=NOW), leader_epoch=0, now_ms=NOW)
        log.append_control(
            True,
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
            leader_epoch=0,
            now_ms=NOW,
            transaction_version=0,
        )
        assert log.last_stable_offset == 0

    async def second(broker: Broker) -> None:
        await broker.partitions.open_in_turns("t", 0)
        replica = broker.partitions.opened_replica("t", 0)
        assert replica is not None
        replica.log.advance_high_watermark(1)  # of the two records
        assert (replica.log.high_watermark, replica.log.last_stable_offset) == (1, 0)

    storage.run_broker(first)
    for path in storage.paths:
        (Path(path) / HIGH_WATERMARKS).unlink(missing_ok=True)
    storage.run_broker(second)
