"""Followers truncate in steps, and lead or fetch only after the truncation and its checkpoints have ended."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.storage.checkpoints import Written
from oncelog.broker.storage.data_directory import HIGH_WATERMARKS, RECOVERY_POINTS, DataDirectory
from oncelog.cluster.follower import Restart, Truncate
from oncelog.log.checkpoint import read_offset_checkpoint
from oncelog.log.steps import BATCHES_A_STEP, at_once
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support.broker_fixtures import NOW, BrokerStorage
from support.followed_leader import BATCHES, Leader, append, batches, elect, ended, filled, follower


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
    monkeypatch.setattr("oncelog.broker.replication.truncations.RETRY_MS", (10, 60_000))

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
    monkeypatch.setattr("oncelog.broker.replication.truncations.RETRY_MS", (10, 60_000))
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

        storage.disk.before = check
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
    monkeypatch.setattr("oncelog.broker.replication.truncations.RETRY_MS", (10, 60_000))
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
    monkeypatch.setattr("oncelog.broker.replication.truncations.RETRY_MS", (10, 60_000))

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
        truncations._abort_connections = lambda: dropped.append(replica.log.high_watermark)
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


def test_a_deleted_topic_ends_its_truncation(storage: BrokerStorage, caplog: pytest.LogCaptureFixture) -> None:
    async def life(broker: Broker) -> None:
        replica = await filled(broker, Leader())
        broker.replication.truncations.start(replica, Truncate(BATCHES - 1))
        await asyncio.sleep(0)
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        at_once(broker.partitions.dropping(topic))
        assert replica.log.closed
        async with asyncio.timeout(60):
            while any(task.get_name() == "truncate t-0" for task in asyncio.all_tasks()):
                await asyncio.sleep(0.005)

    storage.run_broker(life)
    assert "truncate" not in caplog.text
