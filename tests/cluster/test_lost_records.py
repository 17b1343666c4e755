"""A broker whose log directories may lack acknowledged records: when it says so, and when it is complete again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from uuid import uuid4

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.storage.data_directory import CLEAN_SHUTDOWN, HIGH_WATERMARKS
from oncelog.cluster.brokers import (
    BOOTS,
    read_registrations,
)
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.partition_state import UNKNOWN_BROKER_EPOCH, PartitionState, encode_state, state_path
from oncelog.cluster.store import Set, UnavailableError
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.topics import NO_LEADER
from oncelog.log.checkpoint import write_offset_checkpoint
from oncelog.log.disk import OsDisk
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.broker_fixtures import BrokenDisk, append
from support.broker_sets import NOW, Brokers, led_by_another, publish_before_register_returns, run
from support.turns import until


def in_shared_isr(store: MemoryStore) -> None:
    """Note that broker 1 is in sync with broker 2, which leads."""
    path = state_path("t", 0)
    ChangeLog(store).write([Set(path, encode_state(PartitionState(2, 0, (2, 1), 1, 0)))], path)


def test_lost_records_are_noted_only_after_a_crash_of_the_machine(tmp_path: Path) -> None:
    store = led_by_another()
    lost = []

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        await broker.topics.create("t", assignment=[(1,)])
        append(broker.partitions.require("t", 0))
        in_shared_isr(store)

        async def again(boot_id: str, *, clean: bool) -> None:
            if clean:  # a log that is not recovered yet must be recovered at the next start
                await until(lambda: brokers.running[1].partitions.opened_replica("t", 0) is not None)
            await (brokers.stop(1) if clean else brokers.crash(1))
            await brokers.start(1, boot_id=boot_id)
            lost.append(brokers.running[1].membership.info.lost_unsynced)

        await again("boot", clean=False)  # only the process has died
        await again("boot 2", clean=True)
        await again("boot 3", clean=False)
        await again("boot 3", clean=True)  # the broker is in sync still
        assert lost == [False, False, True, True]
        path = state_path("t", 0)
        ChangeLog(store).write([Set(path, encode_state(PartitionState(2, 0, (2,), 0, 0)))], path)
        broker = brokers.running[1]
        await broker.loader.catch_up()
        await until(lambda: not broker.membership.info.lost_unsynced)
        assert not read_registrations(store)[1].lost_unsynced
        await again("boot 3", clean=False)
        assert lost[-1] is False

    run(Brokers(tmp_path, store), body)


async def in_sync_with_another(brokers: Brokers, store: MemoryStore) -> Broker:
    """Start broker 1 with a record in t-0, and let it be in an ISR with another broker."""
    broker = await brokers.start(1)
    await broker.topics.create("t", assignment=[(1,)])
    append(broker.partitions.require("t", 0))
    in_shared_isr(store)
    return broker


async def fail_a_write(broker: Broker, store: MemoryStore, disk: BrokenDisk, folder: str) -> None:
    """Let a write to t-0 fail, and wait until the broker has noted the failure."""
    disk.break_down("write", folder)
    with pytest.raises(ProtocolError, match="no write"):
        append(broker.partitions.require("t", 0))
    await until(lambda: json.loads(store.get(f"{BOOTS}/1").data)["lost"])


def test_power_failure_that_leaves_no_log_folder_counts_as_lost_records(tmp_path: Path) -> None:
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await in_sync_with_another(brokers, store)
        await brokers.crash(1)
        rmtree(tmp_path / "data-1" / "t-0")  # its name was never synced
        broker = await brokers.start(1, boot_id="boot 2")
        assert broker.membership.info.lost_unsynced

    run(Brokers(tmp_path, store), body)


@pytest.mark.parametrize("together", [False, True])
def test_failed_disk_counts_as_lost_records_in_the_same_boot(tmp_path: Path, together: bool) -> None:
    """After a failed sync, the system may have dropped what it has not written, although the machine runs on."""
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        disk = brokers.disk = BrokenDisk()
        broker = await in_sync_with_another(brokers, store)
        folder = str(tmp_path / "data-1" / "t-0")
        if together:  # the sync of the stop fails
            disk.break_down("sync", folder)
            await brokers.running.pop(1).stop(together=True)
        else:
            await fail_a_write(broker, store, disk, folder)
            assert not broker.membership.info.lost_unsynced  # its other directories have all records
            await brokers.crash(1)
        disk.repair()
        broker = await brokers.start(1)
        assert broker.membership.info.lost_unsynced

    run(Brokers(tmp_path, store), body)


def test_process_with_a_failed_disk_keeps_its_place_in_the_isrs_when_it_registers_again(tmp_path: Path) -> None:
    """Its other directories have all records. Only the next process may find fewer."""
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        disk = brokers.disk = BrokenDisk()
        broker = await in_sync_with_another(brokers, store)
        await fail_a_write(broker, store, disk, str(tmp_path / "data-1" / "t-0"))
        store.close_session(broker.membership.session)
        await until(lambda: broker.membership.epoch == 1)
        assert not broker.membership.info.lost_unsynced
        await brokers.crash(1)
        disk.repair()
        broker = await brokers.start(1)
        assert broker.membership.info.lost_unsynced

    run(Brokers(tmp_path, store), body)


def test_partition_without_a_leader_does_not_keep_a_broker_out_of_other_isrs(tmp_path: Path) -> None:
    """The machine has crashed. Partition 0 waits for broker 2, which may be away for long."""
    store = led_by_another()

    def write(index: int, state: PartitionState) -> None:
        ChangeLog(store).write([Set(state_path("t", index), encode_state(state))], state_path("t", index))

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        await broker.topics.create("t", assignment=[(1, 2), (1, 2), (2,)])
        write(0, PartitionState(NO_LEADER, 1, (2, 1), 1, UNKNOWN_BROKER_EPOCH))
        write(1, PartitionState(2, 1, (2, 1), 1, 0))
        await brokers.crash(1)
        broker = await brokers.start(1, boot_id="boot 2")
        assert broker.membership.info.may_lack("t", 1)
        write(1, PartitionState(2, 1, (2,), 2, 0))
        await until(lambda: not read_registrations(store)[1].may_lack("t", 1))
        assert read_registrations(store)[1].may_lack("t", 0)
        assert read_registrations(store)[1].intact == {("t", 1)}
        write(0, PartitionState(2, 2, (2,), 2, 0))
        await until(lambda: not read_registrations(store)[1].lost_unsynced)
        assert read_registrations(store)[1].intact == frozenset()

    run(Brokers(tmp_path, store), body)


def test_broker_that_has_left_all_isrs_joins_them_again_after_its_start(tmp_path: Path) -> None:
    """Its registration is the last change of the metadata, and its worker thread is slow."""
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await in_sync_with_another(brokers, store)
        await brokers.crash(1)
        path = state_path("t", 0)
        ChangeLog(store).write([Set(path, encode_state(PartitionState(2, 0, (2,), 0, 0)))], path)
        broker = brokers.running[1] = brokers.make(1, boot_id="boot 2", broker_heartbeat_interval_ms="600000")
        publish_before_register_returns(broker)
        await broker.start()
        await until(lambda: not read_registrations(store)[1].lost_unsynced)

    run(Brokers(tmp_path, store), body)


def test_renewal_notes_that_lost_records_are_replaced_if_the_first_write_has_failed(tmp_path: Path) -> None:
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await in_sync_with_another(brokers, store)
        await brokers.crash(1)
        broker = await brokers.start(1, boot_id="boot 2", broker_heartbeat_interval_ms="10")
        changes, failed = broker.registration._changes, []

        def fail(*arguments: object, session: int) -> None:
            broker.registration._changes = changes
            failed.append(session)
            raise UnavailableError("no write")

        broker.registration._changes = SimpleNamespace(write=fail)  # type: ignore[assignment]
        path = state_path("t", 0)
        ChangeLog(store).write([Set(path, encode_state(PartitionState(2, 0, (2,), 0, 0)))], path)
        await until(lambda: not read_registrations(store)[1].lost_unsynced)
        assert failed

    run(Brokers(tmp_path, store), body)


def test_recovery_below_the_high_watermark_counts_as_lost_records(tmp_path: Path) -> None:
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        await broker.topics.create("t", assignment=[(1, 2)])
        append(broker.partitions.require("t", 0))
        in_shared_isr(store)
        await brokers.crash(1)
        marks = str(tmp_path / "data-1" / HIGH_WATERMARKS)
        write_offset_checkpoint(OsDisk(), marks, {("t", 0): 2})  # the log ends at 1
        broker = await brokers.start(1)
        await until(lambda: read_registrations(store)[1].lost_unsynced)
        await brokers.crash(1)
        broker = await brokers.start(1)
        assert broker.membership.info.lost_unsynced

    run(Brokers(tmp_path, store), body)


def cut_the_last_batch(folder: Path) -> None:
    os.truncate(folder / f"{0:020d}.log", (folder / f"{0:020d}.log").stat().st_size - 10)


def damage_the_last_batch(folder: Path) -> None:
    data = bytearray((folder / f"{0:020d}.log").read_bytes())
    data[-1] ^= 1
    (folder / f"{0:020d}.log").write_bytes(data)


def remove_the_segment(folder: Path) -> None:
    (folder / f"{0:020d}.log").unlink()


@pytest.mark.parametrize(
    ("damage", "logged"),
    [
        (cut_the_last_batch, "has damaged records from offset 1 on"),
        (damage_the_last_batch, "has damaged records from offset 1 on"),
        (remove_the_segment, "which it had at the last clean stop"),
        (rmtree, "which it had at the last clean stop"),
    ],
)
def test_log_that_was_damaged_after_a_clean_stop_counts_as_lost_records(
    tmp_path: Path, damage: Callable[[Path], None], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The high watermark of the follower does not cover the last record, but the leader counts on it."""
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        await broker.topics.create("t", assignment=[(1, 2)])
        for _ in range(2):
            append(broker.partitions.require("t", 0))
        in_shared_isr(store)
        await brokers.stop(1)
        write_offset_checkpoint(OsDisk(), str(tmp_path / "data-1" / HIGH_WATERMARKS), {("t", 0): 1})
        damage(tmp_path / "data-1" / "t-0")
        await brokers.start(1)
        await until(lambda: read_registrations(store)[1].may_lack("t", 0))

    run(Brokers(tmp_path, store), body)
    assert logged in caplog.text


