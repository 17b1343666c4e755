"""Followers append and truncate in steps, between which the broker serves other requests."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.peers import Failure
from oncelog.broker.storage.checkpoints import Written
from oncelog.broker.storage.data_directory import HIGH_WATERMARKS, RECOVERY_POINTS, DataDirectory
from oncelog.cluster.brokers import BrokerInfo, broker_path, encode_broker, epoch_path
from oncelog.cluster.follower import Fetch, Fetched, Following, Restart, Truncate
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.replica import Replica
from oncelog.cluster.store import Create, Set
from oncelog.cluster.topic_nodes import write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.log.checkpoint import read_offset_checkpoint
from oncelog.log.steps import BATCHES_A_STEP, at_once
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support.broker_fixtures import NOW, BrokerStorage
from support.logs import append_as_follower

ID, OTHER = UUID(int=5), UUID(int=6)
LEADER = 2
BATCHES = 5 * BATCHES_A_STEP


class Leader:
    """Answer the Fetches of a follower with the same records each time, if there are any."""

    def __init__(self, records: bytes = b"") -> None:
        self.records = records
        self.high_watermark = 0
        self.fetches = 0
        self.error = ErrorCode.NONE

    async def request(self, broker: int, _purpose: Any, request: Any, *_: Any) -> Any:
        await asyncio.sleep(0.01)
        if not isinstance(request, FetchRequest) or broker != LEADER:
            return Failure("no such broker")
        self.fetches += 1
        records, self.records = self.records, b""
        data = PartitionData(partition_index=0, high_watermark=self.high_watermark, records=records)
        data.error_code = self.error
        return FetchResponse(session_id=0, responses=[FetchableTopicResponse(topic_id=ID, partitions=[data])])


def batches(start: int = 0, count: int = BATCHES) -> bytes:
    """Return batches of one record each. Producer 7 has sent all of them."""
    return b"".join(
        bytes(
            build_batch(
                [Record(0, NOW, None, b"x")],
                base_offset=offset,
                leader_epoch=0,
                producer_id=7,
                producer_epoch=0,
                base_sequence=offset,
            )
        )
        for offset in range(start, start + count)
    )


async def follower(
    broker: Broker, leader: Leader, topic: str = "t", topic_id: UUID = ID, request: Any = None
) -> Replica:
    """Return a replica that follows broker 2."""
    broker.peers.request = request or leader.request  # type: ignore[method-assign]
    info = TopicInfo(topic, topic_id, (PartitionInfo(LEADER, 0, (1, 2), (1, 2), leader_broker_epoch=0),))
    operations = [Create(epoch_path(LEADER)), Create(broker_path(LEADER), encode_broker(BrokerInfo(0)))]
    async with broker.loader.changing() as changes:
        if LEADER not in broker.metadata.image.brokers:  # otherwise, the controller elects broker 1
            changes.write(operations, broker_path(LEADER))
        write_topic(changes, info)
    await broker.partitions.open_in_turns(topic, 0)
    replica = broker.partitions.hosted(topic, 0)
    assert replica is not None
    assert replica.leader == LEADER
    return replica


async def elect(broker: Broker, leader: int, topic: str = "t") -> None:
    path = state_path(topic, 0)
    old = decode_state(broker.store.get(path))
    state = replace(
        old, leader=leader, leader_epoch=old.leader_epoch + 1, leader_broker_epoch=broker.registration.epoch
    )
    async with broker.loader.changing() as changes:
        changes.write([Set(path, encode_state(state), old.version)], path)


async def filled(broker: Broker, leader: Leader, topic: str = "t") -> Replica:
    """Return a replica that has followed the leader up to the end of some batches."""
    replica = await follower(broker, leader, topic)
    append(replica, batches())
    return replica


def append(replica: Replica, records: bytes) -> None:
    append_as_follower(replica.log, records, leader_epoch=0, now_ms=NOW)
    replica.appended()


async def ended(replica: Replica) -> None:
    async with asyncio.timeout(60):
        while replica.truncating:
            await asyncio.sleep(0.01)


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


def test_other_requests_have_turns_during_a_truncation(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await filled(broker, Leader())
        broker.replication.truncations.start(replica, Truncate(BATCHES - 1))
        turns = 0
        while replica.truncating:
            turns += replica.log.is_stale
            await asyncio.sleep(0)
        assert turns >= BATCHES / BATCHES_A_STEP - 1
        assert replica.log.producer_entries[7].last_sequence == BATCHES - 2

    storage.run_broker(life)


@pytest.mark.parametrize("topic", ["t", CONSUMER_OFFSETS])
def test_a_replica_leads_only_after_its_truncation(storage: BrokerStorage, topic: str) -> None:
    """A leader must know the producers. The coordinator of the partition is loaded afterwards."""

    async def life(broker: Broker) -> None:
        leader = Leader()
        replica = await filled(broker, leader, topic)
        replica.log.advance_high_watermark(BATCHES)
        checkpoints = broker.partitions.checkpoints
        hold = Held(checkpoints.write)
        checkpoints.write = hold.run  # type: ignore[method-assign]
        broker.replication.truncations.start(replica, Truncate(0 if topic == CONSUMER_OFFSETS else BATCHES - 1))
        try:
            await hold.reached.wait()
            fetches = leader.fetches
            await asyncio.sleep(0.1)
            assert leader.fetches <= fetches + 1  # one may have been under way
            await elect(broker, 1, topic)
            assert replica.term is None
        finally:
            hold.released.set()
        await ended(replica)
        assert replica.term is not None
        assert not replica.log.is_stale
        async with asyncio.timeout(60):
            while topic == CONSUMER_OFFSETS and not dict(broker.groups.shell.terms.shards()):
                await asyncio.sleep(0.01)

    storage.run_broker(life)


class Held:
    """Work that waits until the test lets it continue."""

    def __init__(self, work: Callable[[], Awaitable[Written]]) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.work = work

    async def run(self, *_: object) -> Written:
        self.reached.set()
        await self.released.wait()
        return await self.work()


def test_a_truncation_that_fails_is_repeated(storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.broker.replication_truncation.RETRY_S", 0.01)

    async def life(broker: Broker) -> None:
        replica = await filled(broker, Leader())
        broker.replication.truncations.start(replica, Truncate(BATCHES - 1))
        while not replica.log.is_stale:
            await asyncio.sleep(0)
        storage.disk.once = True
        storage.disk.break_down("read", "", errno.EMFILE)
        await ended(replica)
        assert not replica.log.is_stale
        assert replica.log.producer_entries[7].last_sequence == BATCHES - 2

    storage.run_broker(life)


def test_a_truncation_that_fails_within_an_append_is_completed(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's first batch begins before the end of the follower's log. Its producers must not stay those of 10."""
    monkeypatch.setattr("oncelog.broker.replication_truncation.RETRY_S", 0.01)
    records = [Record(index, NOW, None, b"y") for index in range(4)]
    batch = bytes(build_batch(records, base_offset=8, leader_epoch=0, producer_id=7, producer_epoch=0, base_sequence=8))

    async def life(broker: Broker) -> None:
        leader = Leader()
        replica = await follower(broker, leader)
        append(replica, batches(count=10))
        failed = []

        def check(kind: str, path: str) -> None:
            if kind == "read" and replica.log.log_end_offset == 8 and not failed:  # the files are truncated
                failed.append(path)
                raise OSError(errno.EMFILE, "no descriptor", path)

        storage.disk.check = check  # type: ignore[method-assign]
        leader.records = batch
        async with asyncio.timeout(60):
            while replica.log.log_end_offset != 8 or replica.truncating:
                await asyncio.sleep(0.01)
        assert failed
        assert not replica.log.is_stale
        assert replica.log.producer_entries[7].last_sequence == 7

    storage.run_broker(life)


