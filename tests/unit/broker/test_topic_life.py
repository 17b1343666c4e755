"""Topics and the broker that holds them start and end, in order or by `kill -9`: leftovers must not cause harm.

After a `kill -9`, the next broker runs on a copy of the data directory at that moment.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.coordinators.record_batches import EndMarker
from oncelog.broker.handlers.find_coordinator import bind as find_coordinator
from oncelog.broker.handlers.transactions import bind_add_offsets as add_offsets_to_txn
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.storage.checkpoints import Checkpoints
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.turns import ITEMS_A_TURN
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.replica import Replica
from oncelog.cluster.store import Create, MetadataStore, Operation, UnavailableError
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.topic_nodes import erase_topic
from oncelog.cluster.topics import INTERNAL_TOPICS, TopicInfo
from oncelog.log.disk import OsDisk
from oncelog.log.log import Origin
from oncelog.log.recovery import Loader
from oncelog.log.steps import at_once
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import NOW, live
from support.failing_store import FailingStore
from support.hooked_disk import HookedDisk
from support.logs import apply_retention

PARTITIONS = 3 * ITEMS_A_TURN
SMALL_SEGMENTS = {"internal.segment.bytes": "200"}


class CrashStorage:
    """A data directory and a tree that are kept between brokers."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory / "0"
        self.store: MetadataStore = MemoryStore(lambda: NOW)
        self.disk = OsDisk()
        self._settings = settings

    def run_broker(self, life: Callable[[Broker], Awaitable[None]], *, kill: bool = True) -> None:
        """Start a broker, run `life`, then kill or stop the broker."""

        async def killed(broker: Broker) -> None:
            try:
                await life(broker)
            finally:
                left = self.directory.with_name(str(int(self.directory.name) + 1))
                # A worker thread may be writing checkpoints, so its files may vanish.
                shutil.copytree(self.directory, left, ignore=shutil.ignore_patterns("*.new", "*.tmp"))
                self.directory = left

        live(self.directory, self.store, killed if kill else life, disk=self.disk, **self._settings)


@pytest.fixture
def storage(tmp_path: Path) -> CrashStorage:
    return CrashStorage(tmp_path)


def append(replica: Replica, *, producer: int = -1, sequence: int = -1) -> None:
    """Append one record; with a producer, in its transaction."""
    batch = build_batch(
        [Record(0, NOW, b"k", b"x" * 100)],
        producer_id=producer,
        producer_epoch=-1 if producer < 0 else 0,
        base_sequence=sequence,
        transactional=producer >= 0,
    )
    replica.append(memoryview(batch), now_ms=NOW)


def test_recreated_topic_does_not_start_at_the_deleted_topics_offset(storage: CrashStorage) -> None:
    async def first(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1, configs=SMALL_SEGMENTS)
        replica = broker.partitions.require("t", 0)
        for _ in range(5):
            append(replica)
        apply_retention(replica.log, NOW + 10**10)
        assert replica.log.log_start_offset == 5
        broker.checkpoints.write_now()
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        await broker.topics.delete(topic)
        await broker.topics.create("t", partitions=1)
        append(broker.partitions.require("t", 0))

    async def second(broker: Broker) -> None:
        log = broker.partitions.require("t", 0).log
        assert (log.log_start_offset, log.log_end_offset) == (0, 1)

    storage.run_broker(first)
    storage.run_broker(second)


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str, called: list[str]) -> None:
    original = getattr(Checkpoints, name)

    def counted(self: Checkpoints, *arguments: object) -> object:
        called.append(name)
        return original(self, *arguments)

    monkeypatch.setattr(Checkpoints, name, counted)


