"""Checkpoint files are synced before they take effect, and never replaced by older content."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.handlers.delete_records import bind as delete_records
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.storage.data_directory import CLEAN_SHUTDOWN, DataDirectory, Offsets
from oncelog.broker.storage.log_offsets import LOGS_A_STEP
from oncelog.cluster.store_memory import MemoryStore
from oncelog.log.checkpoint import read_offset_checkpoint
from oncelog.log.disk import Buffer, OsDisk
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.sim.disk import SimDisk
from support.broker_fixtures import NOW, BrokerStorage, append, fill, live
from support.hooked_disk import HookedDisk

CONTEXT = RequestContext(0, 2, 1, "test", Session())
CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint")


class RecordingDisk(OsDisk):
    """Record each sync and rename, and its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, str]] = []
        self.waited: set[int] = set()
        """Threads that waited for the device."""
        self.shortages = 0
        """How many syncs fail for lack of a file descriptor."""

    def atomic_write(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        super().atomic_write(path, data, sync=sync)
        if sync:
            self.events.append(("sync", Path(path).name))
            self.waited.add(threading.get_ident())

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.events.append(("rename", Path(source).name))

    def sync(self, path: str) -> None:
        if self.shortages:
            self.shortages -= 1
            raise OSError(errno.EMFILE, "too many open files", path)
        super().sync(path)
        self.events.append(("sync", Path(path).name))
        self.waited.add(threading.get_ident())


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause before work without a file descriptor is retried."""
    monkeypatch.setattr("oncelog.broker.retrying.SHORTAGE_MS", (1, 1))


def test_checkpoints_are_synced_before_they_replace_the_old_ones(tmp_path: Path) -> None:
    disk = RecordingDisk()

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        append(broker.partitions.require("t", 0))
        broker.directories.holding(str(tmp_path)).note_cleaned("t", 0, 1)
        disk.events.clear()
        disk.waited.clear()
        await broker.checkpoints.write()
        for name in (*CHECKPOINTS, "cleaner-offset-checkpoint"):
            synced, renamed = (disk.events.index((what, f"{name}.new")) for what in ("sync", "rename"))
            assert synced < renamed < disk.events.index(("sync", tmp_path.name), renamed)
            assert (tmp_path / name).read_text().splitlines()[1] == "1"
        assert threading.get_ident() not in disk.waited

    live(tmp_path, None, life, disk=disk)


def test_high_watermarks_of_partitions_with_followers_are_written_at_short_intervals(tmp_path: Path) -> None:
    """They are written without the other checkpoints and without syncs of logs, and only if they have changed."""
    disk = RecordingDisk()
    marks = CHECKPOINTS[2]

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        replica = broker.partitions.require("t", 0)
        append(replica)
        await broker.checkpoints.write()
        while ("sync", "t-0") not in disk.events:  # its first append has created files
            await asyncio.sleep(0.005)
        disk.events.clear()
        append(replica)
        await asyncio.sleep(0.1)
        assert ("rename", f"{marks}.new") not in disk.events, "the partition has no followers"
        assert replica.term is not None
        replica.term.replicas = (1, 2)
        for end in (2, 3):
            while (tmp_path / marks).read_text().splitlines()[2:] != [f"t 0 {end}"]:
                await asyncio.sleep(0.005)
            append(replica)
        while disk.events.count(("rename", f"{marks}.new")) < 3:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)  # many intervals
        assert disk.events.count(("rename", f"{marks}.new")) == 3
        assert {name for _, name in disk.events} == {f"{marks}.new", tmp_path.name}
        assert threading.get_ident() not in disk.waited

    live(tmp_path, None, life, disk=disk, replica_high_watermark_checkpoint_interval_ms="5")


@pytest.mark.parametrize("only_high_watermarks", [False, True])
def test_other_requests_have_turns_while_the_offsets_of_many_logs_are_read(
    tmp_path: Path, only_high_watermarks: bool
) -> None:
    async def life(broker: Broker) -> None:
        (directory,) = broker.directories.online
        stored = {("t", partition): 1 + partition for partition in range(5 * LOGS_A_STEP)}
        files = (directory.recovery_points, directory.start_offsets, directory.high_watermarks)
        for offsets in files:
            offsets.update(stored)
        read = 0

        def hosts(_topic: str, _partition: int) -> bool:
            nonlocal read
            read += 1
            return True

        broker.partitions.roles.hosts = hosts  # type: ignore[method-assign]
        checkpoints = broker.checkpoints
        work = checkpoints.write_high_watermarks(directory) if only_high_watermarks else checkpoints.write()
        task = asyncio.ensure_future(work)
        most = before = 0
        while not task.done():
            await asyncio.sleep(0)
            most, before = max(most, read - before), read
        assert read == len(stored) * (1 if only_high_watermarks else 3)
        assert most <= LOGS_A_STEP
        for name in CHECKPOINTS[2 if only_high_watermarks else 0 :]:
            assert read_offset_checkpoint(OsDisk(), str(tmp_path / name)) == stored

    live(tmp_path, None, life)


def test_offsets_of_a_log_deleted_while_they_are_read_are_not_written(tmp_path: Path) -> None:
    """The round has read the offsets of the log already. A new log of this name must not get them."""

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        replica = broker.partitions.require("t", 0)
        append(replica)
        replica.log.flush()
        (directory,) = broker.directories.online
        directory.recovery_points.update({("u", partition): 1 for partition in range(5 * LOGS_A_STEP)})
        hosts = broker.partitions.roles.hosts
        broker.partitions.roles.hosts = lambda topic, partition: topic == "u" or hosts(topic, partition)  # type: ignore[method-assign]
        task = asyncio.ensure_future(broker.checkpoints.write())
        for _ in range(3):
            await asyncio.sleep(0)
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        await broker.topics.delete(topic)
        await broker.topics.create("t", partitions=1)
        broker.partitions.require("t", 0)
        for _ in range(2):
            found = read_offset_checkpoint(OsDisk(), str(tmp_path / CHECKPOINTS[0]))
            assert len(found.keys() - {("t", 0)}) == 5 * LOGS_A_STEP
            assert not found.get(("t", 0))
            await task

    live(tmp_path, None, life)


def test_checkpoints_are_written_while_topics_are_deleted_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeleteRecords waits for them. A topic is deleted during each write."""

    async def life(broker: Broker) -> None:
        topics = []
        for number in range(10):
            topics.append(await broker.topics.create(f"t{number}", partitions=1))
            replica = broker.partitions.require(f"t{number}", 0)
            append(replica)
            replica.log.flush()
        loop, write_aside = asyncio.get_running_loop(), DataDirectory.write_aside

        def deleting(self: DataDirectory, checkpoints: dict[str, Offsets]) -> None:
            if topics:
                asyncio.run_coroutine_threadsafe(broker.topics.delete(topics.pop()), loop).result(10)
            write_aside(self, checkpoints)

        monkeypatch.setattr(DataDirectory, "write_aside", deleting)
        assert await broker.checkpoints.write()
        assert topics

    live(tmp_path, None, life)


def test_small_files_of_a_partition_are_synced_by_a_worker(tmp_path: Path) -> None:
    disk = RecordingDisk()

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        disk.waited.clear()
        append(broker.partitions.require("t", 0))
        wanted = {("sync", name) for name in ("partition.metadata", "t-0", tmp_path.name)}
        while not wanted.issubset(disk.events):
            await asyncio.sleep(0.005)
        assert threading.get_ident() not in disk.waited

    live(tmp_path, None, life, disk=disk)


@pytest.mark.usefixtures("short_pauses")
def test_small_files_are_synced_after_a_shortage_of_descriptors(tmp_path: Path) -> None:
    disk = RecordingDisk()

    async def life(broker: Broker) -> None:
        for number, topic in enumerate(("t", "u"), 1):
            await broker.topics.create(topic, partitions=1)
            disk.shortages = 3
            append(broker.partitions.require(topic, 0))
            while disk.events.count(("sync", "partition.metadata")) < number:
                await asyncio.sleep(0.005)
            assert not disk.shortages

    live(tmp_path, None, life, disk=disk)


def test_older_round_does_not_replace_newer_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINTS[1]

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        replica = broker.partitions.require("t", 0)
        for _ in range(3):
            append(replica)
        replica.log.advance_log_start(1)
        gate.clear()
        round_of_before = broker.checkpoints.start()
        await asyncio.sleep(0)
        replica.log.advance_log_start(2)
        broker.checkpoints.write_now()
        assert path.read_text().splitlines()[2:] == ["t 0 2"]
        gate.set()
        await round_of_before
        assert path.read_text().splitlines()[2:] == ["t 0 2"]

    async def offload(work: Callable[..., object], *arguments: object) -> object:
        await gate.wait()
        return work(*arguments)

    gate = asyncio.Event()
    gate.set()
    live(tmp_path, None, life, offload=offload)


async def deleted(broker: Broker, partitions: list[int], offset: int = 1) -> dict[int, tuple[int, int]]:
    """Delete records of the topic ``t``. Return the error and the low watermark of each partition."""
    wanted = [DeleteRecordsPartition(partition_index=index, offset=offset) for index in partitions]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=wanted)], timeout_ms=1000)
    answer = await delete_records(broker.services)(request, CONTEXT)
    return {each.partition_index: (each.error_code, each.low_watermark) for each in answer.topics[0].partitions}