def test_new_topic_does_not_count_as_a_lost_log_of_the_same_name(tmp_path: Path) -> None:
    """The former topic was deleted while the broker was stopped, and its directory too."""
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        await broker.topics.create("t", assignment=[(1,)])
        append(broker.partitions.require("t", 0))
        await brokers.stop(1)
        mark = tmp_path / "data-1" / CLEAN_SHUTDOWN
        found = json.loads(mark.read_bytes())
        found["logs"]["t"][0] = str(uuid4())
        mark.write_text(json.dumps(found))
        rmtree(tmp_path / "data-1" / "t-0")
        in_shared_isr(store)
        broker = await brokers.start(1)
        await until(lambda: broker.partitions.opened_replica("t", 0) is not None)
        assert not read_registrations(store)[1].may_lack("t", 0)
        replica = broker.partitions.opened_replica("t", 0)
        assert replica is not None
        assert replica.log.log_end_offset == 0

    run(Brokers(tmp_path, store), body)


def test_leader_whose_recovery_ends_below_the_high_watermark_does_not_lead(tmp_path: Path) -> None:
    """The others would truncate the committed records that it lacks."""
    store = led_by_another()

    def write(state: PartitionState) -> None:
        ChangeLog(store).write([Set(state_path("t", 0), encode_state(state))], state_path("t", 0))

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        await broker.topics.create("t", assignment=[(1, 2)])
        append(broker.partitions.require("t", 0))
        await brokers.crash(1)
        write_offset_checkpoint(OsDisk(), str(tmp_path / "data-1" / HIGH_WATERMARKS), {("t", 0): 2})
        write(PartitionState(1, 1, (1, 2), 1, leader_broker_epoch=1))
        broker = await brokers.start(1)
        with pytest.raises(ProtocolError, match="ends at offset 1, but its records before offset 2") as caught:
            broker.partitions.require("t", 0)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: read_registrations(store)[1].incomplete == {("t", 0)})
        assert read_registrations(store)[1].lost_unsynced
        assert not broker.partitions.leads("t", 0)
        with pytest.raises(ProtocolError, match="t-0 is offline on this broker"):
            broker.partitions.require("t", 0)
        write(PartitionState(2, 2, (2,), 2, leader_broker_epoch=0))
        await until(lambda: broker.partitions.opened_replica("t", 0) is not None)
        broker.registration._wake.set()
        await until(lambda: not read_registrations(store)[1].incomplete)
        await until(lambda: not read_registrations(store)[1].lost_unsynced)

    run(Brokers(tmp_path, store), body)