def test_recreated_topic_does_not_wait_for_the_checkpoints_of_its_deletion(
    storage: CrashStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may hang while they are synced. Nevertheless, the new log must not get the old log's offsets."""
    offsets = "log-start-offset-checkpoint"

    async def life(broker: Broker) -> None:
        old = await broker.topics.create("t", partitions=1)
        append(broker.partitions.require("t", 0))
        append(broker.partitions.require("t", 0))
        broker.partitions.require("t", 0).log.advance_log_start(1)
        await broker.checkpoints.write()
        assert (storage.directory / offsets).read_text().splitlines()[2:] == ["t 0 1"]
        released = asyncio.Event()

        async def hanging(self: Checkpoints, directories: object = None) -> frozenset[DataDirectory]:
            await released.wait()
            return await original(self, None)

        original = Checkpoints.write
        monkeypatch.setattr(Checkpoints, "write", hanging)
        await broker.topics.delete(old)
        await broker.topics.create("t", partitions=1)
        append(broker.partitions.require("t", 0))
        left = (storage.directory / offsets).read_text().splitlines()
        released.set()
        assert "t 0 1" not in left

    storage.run_broker(life)


def test_deletion_of_topics_without_stored_offsets_writes_no_checkpoints(
    storage: CrashStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    for name in ("write", "write_now"):
        count_calls(monkeypatch, name, written)

    async def life(broker: Broker) -> None:
        for flushed in (False, True):
            for name in ("a", "b"):
                topic = await broker.topics.create(name, partitions=2)
                append(broker.partitions.require(name, 0))
                if flushed and name == "b":
                    broker.partitions.require(name, 0).log.flush()
                await broker.topics.delete(topic)
            for _ in range(20):  # the background task begins
                await asyncio.sleep(0)
            assert written == ["write"] * int(flushed)  # `write_now` would hold the loop

    storage.run_broker(life)


@pytest.mark.parametrize("retained_from", [0, 5])
def test_leftovers_of_an_interrupted_deletion_do_not_belong_to_the_new_topic(
    storage: CrashStorage, retained_from: int
) -> None:
    async def first(broker: Broker) -> None:
        topic = await broker.topics.create("t", partitions=1, configs=SMALL_SEGMENTS)
        replica = broker.partitions.require("t", 0)
        for _ in range(6):
            append(replica)
        replica.log.advance_log_start(retained_from)
        broker.checkpoints.write_now()
        erase_topic(ChangeLog(broker.store), topic)  # and now the power fails

    async def second(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        log = broker.partitions.require("t", 0).log
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        append(broker.partitions.require("t", 0))

    async def third(broker: Broker) -> None:
        log = broker.partitions.require("t", 0).log
        assert (log.log_start_offset, log.log_end_offset) == (0, 1)

    storage.run_broker(first)
    storage.run_broker(second)
    storage.run_broker(third)


def test_next_start_completes_an_interrupted_deletion(storage: CrashStorage) -> None:
    async def first(broker: Broker) -> None:
        topic = await broker.topics.create("t", partitions=1)
        append(broker.partitions.require("t", 0))
        erase_topic(ChangeLog(broker.store), topic)
        at_once(broker.partitions.dropping(topic))  # and now the power fails

    async def second(broker: Broker) -> None:
        while [path.name for path in storage.directory.iterdir() if path.is_dir()]:
            await asyncio.sleep(0.005)

    storage.run_broker(first)
    assert [path.name for path in storage.directory.iterdir() if path.name.endswith("-delete")]
    storage.run_broker(second)


async def filled(broker: Broker, partitions: int) -> TopicInfo:
    topic = await broker.topics.create("t", partitions=partitions)
    for partition in range(partitions):
        append(broker.partitions.require("t", partition))
    return topic


async def start_deletion(broker: Broker, topic: TopicInfo) -> asyncio.Future[None]:
    """Delete a topic until its metadata is erased, and some of its partitions are not dropped yet."""
    deleting = asyncio.ensure_future(broker.topics.delete(topic))
    while broker.metadata.image.topic(topic.name) is not None:
        await asyncio.sleep(0)
    assert not deleting.done()
    return deleting


def folders(storage: CrashStorage) -> set[str]:
    return {path.name for path in storage.directory.iterdir() if path.is_dir() and not path.name.endswith("-delete")}


def test_deletion_of_a_topic_yields_to_other_requests(storage: CrashStorage) -> None:
    async def life(broker: Broker) -> None:
        topic = await filled(broker, PARTITIONS)
        deleting = asyncio.ensure_future(broker.topics.delete(topic))
        left = [len(folders(storage))]
        while not deleting.done():
            await asyncio.sleep(0)
            left.append(len(folders(storage)))
        assert max(before - after for before, after in itertools.pairwise(left)) <= ITEMS_A_TURN + 1
        assert left[-1] == 0
        assert not folders(storage)

    storage.run_broker(life, kill=False)


def test_topic_is_created_only_after_the_deleted_one_of_its_name_is_gone(storage: CrashStorage) -> None:
    async def life(broker: Broker) -> None:
        topic = await filled(broker, PARTITIONS)
        deleting = await start_deletion(broker, topic)
        created = await broker.topics.create("t", partitions=PARTITIONS)
        assert len(broker.partitions) == 0
        for partition in range(PARTITIONS):
            replica = broker.partitions.require("t", partition)
            append(replica)
            assert (replica.topic_id, replica.log.log_end_offset) == (created.topic_id, 1)
        await deleting

    async def after(broker: Broker) -> None:
        assert {broker.partitions.require("t", each).log.log_end_offset for each in range(PARTITIONS)} == {1}

    storage.run_broker(life, kill=False)
    assert not list(storage.directory.glob("*-stray"))
    storage.run_broker(after)


def test_cancelled_deletion_leaves_no_folder_without_a_topic(storage: CrashStorage) -> None:
    async def life(broker: Broker) -> None:
        topic = await filled(broker, PARTITIONS)
        deleting = await start_deletion(broker, topic)
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)

    storage.run_broker(life, kill=False)
    assert not folders(storage)


def test_reference_to_a_deleted_partition_cannot_change_the_new_topic(storage: CrashStorage) -> None:
    async def life(broker: Broker) -> None:
        topic = await broker.topics.create("t", partitions=1, configs=SMALL_SEGMENTS)
        old = broker.partitions.require("t", 0)
        for _ in range(3):
            append(old)
        await broker.topics.delete(topic)
        await broker.topics.create("t", partitions=1)
        new = broker.partitions.require("t", 0)
        append(new)
        with pytest.raises(ProtocolError) as caught:
            append(old)
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert apply_retention(old.log, NOW + 10**10) == 0

    async def after(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 1

    storage.run_broker(life, kill=False)
    storage.run_broker(after)


def test_stop_before_all_logs_are_recovered_is_not_clean(storage: CrashStorage) -> None:
    async def killed(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        append(broker.partitions.require("t", 0), producer=7, sequence=0)
        broker.services.markers.append("t", 0, EndMarker(False, 7, 0, 0, 1))

    async def stopped_at_once(broker: Broker) -> None:
        assert len(broker.partitions) == 0

    async def reads(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.aborted_transactions(0, 2) == [(7, 0)]

    storage.run_broker(killed)
    storage.run_broker(stopped_at_once, kill=False)
    storage.run_broker(reads, kill=False)
    assert (storage.directory / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
@pytest.mark.parametrize("content", [b"", b"0\n2\nt 0 1\n", b"\x00" * 20])
def test_torn_checkpoint_only_causes_a_recovery(storage: CrashStorage, name: str, content: bytes) -> None:
    async def first(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        append(broker.partitions.require("t", 0))

    async def second(broker: Broker) -> None:
        assert broker.partitions.require("t", 0).log.log_end_offset == 1

    storage.run_broker(first, kill=False)
    (storage.directory / name).write_bytes(content)
    storage.run_broker(second)


def test_internal_topic_created_by_a_user_has_its_coordinators(storage: CrashStorage) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.create("__transaction_state", partitions=2)
        context = RequestContext(10, 3, 1, "test", Session())
        found = await find_coordinator(broker.services)(FindCoordinatorRequest(key="a", key_type=1), context)
        assert found.error_code == ErrorCode.NONE
        assert [partition for partition, _ in broker.transactions.shell.terms.shards()] == [0, 1]

    storage.run_broker(life)


def test_request_gets_retriable_error_if_an_internal_topic_cannot_be_created(storage: CrashStorage) -> None:
    def full(operations: Sequence[Operation]) -> None:
        """Reject new topics."""
        if any(isinstance(change, Create) and "__" in change.path for change in operations):
            raise UnavailableError("disk full")

    storage.store = FailingStore(lambda: NOW, before=full)

    async def life(broker: Broker) -> None:
        context = RequestContext(10, 3, 1, "test", Session())
        found = await find_coordinator(broker.services)(FindCoordinatorRequest(key="a", key_type=1), context)
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        request = AddOffsetsToTxnRequest(transactional_id="a", producer_id=1, producer_epoch=0, group_id="g")
        added = await add_offsets_to_txn(broker.services)(request, context)
        assert added.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    storage.run_broker(life)


def test_checkpoints_continue_after_a_disk_error(tmp_path: Path) -> None:
    storage = CrashStorage(tmp_path, log_flush_offset_checkpoint_interval_ms="5")

    failures: list[str] = []

    def fail(kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log") and not failures:
            failures.append(path)
            raise FileNotFoundError(2, "the file was deleted meanwhile", path)

    storage.disk = HookedDisk(fail)

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1, configs=SMALL_SEGMENTS)
        replica = broker.partitions.require("t", 0)
        for _ in range(3):
            append(replica)
        while replica.log.recovery_point == 0:
            await asyncio.sleep(0.005)

    storage.run_broker(life)


def test_coordinator_that_cannot_be_loaded_does_not_affect_the_others(storage: CrashStorage) -> None:
    async def poison(broker: Broker) -> None:
        for name in INTERNAL_TOPICS:
            await broker.topics.ensure_internal(name)
        replica = broker.partitions.require("__transaction_state", 0)
        batch = build_batch([Record(0, NOW, b"\x00\x00\xff", None)])
        replica.append(memoryview(batch), now_ms=NOW, origin=Origin.COORDINATOR)

    async def life(broker: Broker) -> None:
        while len(broker.partitions) < 100:
            await asyncio.sleep(0.005)
        assert [partition for partition, _ in broker.transactions.shell.terms.shards()] == list(range(1, 50))
        assert [partition for partition, _ in broker.groups.shell.terms.shards()] == list(range(50))

    storage.run_broker(poison)
    storage.run_broker(life)


def test_logs_share_equal_settings_and_keep_no_loader(storage: CrashStorage) -> None:
    """A broker may have 100,000 logs, so each KB counts."""

    async def life(broker: Broker) -> None:
        for name, configs in (("a", {}), ("b", {}), ("small", SMALL_SEGMENTS)):
            await broker.topics.create(name, partitions=2, configs=configs)
        logs = [broker.partitions.require(name, index).log for name in ("a", "b", "small") for index in (0, 1)]
        assert len({id(log.config) for log in logs}) == 2
        assert logs[0].config is logs[3].config
        assert logs[0].config != logs[4].config
        assert not [each for each in gc.get_objects() if type(each) is Loader]

    storage.run_broker(life)
