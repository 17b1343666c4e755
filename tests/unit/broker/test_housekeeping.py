import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.storage import housekeeping
from oncelog.broker.storage.checkpoints import Written
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.log.log import Log
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import NOW, live
from support.hooked_disk import HookedDisk
from support.logs import delete_old_segments

QUICK = {
    "log_flush_offset_checkpoint_interval_ms": "5",
    "log_retention_check_interval_ms": "5",
    "producer_id_expiration_check_interval_ms": "5",
    "producer_id_expiration_ms": "1000",
}
TOPIC = {"internal.segment.bytes": "200", "retention.ms": "60000"}


def batch(timestamp: int, sequence: int) -> memoryview:
    record = Record(0, timestamp, None, b"x" * 100)
    return memoryview(build_batch([record], producer_id=5, producer_epoch=0, base_sequence=sequence))


def test_housekeeping_deletes_segments_expires_producers_and_writes_checkpoints(tmp_path: Path) -> None:
    now = NOW

    async def life(broker: Broker) -> None:
        nonlocal now
        await broker.topics.create("t", partitions=1, configs=TOPIC)
        replica = broker.partitions.require("t", 0)
        for sequence in range(5):
            replica.append(batch(now, sequence), now_ms=now)
        log = replica.log
        checkpoint = tmp_path / "recovery-point-offset-checkpoint"
        while log.recovery_point == 0 or not (checkpoint.exists() and "t 0 4" in checkpoint.read_text()):
            await asyncio.sleep(0.005)
        assert [producer.producer_id for producer in log.producers()] == [5]
        assert log.log_start_offset == 0
        now += 60_001
        while log.log_start_offset < 5 or log.producers():
            await asyncio.sleep(0.005)

    live(tmp_path, life=life, now_ms=lambda: now, **QUICK)
    assert (tmp_path / "log-start-offset-checkpoint").read_text().splitlines()[2:] == ["t 0 5"]


@pytest.mark.parametrize(("age_ms", "warnings"), [(60_001, 1), (0, 0)])
def test_deletion_of_new_records_with_old_timestamps_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, age_ms: int, warnings: int
) -> None:
    now = 1_000_000_000_000

    async def life(broker: Broker) -> None:
        nonlocal now
        await broker.topics.create("t", partitions=2, configs=TOPIC)
        for partition in range(2):
            replica = broker.partitions.require("t", partition)
            for sequence in range(3):
                replica.append(batch(now - age_ms, sequence), now_ms=now)
        now += 60_001 - age_ms
        while any(broker.partitions.require("t", partition).log.log_start_offset < 3 for partition in range(2)):
            await asyncio.sleep(0.005)

    live(tmp_path, life=life, now_ms=lambda: now, **QUICK)
    found = [record.getMessage() for record in caplog.records if "older than retention.ms=60000" in record.getMessage()]
    assert len(found) == warnings, "once per topic, and not for records that have become old"
    for message in found:
        assert message.startswith("topic 't': records of partition ")
        assert "(the newest: 2001-09-09T01:45:39+00:00)" in message
        assert "oncelog topic alter t --config retention.ms=-1" in message


def test_segment_that_is_deleted_during_its_sync_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def life(broker: Broker) -> None:
        loop, deleted = asyncio.get_running_loop(), list[int]()

        def delete(done: threading.Event) -> None:
            replica.log.advance_log_start(replica.log.high_watermark)
            deleted.append(delete_old_segments(replica.log))
            done.set()

        def before(kind: str, path: str) -> None:
            if kind == "sync" and path.endswith(".log") and not deleted:
                done = threading.Event()
                loop.call_soon_threadsafe(delete, done)
                assert done.wait(30)

        disk.before = before
        await broker.topics.create("t", partitions=1, configs={"internal.segment.bytes": "200"})
        replica = broker.partitions.require("t", 0)
        for sequence in range(5):
            replica.append(batch(NOW, sequence), now_ms=NOW)
        while not deleted:
            await asyncio.sleep(0.005)
        for sequence in range(5, 10):
            replica.append(batch(NOW, sequence), now_ms=NOW)
        while replica.log.recovery_point < replica.log.segments.active.base_offset:
            await asyncio.sleep(0.005)
        assert deleted[0] > 0

    disk = HookedDisk()
    live(tmp_path, life=life, disk=disk, **QUICK)
    assert "housekeeping" not in caplog.text