@pytest.mark.parametrize("short", [(1,), (1, 2)])
def test_cluster_survives_brokers_whose_logs_have_lost_a_committed_record(
    tmp_path: Path, short: tuple[int, ...]
) -> None:
    """If another broker has the record, it leads. If no broker has it, one of them leads without it."""
    store = MemoryStore(lambda: NOW)
    logs = {node: tmp_path / f"data-{node}" / "t-0" / "00000000000000000000.log" for node in short}

    async def body(brokers: Brokers) -> None:
        one, two = await brokers.start(1), await brokers.start(2)
        await one.topics.create("t", assignment=[(1, 2)])
        await until(lambda: one.partitions.leads("t", 0))
        replica = one.partitions.require("t", 0)
        append(replica)
        await until(lambda: (other := two.partitions.opened_replica("t", 0)) and other.log.log_end_offset)
        sizes = {node: path.stat().st_size for node, path in logs.items()}
        append(replica)
        for broker in (one, two):
            await until(lambda broker=broker: broker.partitions.opened_replica("t", 0).log.high_watermark == 2)
            await broker.partitions.checkpoints.write()
        for node in short:
            await brokers.crash(node)
            os.truncate(logs[node], sizes[node])
        for node in short:
            await brokers.start(node)

        def ends() -> list[int]:
            for broker in brokers.running.values():
                with suppress(ProtocolError):
                    broker.partitions.require("t", 0)
            replicas = [broker.partitions.opened_replica("t", 0) for broker in brokers.running.values()]
            terms = [each.term for each in replicas if each is not None and each.term is not None]
            complete = all(replicas) and terms and len(terms[0].isr) == 2
            return [each.log.log_end_offset for each in replicas if each is not None] if complete else []

        await until(ends)
        assert ends() == ([2, 2] if short == (1,) else [1, 1])

    run(Brokers(tmp_path, store), body)
