"""The work of a follower: it grows with the partitions that change, and not with all that it follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.cluster.follower import Fetch, Following
from oncelog.cluster.store_memory import MemoryStore
from support.broker_fixtures import append
from support.broker_sets import Brokers, run
from support.turns import until


def marks(broker: Broker, topic: str) -> list[int]:
    replicas = [broker.partitions.opened_replica(topic, index) for index in range(20)]
    return [-1 if replica is None else replica.log.high_watermark for replica in replicas]


def ends(broker: Broker, topic: str) -> list[int]:
    replicas = [broker.partitions.opened_replica(topic, index) for index in range(20)]
    return [-1 if replica is None else replica.log.log_end_offset for replica in replicas]


def test_fetch_looks_only_at_partitions_that_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        await first.topics.create("t", assignment=[(1, 2)] * 20)
        for index in range(20):
            append(first.partitions.require("t", index))
        await until(lambda: marks(second, "t") == [1] * 20)
        looked = []
        next_fetch = Following.next_fetch

        def watched(following: Following, log_start: int) -> Fetch | None:
            looked.append(following)
            return next_fetch(following, log_start)

        monkeypatch.setattr(Following, "next_fetch", watched)
        for _ in range(5):
            append(first.partitions.require("t", 7))
        await until(lambda: ends(second, "t")[7] == 6)
        await until(lambda: first.partitions.require("t", 7).log.high_watermark == 6)
        assert len(set(looked)) < 5, "one partition, and perhaps some that were synced in the background"

    run(Brokers(tmp_path, MemoryStore(lambda: 0)), body)


def test_topic_that_is_created_again_is_followed(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        for _ in range(3):
            topic = await first.topics.create("t", assignment=[(1, 2)] * 20)
            append(first.partitions.require("t", 3))
            await until(lambda: ends(second, "t") == [0] * 3 + [1] + [0] * 16)
            await first.topics.delete(topic)

    run(Brokers(tmp_path, MemoryStore(lambda: 0)), body)


def test_unexpected_error_before_a_fetch_affects_only_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The follower fetches the other partitions of the leader, and retries the one with the error."""

    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        await first.topics.create("t", assignment=[(1, 2)] * 20)
        await until(lambda: -1 not in ends(second, "t"))
        broken = second.partitions.opened_replica("t", 7)
        assert broken is not None
        failures = []
        next_fetch = Following.next_fetch

        def failing(following: Following, log_start: int) -> Fetch | None:
            if following._log is broken.log:
                failures.append(following)
                raise RuntimeError("an unexpected error")
            return next_fetch(following, log_start)

        monkeypatch.setattr(Following, "next_fetch", failing)
        broken.appended()  # otherwise, the fetcher has no reason to look at the partition
        for index in range(20):
            append(first.partitions.require("t", index))
        await until(lambda: marks(second, "t") == [1] * 7 + [0] + [1] * 12)
        await until(lambda: len(failures) > 2)
        monkeypatch.undo()
        await until(lambda: marks(second, "t") == [1] * 20)

    run(Brokers(tmp_path, MemoryStore(lambda: 0)), body)
    assert "the fetch from broker" not in caplog.text
    assert caplog.text.count("cannot prepare the fetch of t-7") == 1
