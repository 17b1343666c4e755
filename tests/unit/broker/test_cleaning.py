"""The log cleaner of a broker: its choice of logs, its speed, and its checkpoint."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.storage.data_directory import CLEANER_OFFSETS
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.replica import Replica
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.topic_nodes import erase_topic
from oncelog.log.disk import OsDisk
from oncelog.protocol.records import Record, build_batch, decode_records, iter_batches
from support.broker_fixtures import NOW, live
from support.hooked_disk import HookedDisk

COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "300", "min.cleanable.dirty.ratio": "0.1"}


class CleanerStorage:
    """A data directory and a tree. The tests call the cleaner."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "data"
        self.disk = OsDisk()
        self._store = MemoryStore(lambda: NOW)

    def run_broker(self, life: Callable[[Broker], Awaitable[None]], **settings: str) -> None:
        live(self.directory, self._store, life, disk=self.disk, **{"log_cleaner_enable": "false", **settings})

    @property
    def offsets(self) -> list[str]:
        return (self.directory / CLEANER_OFFSETS).read_text().splitlines()[2:]


@pytest.fixture
def storage(tmp_path: Path) -> CleanerStorage:
    return CleanerStorage(tmp_path)


def fill(replica: Replica, count: int = 20, size: int = 1) -> None:
    for turn in range(count):
        batch = build_batch([Record(0, NOW, b"k%d" % (turn % 2), b"%d" % turn * size)])
        replica.append(memoryview(batch), now_ms=NOW)


def keys(replica: Replica, start: int = 0) -> list[bytes | None]:
    log, offset = replica.log, start
    found: list[bytes | None] = []
    while offset < log.log_end_offset:
        for header, view in iter_batches(log.read(offset, 1 << 20, upto=log.log_end_offset, at_least_one=True)):
            found += [record.key for record in decode_records(view)]
            offset = header.next_offset
    return found


async def made(broker: Broker, name: str, **configs: str) -> Replica:
    await broker.topics.create(
        name, partitions=1, configs=COMPACTED | {k.replace("_", "."): v for k, v in configs.items()}
    )
    return broker.partitions.require(name, 0)


def test_cleaned_offset_is_stored_and_the_log_is_not_cleaned_again(storage: CleanerStorage) -> None:
    async def first(broker: Broker) -> None:
        replica = await made(broker, "t")
        fill(replica)
        end = replica.log.segments.active.base_offset
        assert await broker.cleaner.clean_due()
        assert storage.offsets == [f"t 0 {end}"]
        assert len(keys(replica)) < 10
        assert not await broker.cleaner.clean_due()

    async def second(broker: Broker) -> None:
        replica = broker.partitions.require("t", 0)
        assert not await broker.cleaner.clean_due()
        fill(replica)
        assert await broker.cleaner.clean_due()
        assert storage.offsets == [f"t 0 {replica.log.segments.active.base_offset}"]

    storage.run_broker(first)
    storage.run_broker(second)


@pytest.mark.parametrize("turns", range(0, 60, 4))
def test_log_truncated_during_its_compaction_is_compacted_later(storage: CleanerStorage, turns: int) -> None:
    async def life(broker: Broker) -> None:
        replica = await made(broker, "t")
        fill(replica)
        cleaning = asyncio.ensure_future(broker.cleaner.clean_due())
        for _ in range(turns):
            await asyncio.sleep(0)
        whole = cleaning.done()
        replica.log.truncate_to(1, NOW)
        broker.partitions.forget_cleaned(replica)
        assert await cleaning is whole
        assert broker.directories.holding(replica.log.directory).cleaned("t", 0) in (None, 0)
        fill(replica)
        assert await broker.cleaner.clean_due()

    storage.run_broker(life)


def test_checkpoint_drops_a_deleted_topic(storage: CleanerStorage) -> None:
    async def life(broker: Broker) -> None:
        fill(await made(broker, "t"))
        fill(await made(broker, "other"))
        assert await broker.cleaner.clean_due()
        assert {line.split()[0] for line in storage.offsets} == {"t", "other"}
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        await broker.topics.delete(topic)
        while {line.split()[0] for line in storage.offsets} != {"other"}:
            await asyncio.sleep(0.005)
        replica = await made(broker, "t")
        fill(replica, 40)
        assert await broker.cleaner.clean_due()
        assert len(keys(replica)) < 10

    storage.run_broker(life)