def test_an_append_that_truncates_writes_its_checkpoints_before_the_next_fetch(storage: BrokerStorage) -> None:
    """With the former recovery point, recovery would not check what is appended next. A crash may have lost it."""
    records = [Record(index, NOW, None, b"y") for index in range(4)]
    first, second = (bytes(build_batch(records, base_offset=base, leader_epoch=0)) for base in (7, 9))

    async def life(broker: Broker) -> None:
        leader = Leader()
        replica = await follower(broker, leader)
        append(replica, batches(count=7) + first)
        replica.log.flush()
        replica.log.advance_high_watermark(11)
        assert replica.log.recovery_point == 11
        directory = broker.directories.holding(replica.log.directory)
        assert directory in await broker.partitions.checkpoints.write()
        found = []
        request = leader.request

        async def recorded(broker: int, purpose: Any, asked: Any, *rest: Any) -> Any:
            if replica.log.log_end_offset == 7:
                names = (f"{directory.path}/{name}" for name in (RECOVERY_POINTS, HIGH_WATERMARKS))
                found.append([read_offset_checkpoint(storage.disk, name)["t", 0] for name in names])
            return await request(broker, purpose, asked, *rest)

        broker.peers.request = recorded  # type: ignore[method-assign,assignment]
        leader.records = second
        async with asyncio.timeout(10):
            while not found:
                await asyncio.sleep(0.01)
        assert found[0] == [7, 7]
        assert not replica.truncating

    storage.run_broker(life)


