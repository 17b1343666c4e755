"""Losses count for each log directory: which partitions stay electable, and which do not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from oncelog.broker.broker import Broker
from oncelog.broker.storage.data_directory import CLEAN_SHUTDOWN, HIGH_WATERMARKS, META_PROPERTIES
from oncelog.broker.storage.losses import LossNode, decode, encode
from oncelog.cluster.brokers import (
    BOOTS,
    read_registrations,
)
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state, state_path
from oncelog.cluster.store import ANY, MetadataStore, Set
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.log.checkpoint import write_offset_checkpoint
from oncelog.log.disk import OsDisk
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from support.broker_fixtures import BrokenDisk, append
from support.broker_processes import BrokerProcesses, broker_processes, running
from support.broker_sets import Brokers, led_by_another, run
from support.processes import wait_until
from support.turns import until

PARTITIONS = 4


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Return the log directories of broker 1 by name."""
    return {name: tmp_path / name for name in "abc"}


def log_dirs(folders: dict[str, Path], names: str = "ab") -> str:
    return ",".join(str(folders[name]) for name in names)


async def fill(brokers: Brokers, folders: dict[str, Path]) -> Broker:
    """Start broker 1 with a record in each partition, and write its checkpoints."""
    broker = await brokers.start(1, log_dirs=log_dirs(folders))
    await broker.topics.create("t", assignment=[(1, 2)] * PARTITIONS)
    for index in range(PARTITIONS):
        append(broker.partitions.require("t", index))
    await broker.partitions.checkpoints.write()
    return broker


async def filled(brokers: Brokers, folders: dict[str, Path]) -> None:
    """Do the work of `fill`, and end the broker without a clean stop."""
    await fill(brokers, folders)
    await brokers.crash(1)


def crashing(
    folders: dict[str, Path], store: MetadataStore, body: Callable[[Brokers], Coroutine[Any, Any, None]]
) -> None:
    """Run a test, and end the broker without a clean stop, which would wait for another leader."""

    async def crashed(brokers: Brokers) -> None:
        try:
            await body(brokers)
        finally:
            for broker in tuple(brokers.running):
                await brokers.crash(broker)

    run(Brokers(folders["a"].parent, store), crashed)


def held(folder: Path) -> set[tuple[str, int]]:
    """Return the partitions in a log directory."""
    return {("t", int(path.name.removeprefix("t-"))) for path in folder.glob("t-?")}