def test_segments_are_deleted_only_when_the_checkpoint_has_the_new_log_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, recovery could not tell a deleted segment from one that a crash of the machine has lost."""

    now = NOW

    async def life(broker: Broker) -> None:
        nonlocal now
        await broker.topics.create("t", partitions=1, configs=TOPIC)
        replica = broker.partitions.require("t", 0)
        for sequence in range(5):
            replica.append(batch(now, sequence), now_ms=now)
        log, write, failed = replica.log, broker.checkpoints.write, list[object]()
        monkeypatch.setattr(broker.checkpoints, "write", _refusing(failed))
        now += 60_001
        while len(failed) < 3:
            await asyncio.sleep(0.005)
        assert (log.log_start_offset, log.segments.first_offset) == (5, 0)
        monkeypatch.setattr(broker.checkpoints, "write", write)
        while log.segments.first_offset < 5:
            await asyncio.sleep(0.005)
        assert (tmp_path / "log-start-offset-checkpoint").read_text().splitlines()[2:] == ["t 0 5"]

    live(tmp_path, life=life, now_ms=lambda: now, **QUICK | {"log_flush_offset_checkpoint_interval_ms": "600000"})


def _refusing(failed: list[object]) -> Callable[[object], Awaitable[Written]]:
    """Return a replacement of `Checkpoints.write` for a process that has no free file descriptor."""

    async def write(directories: object) -> Written:
        failed.append(directories)
        return frozenset()

    return write


def test_expired_producer_is_known_until_the_next_housekeeping_round(tmp_path: Path) -> None:
    """As in Kafka, `producer.id.expiration.check.interval.ms` determines the time, and a description expires no
    producer.
    """

    now = NOW

    async def life(broker: Broker) -> None:
        nonlocal now
        await broker.topics.create("t", partitions=1, configs={})
        replica = broker.partitions.require("t", 0)
        replica.append(batch(now, 0), now_ms=now)
        now += 5_000
        assert [producer.producer_id for producer in replica.log.producers()] == [5]
        with pytest.raises(ProtocolError, match="gap"):
            replica.append(batch(now, 7), now_ms=now)
        assert replica.log.expire_producers(now) == 1
        assert replica.append(batch(now, 7), now_ms=now).first_offset == 1

    live(tmp_path, life=life, now_ms=lambda: now, **QUICK | {"producer_id_expiration_check_interval_ms": "600000"})


def test_failed_round_is_logged_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        seen: list[int] = []
        written: list[int] = []

        def expire(log: Log, now_ms: int) -> int:
            seen.append(log.partition)
            if len(seen) == 1:
                raise RuntimeError("an unexpected error")
            return 0

        async def checkpoint(_: object = None) -> Written:
            written.append(len(written))
            if len(written) == 1:
                raise RuntimeError("nor of this")
            return frozenset()

        monkeypatch.setattr(Log, "expire_producers", expire)
        monkeypatch.setattr(broker.checkpoints, "write", checkpoint)
        await broker.topics.create("t", partitions=2, configs={})
        for partition in range(2):
            broker.partitions.require("t", partition)
        async with asyncio.timeout(60):
            while len(seen) < 4 or len(written) < 2:
                await asyncio.sleep(0.005)
        assert seen[:4] == [0, 1, 0, 1]

    live(tmp_path, life=life, **QUICK)
    logged = [record for record in caplog.records if record.exc_info]
    assert sorted(str(record.exc_info[1]) for record in logged if record.exc_info) == [
        "an unexpected error",
        "nor of this",
    ]


def test_log_directories_are_checked_again_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checks: list[DataDirectory] = []

    def check(directory: DataDirectory) -> None:
        checks.append(directory)
        if len(checks) == 1:
            raise RuntimeError("can't start new thread")

    async def life(broker: Broker) -> None:
        while len(checks) < 2:
            await asyncio.sleep(0.005)

    monkeypatch.setattr(housekeeping, "DIRECTORY_CHECK_MS", 5)
    monkeypatch.setattr(DataDirectory, "check_exists", check)
    live(tmp_path, life=life, **QUICK)
    assert caplog.text.count("RuntimeError: can't start new thread") == 1