def test_checkpoint_drops_a_topic_that_was_deleted_before_its_first_cleaning(storage: CleanerStorage) -> None:
    async def first(broker: Broker) -> None:
        fill(await made(broker, "t"))
        assert await broker.cleaner.clean_due()

    async def second(broker: Broker) -> None:
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        await broker.topics.delete(topic)
        while storage.offsets:
            await asyncio.sleep(0.005)

    storage.run_broker(first)
    storage.run_broker(second)


def test_checkpoint_drops_a_log_that_was_set_aside(storage: CleanerStorage) -> None:
    """The deletion of its topic was interrupted, and a new topic has the same name."""

    async def first(broker: Broker) -> None:
        fill(await made(broker, "t"))
        assert await broker.cleaner.clean_due()
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        erase_topic(ChangeLog(broker.store), topic)

    async def second(broker: Broker) -> None:
        replica = await made(broker, "t")
        assert replica.log.log_end_offset == 0
        assert storage.offsets == []
        fill(replica, 40)
        assert await broker.cleaner.clean_due()
        assert len(keys(replica)) < 10

    storage.run_broker(first)
    storage.run_broker(second)
    assert list(storage.directory.glob("t-0.*-stray"))


def test_only_logs_above_the_dirty_ratio_are_cleaned(storage: CleanerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await made(broker, "t", min_cleanable_dirty_ratio="0.9")
        plain = await made(broker, "plain", cleanup_policy="delete")
        fill(replica)
        fill(plain)
        assert await broker.cleaner.clean_due()
        fill(replica, 4)
        assert not await broker.cleaner.clean_due()
        fill(replica, 40)
        assert await broker.cleaner.clean_due()
        assert len(keys(plain)) == 20

    storage.run_broker(life)


def test_log_is_written_and_read_while_it_is_cleaned(storage: CleanerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await made(broker, "t")
        fill(replica, 40)
        cleaning = asyncio.ensure_future(broker.cleaner.clean_due())
        seen = 0
        while not cleaning.done():
            fill(replica, 1)
            assert keys(replica, replica.log.log_end_offset - 1) == [b"k0"]
            seen += 1
            await asyncio.sleep(0)
        assert await cleaning
        assert seen > 5
        assert replica.log.log_end_offset == 40 + seen

    storage.run_broker(life)


def test_damaged_log_is_not_cleaned_until_the_next_start(storage: CleanerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await made(broker, "t")
        good = await made(broker, "good")
        fill(replica)
        fill(good)
        path = Path(next(iter(replica.log.segments)).path)
        data = bytearray(path.read_bytes())
        data[66] ^= 1
        path.write_bytes(data)
        assert await broker.cleaner.clean_due()
        assert len(keys(good)) < 10
        fill(replica)
        assert not await broker.cleaner.clean_due()
        assert len([name for name in path.parent.iterdir() if name.suffix in (".cleaned", ".swap")]) == 0

    storage.run_broker(life)


def test_cleaner_is_throttled_to_its_io_limit(storage: CleanerStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def life(broker: Broker) -> None:
        replica = await made(broker, "t", internal_segment_bytes="100000")
        fill(replica, 40, size=10_000)

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        dirty = sum(segment.size for segment in list(replica.log.segments)[:-1])
        monkeypatch.setattr("oncelog.broker.storage.log_cleaner.asyncio", SimpleNamespace(sleep=sleep))
        assert await broker.cleaner.clean_due()
        clean = sum(segment.size for segment in list(replica.log.segments)[:-1])
        # The dirty part is read twice, and the remaining records are written.
        assert 0 <= (2 * dirty + clean) / 100_000 - sum(slept) < 0.05

    storage.run_broker(life, log_cleaner_io_max_bytes_per_second="100000")
    assert all(each == 0 or each >= 0.05 for each in slept)


def test_cleaner_runs_automatically(storage: CleanerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await made(broker, "t")
        fill(replica)
        while len(keys(replica)) >= 10:
            await asyncio.sleep(0.001)

    storage.run_broker(life, log_cleaner_enable="true", log_cleaner_backoff_ms="1")


def test_error_in_one_log_does_not_stop_cleaning_the_others(
    storage: CleanerStorage, caplog: pytest.LogCaptureFixture
) -> None:
    reads: list[str] = []

    def fail(kind: str, path: str) -> None:
        if kind == "read part" and "bad-0" in path:
            reads.append(path)
            raise RuntimeError("an unexpected error")

    storage.disk = HookedDisk(fail)

    async def life(broker: Broker) -> None:
        bad, good = await made(broker, "bad"), await made(broker, "good")
        bad.append(memoryview(build_batch([Record(0, NOW, b"bad", b"1")])), now_ms=NOW)
        fill(bad, 60)
        fill(good)
        for _ in range(2):
            while len(keys(good)) >= 10:
                await asyncio.sleep(0.001)
            fill(bad)
            fill(good)
        assert len(keys(bad)) == 101

    with caplog.at_level(logging.ERROR):
        storage.run_broker(life, log_cleaner_enable="true", log_cleaner_backoff_ms="1")
    assert len(reads) == 1
    (entry,) = caplog.records
    assert "bad-0" in entry.getMessage()
    assert entry.exc_info is not None
    assert isinstance(entry.exc_info[1], RuntimeError)


def fail_once(number: int, threads: list[int]) -> HookedDisk:
    """Return a disk that fails the first read of the cleaner, and records the threads of all of them."""

    def read(kind: str, path: str) -> None:
        if kind == "read part":
            threads.append(threading.get_ident())
            if len(threads) == 1:
                raise OSError(number, "no read", path)

    return HookedDisk(read)


def test_cleaner_survives_too_many_open_files(storage: CleanerStorage) -> None:
    async def life(broker: Broker) -> None:
        replica = await made(broker, "t")
        fill(replica)
        assert not await broker.cleaner.clean_due()
        assert len(keys(replica)) == 20
        assert await broker.cleaner.clean_due()
        assert len(keys(replica)) < 10
        assert threading.get_ident() not in threads

    threads: list[int] = []
    storage.disk = fail_once(errno.EMFILE, threads)
    storage.run_broker(life)


def test_log_is_compacted_later_after_a_lack_of_memory(storage: CleanerStorage) -> None:
    scarce = True

    def reserve(kind: str, path: str) -> None:
        if kind == "read part" and scarce:
            raise MemoryError("cannot reserve")

    storage.disk = HookedDisk(reserve)

    async def life(broker: Broker) -> None:
        nonlocal scarce
        replica = await made(broker, "t")
        fill(replica)
        assert not await broker.cleaner.clean_due()
        scarce = False
        assert len(keys(replica)) == 20
        assert await broker.cleaner.clean_due()
        assert len(keys(replica)) < 10

    storage.run_broker(life)


def test_failed_disk_removes_its_logs_from_the_cleaner(storage: CleanerStorage) -> None:
    """The next start, with its recovery, returns them."""

    async def first(broker: Broker) -> None:
        replica = await made(broker, "t")
        fill(replica)
        assert not await broker.cleaner.clean_due()
        assert "all log directories have failed" in await broker.failed
        assert replica.offline
        assert not await broker.cleaner.clean_due()

    async def second(broker: Broker) -> None:
        replica = broker.partitions.require("t", 0)
        assert len(keys(replica)) == 20
        assert await broker.cleaner.clean_due()
        assert len(keys(replica)) < 10

    storage.disk = fail_once(errno.EIO, [])
    storage.run_broker(first)
    storage.run_broker(second)


def test_cleaner_yields_while_it_searches_for_work(storage: CleanerStorage) -> None:
    async def life(broker: Broker) -> None:
        for number in range(20):
            await made(broker, f"t{number}")
        turns = 0
        looking = asyncio.ensure_future(broker.cleaner.clean_due())
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 20

    storage.run_broker(life)


def test_cleaner_continues_after_a_checkpoint_that_failed(
    storage: CleanerStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        replica = await made(broker, "t")
        fill(replica)
        with monkeypatch.context() as patch:

            async def write(_: object) -> None:
                raise RuntimeError("can't start new thread")

            patch.setattr(broker.checkpoints, "write", write)
            cleaning = asyncio.ensure_future(broker.cleaner.run())
            while "can't start new thread" not in caplog.text:
                assert not cleaning.done()
                await asyncio.sleep(0.001)
        fill(replica)
        end = replica.log.segments.active.base_offset
        while not (storage.directory / CLEANER_OFFSETS).exists() or storage.offsets != [f"t 0 {end}"]:
            assert not cleaning.done()
            await asyncio.sleep(0.001)
        cleaning.cancel()

    storage.run_broker(life, log_cleaner_backoff_ms="1")