def test_no_term_begins_while_an_append_that_has_truncated_the_log_pauses(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producers are rebuilt after the append. A leader's appends would be missing from them."""
    records = [Record(index, NOW, None, b"y") for index in range(4)]

    async def life(broker: Broker) -> None:
        leader = Leader()
        replica = await follower(broker, leader)
        append(replica, batches(count=11))
        leader.records = bytes(build_batch(records, base_offset=9, leader_epoch=0)) + batches(13)
        async with asyncio.timeout(60):
            while not replica.log.truncations:
                await asyncio.sleep(0)
        assert replica.log.log_end_offset < 13 + BATCHES
        with monkeypatch.context() as patch:
            patch.setattr(broker.partitions.roles, "_is_leader", lambda _: True)
            broker.partitions.roles.apply(replica)
        assert replica.term is None
        await ended(replica)
        assert replica.log.log_end_offset == 13 + BATCHES
        assert replica.log.producer_entries[7].last_sequence == 12 + BATCHES

    storage.run_broker(life)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_a_truncation_ends_only_after_its_checkpoint(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """With the former checkpoint, recovery would skip or commit records that are appended after the truncation.

    A shortage of descriptors delays it. After an error of the disk, the log is offline.
    """
    monkeypatch.setattr("oncelog.broker.replication_truncation.RETRY_S", 0.01)
    monkeypatch.setattr("oncelog.broker.storage.checkpoints.PAUSES", 0)

    async def life(broker: Broker) -> None:
        replica = await filled(broker, Leader())
        replica.log.advance_high_watermark(BATCHES)
        directory = broker.directories.holding(replica.log.directory)
        checkpoints = broker.partitions.checkpoints
        assert directory in await checkpoints.write()
        results = []
        write = checkpoints.write

        async def recorded(directories: Iterable[DataDirectory] | None = None) -> Written:
            results.append(await write(directories))
            return results[-1]

        checkpoints.write = recorded  # type: ignore[method-assign]
        storage.disk.break_down("replace", f"{directory.path}/{HIGH_WATERMARKS}", error)
        broker.replication.truncations.start(replica, Truncate(BATCHES - 1))
        async with asyncio.timeout(60):
            while len(results) < (2 if error == errno.EMFILE else 1):
                await asyncio.sleep(0.01)
        assert directory not in results[0]
        await elect(broker, 1)
        assert replica.term is None
        assert replica.offline == (error == errno.EIO)
        if error == errno.EIO:
            return
        assert replica.truncating
        storage.disk.repair()
        await ended(replica)
        assert replica.term is not None
        offsets = read_offset_checkpoint(storage.disk, f"{directory.path}/{HIGH_WATERMARKS}")
        assert offsets["t", 0] == BATCHES - 1

    storage.run_broker(life)


def test_an_unexpected_error_of_a_checkpoint_after_a_truncation_is_repeated(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.broker.replication_truncation.RETRY_S", 0.01)

    async def life(broker: Broker) -> None:
        replica = await filled(broker, Leader())
        replica.log.advance_high_watermark(BATCHES)
        checkpoints = broker.partitions.checkpoints
        write = checkpoints.write
        failures = []

        async def fail_once(directories: Iterable[DataDirectory] | None = None) -> Written:
            if not failures:
                failures.append(replica)
                raise RuntimeError("an unexpected error")
            return await write(directories)

        checkpoints.write = fail_once  # type: ignore[method-assign]
        broker.replication.truncations.start(replica, Truncate(BATCHES - 1))
        await elect(broker, 1)
        await ended(replica)
        assert failures
        assert replica.term is not None

    storage.run_broker(life)


@pytest.mark.parametrize(
    ("action", "cuts"), [(Truncate(BATCHES - 1), 0), (Truncate(BATCHES - 20), 1), (Restart(2 * BATCHES), 0)]
)
def test_only_a_truncation_below_the_high_watermark_drops_connections(
    storage: BrokerStorage, action: Truncate | Restart, cuts: int
) -> None:
    """A restart renames files, so responses that hold their pages can still be sent."""

    async def life(broker: Broker) -> None:
        replica = await filled(broker, Leader())
        replica.log.advance_high_watermark(BATCHES - 10)
        dropped = []
        truncations = broker.replication.truncations
        truncations._cut = lambda: dropped.append(replica.log.high_watermark)
        truncations.start(replica, action)
        await ended(replica)
        assert dropped == [action.offset] * cuts, "clients that connect again see no record that is being dropped"
        assert replica.log.log_end_offset == action.offset

    storage.run_broker(life)


def test_a_truncation_takes_back_what_counts_as_compacted(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await filled(broker, Leader())
        log = replica.log
        log.roll(NOW)
        append(replica, batches(BATCHES, 1))
        directory = broker.directories.holding(log.directory)
        directory.note_cleaned("t", 0, BATCHES)
        broker.replication.truncations.start(replica, Truncate(BATCHES))
        await ended(replica)
        assert directory.cleaned("t", 0) == BATCHES
        broker.replication.truncations.start(replica, Truncate(BATCHES - 1))
        await ended(replica)
        assert directory.cleaned("t", 0) == 0

    storage.run_broker(life)


def test_a_deleted_topic_ends_its_truncation(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await filled(broker, Leader())
        broker.replication.truncations.start(replica, Truncate(BATCHES - 1))
        await asyncio.sleep(0)
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        at_once(broker.partitions.dropping(topic))
        await asyncio.sleep(0.05)
        assert replica.log.closed

    storage.run_broker(life)
