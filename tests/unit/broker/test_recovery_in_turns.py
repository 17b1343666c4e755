"""The broker recovers a large log in turns with the requests of other clients."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.storage.data_directory import HIGH_WATERMARKS, RECOVERY_POINTS
from oncelog.broker.storage.partitions import STEPS_A_TURN, STEPS_AT_ONCE, Partitions
from oncelog.cluster.replica import Replica
from oncelog.cluster.store_memory import MemoryStore
from oncelog.log.checkpoint import read_offset_checkpoint, write_offset_checkpoint
from oncelog.log.disk import OsDisk
from oncelog.log.steps import BATCHES_A_STEP
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import BrokerStorage, fill, live

NOW = 1_700_000_000_000
BATCHES = 3 * STEPS_AT_ONCE * BATCHES_A_STEP


def crash(broker: Broker) -> None:
    """Let the broker end without the mark of a clean stop."""
    broker.directories.online[0].mark_clean = lambda _: None  # type: ignore[method-assign]


def append(broker: Broker, topic: str, partition: int = 0) -> int:
    records = build_batch([Record(0, NOW, b"k", b"v")])
    return broker.partitions.require(topic, partition).append(memoryview(records), now_ms=NOW).last_offset


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """Return the metadata of a broker that was killed with a long log and a short one."""
    store = MemoryStore(lambda: NOW)

    async def first(broker: Broker) -> None:
        for topic in ("long", "short"):
            await broker.topics.create(topic, partitions=1)
        append(broker, "short")
        for _ in range(BATCHES):
            append(broker, "long")
        crash(broker)

    live(tmp_path, store, first)
    return store


def test_request_during_long_recovery_gets_retriable_error(tmp_path: Path, store: MemoryStore) -> None:
    async def body(broker: Broker) -> None:
        with pytest.raises(ProtocolError, match="the broker is still recovering long-0") as caught:
            append(broker, "long")
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert append(broker, "short") == 1
        turns = 0
        while ("long", 0) in broker.partitions._opening:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 3, "other requests run meanwhile"
        assert append(broker, "long") == BATCHES

    live(tmp_path, store, body)


def test_requests_for_many_logs_wait_for_few_steps_of_their_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, batches = 2 * STEPS_A_TURN, BATCHES_A_STEP + 50
    store = MemoryStore(lambda: NOW)

    async def first(broker: Broker) -> None:
        await broker.topics.create("t", partitions=logs)
        for partition in range(logs):
            for _ in range(batches):
                append(broker, "t", partition)
        crash(broker)

    async def second(broker: Broker) -> None:
        left = set(range(logs))
        while left:
            before = len(steps)
            for partition in tuple(left):
                with suppress(ProtocolError):
                    assert broker.partitions.require("t", partition).log.log_end_offset == batches
                    left.remove(partition)
            await asyncio.sleep(0)
            assert len(steps) - before <= STEPS_A_TURN + 1, "and for one in the background"

    live(tmp_path, store, first)
    steps: list[tuple[str, int]] = []
    advance = Partitions._advance

    def advanced(self: Partitions, key: tuple[str, int]) -> Replica | None:
        replica = advance(self, key)
        if replica is None:
            steps.append(key)
        return replica

    monkeypatch.setattr(Partitions, "_advance", advanced)
    live(tmp_path, store, second)


def test_recovery_of_a_deleted_topic_ends(tmp_path: Path, store: MemoryStore) -> None:
    async def body(broker: Broker) -> None:
        with pytest.raises(ProtocolError, match="the broker is still recovering long-0"):
            append(broker, "long")
        topic = broker.metadata.image.topic("long")
        assert topic is not None
        await broker.topics.delete(topic)
        await broker.topics.create("long", partitions=1)
        assert append(broker, "long") == 0
        await asyncio.sleep(0.1)
        assert append(broker, "long") == 1
        assert broker.directories.online

    live(tmp_path, store, body)


def test_broker_stopped_during_a_recovery_recovers_at_the_next_start(tmp_path: Path, store: MemoryStore) -> None:
    async def interrupted(broker: Broker) -> None:
        with pytest.raises(ProtocolError, match="the broker is still recovering long-0"):
            append(broker, "long")

    async def again(broker: Broker) -> None:
        await broker.partitions.open_in_turns("long", 0)
        assert append(broker, "long") == BATCHES

    live(tmp_path, store, interrupted)
    live(tmp_path, store, again)


def test_settings_changed_during_a_recovery_reach_the_log(tmp_path: Path, store: MemoryStore) -> None:
    async def body(broker: Broker) -> None:
        with pytest.raises(ProtocolError, match="the broker is still recovering long-0"):
            append(broker, "long")
        broker.config.current = msgspec.structs.replace(broker.config.current, log_retention_ms=12_345)
        await broker.partitions.open_in_turns("long", 0)
        assert broker.partitions.require("long", 0).log.config.retention_ms == 12_345

    live(tmp_path, store, body)


def test_worker_checks_the_files_of_logs_before_they_are_opened(storage: BrokerStorage) -> None:
    async def again(broker: Broker) -> None:
        while len(broker.partitions) < 4:
            await asyncio.sleep(0)
        folders = [broker.partitions.require("t", partition).log.directory for partition in range(4)]
        assert threading.get_ident() not in {storage.disk.listed_by[folder] for folder in folders}

    storage.run_broker(lambda broker: fill(broker, "t", 4))
    storage.disk.listed_by.clear()
    storage.run_broker(again)


def test_log_is_not_used_before_its_lowered_offsets_are_in_the_checkpoints(tmp_path: Path) -> None:
    """Otherwise, a second crash would skip new records in recovery, or count them as committed."""
    store = MemoryStore(lambda: NOW)

    async def write(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        append(broker, "t")
        crash(broker)

    async def look(broker: Broker) -> None:
        while broker.partitions.opened_replica("t", 0) is None:
            await asyncio.sleep(0)
        found = [read_offset_checkpoint(OsDisk(), str(tmp_path / name)) for name in (RECOVERY_POINTS, HIGH_WATERMARKS)]
        assert [offsets["t", 0] for offsets in found] == [1, 1]
        assert append(broker, "t") == 1

    live(tmp_path, store, write)
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        write_offset_checkpoint(OsDisk(), str(tmp_path / name), {("t", 0): 9})
    live(tmp_path, store, look)