@pytest.mark.usefixtures("short_pauses")
def test_checkpoints_are_retried_after_a_shortage_of_descriptors(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        storage.disk.once = True
        storage.disk.break_down("replace", f"{storage.paths[0]}/log-start-offset-checkpoint", errno.EMFILE)
        assert await deleted(broker, [0, 1]) == {0: (ErrorCode.NONE, 1), 1: (ErrorCode.NONE, 1)}
        for index, path in enumerate(storage.paths):
            assert f"t {index} 1" in Path(path, "log-start-offset-checkpoint").read_text()

    storage.run_broker(life)


@pytest.mark.usefixtures("short_pauses")
def test_delete_records_reports_a_start_offset_that_is_not_synced(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        storage.disk.break_down("replace", f"{storage.paths[0]}/log-start-offset-checkpoint", errno.EMFILE)
        expected = {0: (ErrorCode.KAFKA_STORAGE_ERROR, -1), 1: (ErrorCode.NONE, 1)}
        assert await deleted(broker, [0, 1]) == expected
        storage.disk.repair()
        assert await deleted(broker, [0, 1]) == {0: (ErrorCode.NONE, 1), 1: (ErrorCode.NONE, 1)}
        storage.disk.break_down("replace", f"{storage.paths[0]}/log-start-offset-checkpoint", errno.EIO)
        assert await deleted(broker, [0, 1]) == expected
        assert [each.path for each in broker.directories.online] == [storage.paths[1]]

    storage.run_broker(life)


@pytest.mark.usefixtures("short_pauses")
def test_delete_records_fails_if_the_directory_fails_before_the_checkpoint(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        gate = asyncio.Event()
        offload = broker.workers.offload

        async def gated(work: Callable[..., object], *arguments: object) -> object:
            await gate.wait()
            return await offload(work, *arguments)

        broker.workers.offload = gated
        earlier = broker.checkpoints.start()
        await asyncio.sleep(0)
        deleting = asyncio.ensure_future(deleted(broker, [0, 1]))
        await asyncio.sleep(0)
        broker.directories.online[0].disk.fail(OSError(errno.EIO, "input/output error"))
        gate.set()
        await earlier
        assert await deleting == {0: (ErrorCode.KAFKA_STORAGE_ERROR, -1), 1: (ErrorCode.NONE, 1)}

    storage.run_broker(life)


@pytest.mark.usefixtures("short_pauses")
def test_stop_that_cannot_write_the_checkpoints_is_not_clean(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await fill(broker, "t", 2)
        storage.disk.break_down("replace", f"{storage.paths[0]}/log-start-offset-checkpoint", errno.EMFILE)

    async def after(broker: Broker) -> None:
        assert [each.clean for each in broker.directories] == [False, True]
        assert broker.partitions.require("t", 0).log.log_end_offset == 1

    storage.run_broker(life)
    storage.disk.repair()
    storage.run_broker(after)


@pytest.mark.parametrize("seed", range(20))
def test_deleted_records_stay_deleted_after_a_power_loss(seed: int) -> None:
    machine = SimDisk(random.Random(seed))
    store = MemoryStore(lambda: NOW)

    async def inline(work: Callable[..., object], *arguments: object) -> object:
        return work(*arguments)

    async def first(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1, configs={"flush.messages": "1"})
        replica = broker.partitions.require("t", 0)
        for _ in range(5):
            append(replica)
        while replica.log.high_watermark < 5:
            await asyncio.sleep(0)
        assert await deleted(broker, [0], 3) == {0: (ErrorCode.NONE, 3)}
        machine.crash()
        broker.stop = AsyncMock()  # type: ignore[method-assign]

    async def second(broker: Broker) -> None:
        log = broker.partitions.require("t", 0).log
        assert (log.log_start_offset, log.log_end_offset) == (3, 5)

    live("data", store, first, disk=machine.mount(), offload=inline)
    live("data", store, second, disk=machine.mount(), offload=inline)


class BarrierDisk(RecordingDisk):
    """While `meeting` is set, a sync of a segment waits until another thread syncs one too."""

    meeting: threading.Barrier | None = None

    def sync(self, path: str) -> None:
        if self.meeting is not None and path.endswith(".log"):
            self.meeting.wait(timeout=60)
        super().sync(path)


def test_a_stop_syncs_several_logs_at_a_time(tmp_path: Path) -> None:
    disk, store = BarrierDisk(), MemoryStore(lambda: NOW)

    async def write(broker: Broker) -> None:
        await broker.topics.create("t", partitions=4)
        for partition in range(4):
            append(broker.partitions.require("t", partition))
        disk.events.clear()
        disk.meeting = threading.Barrier(2)

    async def look(broker: Broker) -> None:
        directory = broker.directories.holding(str(tmp_path))
        assert directory.recovery_points == {("t", partition): 1 for partition in range(4)}

    live(tmp_path, store, write, disk=disk)
    disk.meeting = None
    assert disk.events.count(("sync", f"{0:020d}.log")) == 4
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
    live(tmp_path, store, look, disk=disk)


def test_a_log_that_cannot_be_synced_at_a_stop_is_recovered_later(tmp_path: Path) -> None:
    storage = BrokerStorage(tmp_path)

    async def write(broker: Broker) -> None:
        await broker.topics.create("t", partitions=4)
        for partition in range(4):
            append(broker.partitions.require("t", partition))
        storage.disk.break_down("sync", f"{broker.partitions.require('t', 2).log.directory}/{0:020d}.log", errno.EMFILE)

    storage.run_broker(write)
    broken = storage.log_dir_names()["t-2"]
    other = "b" if broken == "a" else "a"
    assert not (tmp_path / broken / CLEAN_SHUTDOWN).exists()
    assert (tmp_path / other / CLEAN_SHUTDOWN).exists()


def test_a_power_failure_does_not_bring_back_the_mark_of_a_clean_stop(tmp_path: Path) -> None:
    """With the mark, the next start would recover no log, and the broker would stay in the ISRs."""
    undoable: set[str] = set()
    """Removed files that a power failure could bring back, because their directory was not synced since."""

    def after(kind: str, path: str) -> None:
        if kind == "remove file":
            undoable.add(path)
        elif kind == "sync":
            undoable.difference_update([each for each in undoable if str(Path(each).parent) == path])

    disk = HookedDisk(after=after)

    def opened() -> DataDirectory:
        directory = DataDirectory(disk, str(tmp_path), 1, logging.getLogger("test"), lambda *_: None)
        directory.open("cluster", uuid4)
        assert undoable == set()
        return directory

    opened().mark_clean({})
    assert opened().clean
    assert not opened().clean