def mark_clean(folder: Path) -> None:
    (folder / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":-1}')


def electable(store: MetadataStore) -> set[tuple[str, int]]:
    """Return the partitions that broker 1 may lead although it is not the last in-sync replica."""
    info = read_registrations(store)[1]
    keys = {("t", index) for index in range(PARTITIONS)} - info.offline - info.lost_logs
    return {key for key in keys if not info.may_lack(*key)}


def nothing(_folders: dict[str, Path]) -> None:
    pass


def swap(folders: dict[str, Path]) -> None:
    """Mount each of the two disks at the path of the other."""
    folders["a"].rename(folders["c"])
    folders["b"].rename(folders["a"])
    folders["c"].rename(folders["b"])


def dies(folders: dict[str, Path]) -> None:
    folders["a"].rename(folders["a"].parent / "dead")


def loses_all_logs(folders: dict[str, Path]) -> None:
    for path in folders["a"].glob("t-?"):
        shutil.rmtree(path)


@pytest.mark.parametrize("happens", [nothing, swap, dies, loses_all_logs])
@pytest.mark.parametrize("names", ["ab", "abc"])
def test_power_failure_affects_only_the_partitions_of_the_directory_that_was_open(
    folders: dict[str, Path], happens: Callable[[dict[str, Path]], None], names: str
) -> None:
    """Directory b was cleanly closed before. A new directory changes nothing."""
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await filled(brokers, folders)
        intact = held(folders["b"])
        assert intact
        mark_clean(folders["b"])
        happens(folders)
        for _ in range(2):  # the broker remembers the loss
            broker = await brokers.start(1, boot_id="boot 2", log_dirs=log_dirs(folders, names))
            assert electable(store) == intact
            assert not read_registrations(store)[1].may_lack("t", min(intact)[1])
            await broker.partitions.checkpoints.write()
            await brokers.crash(1)
        await brokers.start(1, boot_id="boot 3", log_dirs=log_dirs(folders, names))
        assert electable(store) == set()

    crashing(folders, store, body)


def test_loss_is_forgotten_when_the_broker_has_left_the_isrs_of_that_directory(folders: dict[str, Path]) -> None:
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await filled(brokers, folders)
        mark_clean(folders["b"])
        broker = await brokers.start(1, boot_id="boot 2", log_dirs=log_dirs(folders))
        *earlier, last = sorted(held(folders["a"]))
        for key in earlier:
            leave_isr(store, *key)
        await broker.loader.catch_up()
        assert read_registrations(store)[1].lost_unsynced
        leave_isr(store, *last)
        await broker.loader.catch_up()
        await until(lambda: not read_registrations(store)[1].lost_unsynced)
        assert read_registrations(store)[1].intact == set()
        await brokers.crash(1)
        await brokers.start(1, boot_id="boot 2", log_dirs=log_dirs(folders))
        assert not read_registrations(store)[1].lost_unsynced

    crashing(folders, store, body)


def leave_isr(store: MetadataStore, topic: str, index: int) -> None:
    """Let broker 2 lead the partition, with itself as the only in-sync replica."""
    path = state_path(topic, index)
    ChangeLog(store).write([Set(path, encode_state(PartitionState(2, 1, (2,), 1, 0)), ANY)], path)


def test_replica_that_was_moved_from_a_lost_directory_counts_as_lost(folders: dict[str, Path]) -> None:
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await filled(brokers, folders)
        intact = held(folders["b"])
        mark_clean(folders["b"])
        for path in folders["a"].glob("t-?"):
            path.rename(folders["b"] / path.name)
        for _ in range(2):  # the broker remembers it, although the new directory's checkpoint has it now
            broker = await brokers.start(1, boot_id="boot 2", log_dirs=log_dirs(folders))
            assert electable(store) == intact
            for index in range(PARTITIONS):
                await broker.partitions.open_in_turns("t", index)
            await broker.partitions.checkpoints.write()
            await brokers.crash(1)

    crashing(folders, store, body)


@pytest.mark.parametrize("moved", [False, True])
def test_replica_that_was_moved_from_a_directory_that_was_given_up_counts_as_lost(
    folders: dict[str, Path], moved: bool
) -> None:
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await filled(brokers, folders)
        intact = held(folders["b"])
        mark_clean(folders["b"])
        if moved:
            for path in folders["a"].glob("t-?"):
                path.rename(folders["b"] / path.name)
        shutil.rmtree(folders["a"])
        await brokers.start(1, boot_id="boot 2", log_dirs=log_dirs(folders, "b"), lost_log_dirs=str(folders["a"]))
        assert electable(store) == intact

    crashing(folders, store, body)


def test_directory_without_its_identity_counts_as_lost(folders: dict[str, Path]) -> None:
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await filled(brokers, folders)
        intact = held(folders["b"])
        mark_clean(folders["a"])
        mark_clean(folders["b"])
        (folders["a"] / META_PROPERTIES).unlink()
        await brokers.start(1, boot_id="boot 2", log_dirs=log_dirs(folders))
        assert electable(store) == intact

    crashing(folders, store, body)


def test_start_that_ends_before_the_registration_counts_as_an_unclean_stop(folders: dict[str, Path]) -> None:
    """The directories were open in a boot that the broker has not noted."""
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await filled(brokers, folders)
        mark_clean(folders["a"])
        mark_clean(folders["b"])
        broker = brokers.make(1, boot_id="boot 2", log_dirs=log_dirs(folders))

        def die() -> None:
            raise OSError("the process dies")

        broker.loader.start = die  # type: ignore[method-assign]
        with pytest.raises(OSError, match="the process dies"):
            await broker.start()
        await broker.workers.close()
        store.close_session(broker.membership.session)
        await brokers.start(1, boot_id="boot 2", log_dirs=log_dirs(folders))
        assert electable(store) == set()

    crashing(folders, store, body)


def test_failed_directory_affects_only_its_own_partitions(folders: dict[str, Path]) -> None:
    """After a failed sync, the system may have dropped unwritten pages, although the machine continues to run."""
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        disk = brokers.disk = BrokenDisk()
        broker = await fill(brokers, folders)
        intact = held(folders["b"])
        index = min(held(folders["a"]))[1]
        broken = broker.partitions.require("t", index)
        disk.break_down("write", str(folders["a"]))
        with pytest.raises(ProtocolError, match="no write"):
            append(broken)
        await until(lambda: electable(store) == intact)
        await brokers.crash(1)
        disk.repair()
        await brokers.start(1, log_dirs=log_dirs(folders))
        assert not read_registrations(store)[1].offline
        assert electable(store) == intact

    crashing(folders, store, body)


def test_recovery_below_the_high_watermark_affects_all_partitions_of_the_directory(folders: dict[str, Path]) -> None:
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await filled(brokers, folders)
        intact, short = held(folders["b"]), min(held(folders["a"]))
        assert len(held(folders["a"])) > 1
        write_offset_checkpoint(OsDisk(), str(folders["a"] / HIGH_WATERMARKS), {short: 2})  # the log ends at 1
        await brokers.start(1, log_dirs=log_dirs(folders))
        await until(lambda: electable(store) == intact)
        await brokers.crash(1)
        await brokers.start(1, log_dirs=log_dirs(folders))
        assert electable(store) == intact

    crashing(folders, store, body)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("same_boot", [False, True])
def test_node_of_an_older_version_counts_for_all_directories(
    folders: dict[str, Path], lost: bool, same_boot: bool
) -> None:
    """It has one boot of the machine, and whether any record may be missing."""
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        await filled(brokers, folders)
        former = {"boot": "boot 1", "lost": lost}
        store.multi([Set(f"{BOOTS}/1", msgspec.json.encode(former), ANY)])
        await brokers.start(1, boot_id="boot 1" if same_boot else "boot 2", log_dirs=log_dirs(folders))
        assert electable(store) == ({("t", index) for index in range(PARTITIONS)} if same_boot and not lost else set())

    crashing(folders, store, body)


# --- real processes ---


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with broker_processes(tmp_path) as processes:
        yield processes


def start(processes: BrokerProcesses, broker: int) -> None:
    processes.start(broker, log_dirs=",".join(str(processes.folder / f"data-{broker}-{name}") for name in "ab"))


def in_another_boot(processes: BrokerProcesses) -> None:
    """Let the stopped brokers believe that the machine has started again since they ran."""
    store = SqliteStore(processes.tree)
    for broker in store.children(BOOTS):
        path = f"{BOOTS}/{broker}"
        node = decode(store.get(path).data, ())
        store.multi([Set(path, encode(LossNode(dict.fromkeys(node.boots, "former"), node.lost), "former"), ANY)])
    store.close()


def state_of(processes: BrokerProcesses, index: int) -> PartitionState:
    store = SqliteStore(processes.tree)
    try:
        return decode_state(store.get(state_path("t", index)))
    finally:
        store.close()


def produce(processes: BrokerProcesses, keys: set[tuple[str, int]]) -> None:
    """Write an acknowledged record to each partition."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{processes.ports[1]}", "acks": "all"})
    failed: list[object] = []
    for topic, index in keys:
        producer.produce(
            topic, b"value", partition=index, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert not failed


def test_healthy_directories_of_two_brokers_lead_after_a_restart_with_dead_disks(processes: BrokerProcesses) -> None:
    """Each of two brokers has lost a disk, and the third broker is away."""
    keys = {("t", index) for index in range(PARTITIONS)}
    folders = {(broker, name): processes.folder / f"data-{broker}-{name}" for broker in (1, 2, 3) for name in "ab"}
    for broker in (1, 2, 3):
        start(processes, broker)
    processes.until(1, lambda metadata: running(metadata) == [1, 2, 3])
    assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=[1, 2, 3]) for _, index in sorted(keys)]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
    (result,) = processes.ask(1, CreateTopicsRequest(topics=[topic])).topics
    assert result.error_code == 0
    produce(processes, keys)
    processes.stop_together()
    assert {state_of(processes, index).isr for _, index in keys} == {(1, 2, 3)}
    in_another_boot(processes)
    for broker in (1, 2):
        folders[broker, "a"].rename(processes.folder / f"dead-{broker}")
    alive = held(folders[1, "b"]) | held(folders[2, "b"])
    start(processes, 1)
    start(processes, 2)

    def led() -> set[tuple[str, int]]:
        (topic,) = (topic for topic in processes.metadata(1).topics if topic.name == "t")
        return {("t", each.partition_index) for each in topic.partitions if each.leader_id >= 0}

    def is_decided() -> bool:
        """Return whether the controller has removed the lost replicas from the ISRs."""
        return all(state_of(processes, index).isr == (3,) for _, index in keys - alive)

    wait_until(lambda: led() == alive and is_decided(), "only partitions in healthy directories have leaders")
    start(processes, 3)
    wait_until(lambda: led() == keys, "all partitions have leaders")
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{processes.ports[1]}", "group.id": "none"})
    consumer.assign([TopicPartition(*key, 0) for key in keys])
    found: list[bytes | None] = []

    def all_are_read() -> bool:
        found.extend(message.value() for message in consumer.consume(PARTITIONS, 1) if message.error() is None)
        return len(found) >= PARTITIONS

    wait_until(all_are_read, "all records are read")
    consumer.close()
    assert found == [b"value"] * PARTITIONS
