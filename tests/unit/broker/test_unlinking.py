"""Files that are no longer part of a log are renamed at once, and unlinked later in a worker thread."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from support.broker_fixtures import NOW, BrokerStorage, append
from support.logs import apply_retention
from support.turns import until

TOPIC = {"internal.segment.bytes": "200"}
LATER = "3600000"


def names(storage: BrokerStorage, pattern: str) -> list[str]:
    return sorted(file.name for path in storage.paths for file in Path(path).glob(pattern))


async def delete_two_segments(broker: Broker, delay_ms: str) -> None:
    await broker.topics.create("t", partitions=1, configs=TOPIC | {"file.delete.delay.ms": delay_ms})
    replica = broker.partitions.require("t", 0)
    for _ in range(3):
        append(replica)
    replica.log.advance_log_start(2)
    apply_retention(replica.log, NOW)


def test_deleted_segment_is_unlinked_by_a_worker_after_its_delay(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        storage.disk.remove_threads.clear()
        await delete_two_segments(broker, "0")
        await until(lambda: not names(storage, "t-0/*.deleted"))
        assert names(storage, "t-0/*.log") == [f"{2:020d}.log"]
        assert threading.get_ident() not in storage.disk.remove_threads

    storage.run_broker(life)


def test_deleted_segment_is_renamed_and_removed_at_next_start(storage: BrokerStorage) -> None:
    deleted = [f"{offset:020d}.log.deleted" for offset in range(2)]

    async def first(broker: Broker) -> None:
        await delete_two_segments(broker, LATER)

    async def second(broker: Broker) -> None:
        assert names(storage, "t-0/*.log.deleted") == deleted
        storage.disk.remove_threads.clear()
        assert broker.partitions.require("t", 0).log.log_start_offset == 2
        await until(lambda: not names(storage, "t-0/*.deleted"))
        assert threading.get_ident() not in storage.disk.remove_threads

    storage.run_broker(first)
    assert names(storage, "t-0/*.log") == [f"{2:020d}.log"]
    assert names(storage, "t-0/*.log.deleted") == deleted
    assert names(storage, "t-0/*.snapshot.deleted") == [f"{1:020d}.snapshot.deleted"]
    storage.run_broker(second)


@pytest.mark.parametrize("delay_ms", ["0", LATER])
def test_deleted_topics_folder_is_removed_by_a_worker_after_the_delay(storage: BrokerStorage, delay_ms: str) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=2)
        for partition in range(2):
            append(broker.partitions.require("t", partition))
        storage.disk.remove_threads.clear()
        await broker.topics.delete(broker.metadata.image.topic("t"))  # type: ignore[arg-type]
        if delay_ms == "0":
            await until(lambda: not names(storage, "*-delete"))
            assert threading.get_ident() not in storage.disk.remove_threads
        else:
            assert len(names(storage, "*-delete")) == 2
        assert not storage.log_dir_names()

    async def again(broker: Broker) -> None:
        await until(lambda: not names(storage, "*-delete"))
        assert threading.get_ident() not in storage.disk.remove_threads

    storage.run_broker(life, log_segment_delete_delay_ms=delay_ms)
    storage.run_broker(again)


def test_folder_is_removed_after_a_shortage_of_descriptors(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        append(broker.partitions.require("t", 0))
        storage.disk.once = True
        storage.disk.break_down("remove", storage.paths[0], errno.EMFILE)
        await broker.topics.delete(broker.metadata.image.topic("t"))  # type: ignore[arg-type]
        await until(lambda: not names(storage, "*-delete"))
        assert len(broker.directories.online) == 2

    storage.run_broker(life, log_segment_delete_delay_ms="0")


def test_folders_of_a_deleted_topic_are_removed_one_at_a_time_in_each_log_directory(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def life(broker: Broker) -> None:
        offload = broker.workers.offload

        async def counted(work: Any, *arguments: Any) -> Any:
            if work.__name__ != "remove_tree":
                return await offload(work, *arguments)
            directory = arguments[0].rpartition("/")[0]
            running[directory] += 1
            most[directory] = max(most[directory], running[directory])
            try:
                return await offload(work, *arguments)
            finally:
                running[directory] -= 1

        monkeypatch.setattr(broker.workers, "offload", counted)
        await broker.topics.create("t", partitions=8)
        for index in range(8):
            append(broker.partitions.require("t", index))
        topic = broker.metadata.image.topic("t")
        assert topic is not None
        await broker.topics.delete(topic)
        await until(lambda: not names(storage, "*-delete"))
        assert set(most.values()) == {1}

    storage.run_broker(life, log_segment_delete_delay_ms="0")
