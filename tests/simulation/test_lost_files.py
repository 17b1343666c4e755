"""A crash of a machine loses names or contents of files that were not synced. Three brokers must not lose records.

Each test chooses what is lost: it syncs all files, crashes the machine, and removes or empties some of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from oncelog.broker.storage.checkpoints import Checkpoints
from oncelog.log.admission import AppendResult
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.records import Record, build_batch
from support.replica_cluster import ReplicaCluster, contents, values

ALL = 1, 2, 3
OTHERS = 1, 2
WRITTEN = [b"%d" % number * 20 for number in range(12)]
SMALL = {"internal.segment.bytes": "400"}
CHECKPOINTS = "log-start-offset-checkpoint", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"


async def write(cluster: ReplicaCluster, number: int, some: Iterable[bytes], *, keyed: bool = False) -> None:
    for value in some:
        assert await cluster.append(number, "t", value, key=value if keyed else None) is ErrorCode.NONE


async def in_sync(cluster: ReplicaCluster, *numbers: int) -> None:
    await cluster.eventually(lambda: set(cluster.state("t").isr) == set(numbers))


def segments(cluster: ReplicaCluster, number: int) -> list[str]:
    """Return the segments on a disk in order."""
    files = cluster.world.brokers[number].disk.files
    return sorted(path for path in files if path.startswith("data/t-0/") and path.endswith(".log"))


def crash(cluster: ReplicaCluster, number: int, *, lost: Iterable[str] = (), emptied: Iterable[str] = ()) -> None:
    """Crash a machine that loses some files, and the content of others, but nothing else."""
    machine = cluster.world.brokers[number]
    for content in machine.disk.files.values():
        content.sync()
    machine.crash()
    for path in lost:
        del machine.disk.files[path]
    for path in emptied:
        machine.disk.files[path].data = bytearray()


async def checkpoint(cluster: ReplicaCluster, number: int) -> None:
    assert await cluster.inside(number, cluster.broker(number).checkpoints.write())


@pytest.mark.parametrize(("policy", "lost"), [("delete", 0), ("delete", 1), ("compact", 0), ("compact", 1)])
def test_replica_with_a_lost_segment_fetches_it_again(policy: str, lost: int) -> None:
    """Otherwise, a log that continues after the hole looks complete."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2, **SMALL, **{"cleanup.policy": policy})
        await write(cluster, 1, WRITTEN, keyed=policy == "compact")
        await cluster.agree("t", ALL)
        assert len(segments(cluster, 3)) > 2
        crash(cluster, 3, lost=[segments(cluster, 3)[lost]])
        await cluster.world.brokers[3].start()
        await in_sync(cluster, *OTHERS)
        await in_sync(cluster, *ALL)
        await cluster.elect("t", 3, ALL)
        assert cluster.records(3) == WRITTEN

    ReplicaCluster.run(scenario)


@pytest.mark.parametrize(
    ("policy", "lost", "least", "left"),
    [
        ("delete", 0, 1, (8, 8, 8)),
        ("compact", 1, 1, (12, 12, 9)),
        ("delete", 0, 2, (12, 12, 12)),
        ("compact", 1, 2, (12, 12, 12)),
    ],
)
def test_last_member_with_a_lost_segment_leads_if_no_replica_is_eligible(
    policy: str, lost: int, least: int, left: tuple[int, ...]
) -> None:
    """Then the other replicas truncate what it does not have. An eligible one has all committed records."""

    async def scenario(cluster: ReplicaCluster) -> None:
        world = cluster.world
        await cluster.create("t", ALL, least=least, **SMALL, **{"cleanup.policy": policy})
        await write(cluster, 1, WRITTEN, keyed=policy == "compact")
        await cluster.agree("t", ALL)
        world.brokers[1].kill()
        await in_sync(cluster, 2, 3)
        world.brokers[2].kill()
        await in_sync(cluster, 3)
        crash(cluster, 3, lost=[segments(cluster, 3)[lost]])
        for number in (3, 1, 2):
            await world.brokers[number].start()
        await in_sync(cluster, *ALL)
        await cluster.eventually(lambda: tuple(len(cluster.records(number)) for number in ALL) == left)

    ReplicaCluster.run(scenario)


def test_last_member_that_loses_power_leads_if_no_replica_is_eligible() -> None:
    """Without eligible replicas, no other replica leads before it returns. What it lost is lost."""

    async def scenario(cluster: ReplicaCluster) -> None:
        brokers = cluster.world.brokers
        await cluster.create("t", ALL)
        await cluster.append(1, "t", b"a")
        await cluster.agree("t", ALL)
        for number in (2, 3):
            brokers[number].kill()
        await cluster.eventually(lambda: cluster.state("t").isr == (1,))
        await cluster.append(1, "t", b"b")
        brokers[1].crash()
        for number in (2, 3):
            await brokers[number].start()
        await cluster.eventually(lambda: cluster.state("t").leader == -1)
        await asyncio.sleep(30)
        assert (cluster.state("t").leader, cluster.state("t").isr) == (-1, (1,))
        await brokers[1].start()
        await cluster.eventually(lambda: cluster.state("t").leader == 1)
        await cluster.eventually(lambda: set(cluster.state("t").isr) == {1, 2, 3})
        assert await cluster.append(1, "t", b"c") is ErrorCode.NONE
        await cluster.agree("t", ALL)
        assert cluster.records(1) in ([b"c"], [b"a", b"c"], [b"a", b"b", b"c"])

    ReplicaCluster.run(scenario)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("unlucky", ALL)
def test_replica_with_a_lost_segment_does_not_lead_after_a_power_failure_of_all_brokers(
    unlucky: int, place: str
) -> None:
    """All may lack records. The controller waits until all have opened their logs, and elects a complete one."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2, **SMALL)
        await write(cluster, 1, WRITTEN)
        await cluster.agree("t", ALL)
        lost = segments(cluster, unlucky)[:1]
        for number in ALL:
            crash(cluster, number, lost=lost if number == unlucky else ())
        await asyncio.sleep(10)  # until the sessions have ended
        others = [each for each in ALL if each != unlucky]
        for number in [unlucky, *others] if place == "first" else [*others, unlucky]:
            await cluster.world.brokers[number].start()
            await asyncio.sleep(2)
        await in_sync(cluster, *ALL)
        await cluster.agree("t", ALL)
        assert [cluster.records(number) for number in ALL] == [WRITTEN] * 3

    ReplicaCluster.run(scenario)


@pytest.mark.parametrize("slow_s", [0.0, 0.03, 0.5])
def test_replica_that_restarted_at_the_leaders_log_start_keeps_its_records(
    slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kill -9` before the start is in the checkpoint. Recovery would take the first segment for the rest of more."""
    write_directory = Checkpoints._write_directory

    async def slow(checkpoints: Checkpoints, *arguments: Any) -> bool:
        await asyncio.sleep(slow_s)
        return await write_directory(checkpoints, *arguments)

    async def scenario(cluster: ReplicaCluster) -> None:
        world = cluster.world
        await cluster.create("t", ALL, least=2, **SMALL)
        world.brokers[3].kill()
        await in_sync(cluster, *OTHERS)
        await write(cluster, 1, WRITTEN[:6])
        await cluster.agree("t", OTHERS)
        for number in OTHERS:
            cluster.opened(number).log.advance_log_start(6)
            await checkpoint(cluster, number)
        await write(cluster, 1, WRITTEN[6:])
        monkeypatch.setattr(Checkpoints, "_write_directory", slow)
        await world.brokers[3].start()
        await in_sync(cluster, *ALL)
        for number in ALL:
            world.brokers[number].kill()
        await world.brokers[3].start()
        await cluster.eventually(lambda: cluster.broker(3).partitions.leads("t", 0))
        for number in OTHERS:
            await world.brokers[number].start()
        await in_sync(cluster, *ALL)
        await cluster.agree("t", ALL)
        assert [cluster.records(number) for number in ALL] == [WRITTEN[6:]] * 3

    ReplicaCluster.run(scenario)


@pytest.mark.parametrize("first_death", ["kill -9", "power failure"])
def test_recovery_point_that_recovery_has_lowered_is_written(first_death: str) -> None:
    """Otherwise, the next recovery begins at the former one, and skips records that a power failure has lost."""

    async def scenario(cluster: ReplicaCluster) -> None:
        machine = cluster.world.brokers[3]
        written = [b"%d" % number * 20 for number in range(15)]
        await cluster.create("t", (3, 1, 2), least=2, **SMALL)
        await write(cluster, 3, written[:3])
        await cluster.agree("t", ALL)
        for other in OTHERS:
            cluster.world.network.cut("broker-3", f"broker-{other}")
        for _ in range(9):  # no other replica gets them
            await cluster.append(3, "t", b"x" * 20, acks=1)
        await asyncio.sleep(6)  # housekeeping syncs the full segments

        async def hang(_: object) -> bool:
            await asyncio.sleep(3600)
            return False

        cluster.broker(3).checkpoints.write_for = hang  # type: ignore[method-assign]
        await cluster.elect("t", 1, OTHERS)
        cluster.world.network.heal()
        await cluster.eventually(lambda: cluster.opened(3).log.log_end_offset == 3)
        if first_death == "kill -9":
            machine.kill()
        else:
            crash(cluster, 3)
        await write(cluster, 1, written[3:])
        await machine.start()
        await in_sync(cluster, *ALL)
        await cluster.agree("t", ALL)
        unsynced = "data/t-0/00000000000000000004.log"
        assert machine.disk.files[unsynced].synced == b""
        crash(cluster, 3, emptied=[unsynced])
        await machine.start()
        await in_sync(cluster, *OTHERS)
        await in_sync(cluster, *ALL)
        await cluster.elect("t", 3, ALL)
        assert cluster.records(3) == written

    ReplicaCluster.run(scenario, log_flush_offset_checkpoint_interval_ms=5000)


async def fill_and_retain(cluster: ReplicaCluster) -> list[bytes]:
    """Write, and let retention delete the first segments. Return what is left."""
    await cluster.create("t", ALL, least=2, **SMALL, **{"retention.bytes": "900"})
    await write(cluster, 1, [b"%d" % number * 10 for number in range(20)])
    await cluster.agree("t", ALL)
    logs = [cluster.opened(number).log for number in ALL]
    await cluster.eventually(lambda: all(log.segments.first_offset == log.log_start_offset > 0 for log in logs))
    await asyncio.sleep(4)  # until housekeeping has synced the full segments
    return values(logs[2])


RETAIN = {"log_retention_check_interval_ms": 2000, "log_flush_offset_checkpoint_interval_ms": 3000}


def test_log_that_was_moved_to_another_directory_is_not_emptied_in_the_isr() -> None:
    """The checkpoints of that directory do not know it, so recovery cannot tell deleted segments from lost ones."""

    async def scenario(cluster: ReplicaCluster) -> None:
        world, disk = cluster.world, cluster.world.brokers[3].disk
        await fill_and_retain(cluster)
        world.brokers[3].kill()
        source = "data" if any(path.startswith("data/t-0/") for path in disk.files) else "more"
        target = "more" if source == "data" else "data"
        for path in [path for path in disk.files if path.startswith(f"{source}/t-0/")]:
            disk.files[target + path[len(source) :]] = disk.files.pop(path)
        del disk.folders[f"{source}/t-0"]
        disk.folders[f"{target}/t-0"] = None
        for other in OTHERS:
            world.network.cut("broker-3", f"broker-{other}")
        await world.brokers[3].start()
        await in_sync(cluster, *OTHERS)
        world.network.heal()
        await in_sync(cluster, *ALL)
        await cluster.agree("t", ALL)

    ReplicaCluster.run(scenario, log_dirs=("data", "more"), **RETAIN)


def test_last_member_with_empty_checkpoints_keeps_its_records() -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        written = await fill_and_retain(cluster)
        cluster.world.brokers[1].kill()
        await in_sync(cluster, 2, 3)
        cluster.world.brokers[2].kill()
        await in_sync(cluster, 3)
        crash(cluster, 3, emptied=[f"data/{name}" for name in CHECKPOINTS])
        for number in (3, 1, 2):
            await cluster.world.brokers[number].start()
        await in_sync(cluster, *ALL)
        await cluster.agree("t", ALL)
        assert cluster.records(3) == written

    ReplicaCluster.run(scenario, **RETAIN)


async def produce(cluster: ReplicaCluster, number: int, sequence: int) -> AppendResult:
    """Write one record of an idempotent producer."""

    async def work() -> AppendResult:
        record = Record(0, cluster.world.now_ms(), None, b"%d" % sequence * 20)
        batch = build_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)
        replica = cluster.broker(number).partitions.require("t", 0)
        result = replica.append(memoryview(batch), now_ms=cluster.world.now_ms(), all_replicas=True)
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        replica.when_committed(result.last_offset, done.set_result)
        assert await done is ErrorCode.NONE
        return result

    return await cluster.inside(number, work())


def test_producers_whose_records_retention_has_deleted_survive_a_power_failure() -> None:
    """Only a snapshot has them, so it is synced before the segments are deleted."""

    async def scenario(cluster: ReplicaCluster) -> None:
        machine, settings = cluster.world.brokers[3], {"retention.ms": "1000", "file.delete.delay.ms": "0"}
        await cluster.create("t", ALL, least=2, **SMALL, **settings)
        for sequence in range(10):
            await produce(cluster, 1, sequence)
        await cluster.agree("t", ALL)
        logs = [cluster.opened(number).log for number in ALL]
        await cluster.eventually(lambda: all(log.segments.first_offset == 10 for log in logs))
        machine.crash()
        await machine.start()
        await in_sync(cluster, *OTHERS)
        await in_sync(cluster, *ALL)
        await cluster.elect("t", 3, ALL)
        assert (await produce(cluster, 3, 9)).duplicate

    for seed in range(5):  # the seed determines what the crash leaves
        ReplicaCluster.run(scenario, seed=seed, log_retention_check_interval_ms=2000)


def test_lost_epochs_are_found_in_all_batches() -> None:
    """A leader without the epochs before its recovery point lets a follower keep records that no other replica has."""

    async def scenario(cluster: ReplicaCluster) -> None:
        world = cluster.world
        await cluster.create("t", ALL, least=2, **SMALL)
        await write(cluster, 1, WRITTEN[:2])
        await cluster.agree("t", ALL)
        for other in (2, 3):
            world.network.cut("broker-1", f"broker-{other}")
        for _ in range(2):  # only broker 1 has them
            await cluster.append(1, "t", b"x" * 20, acks=1)
        world.brokers[1].kill()
        await cluster.elect("t", 2, (2, 3))
        await write(cluster, 2, WRITTEN[2:])
        await asyncio.sleep(4)  # housekeeping syncs the full segments and the file of the epochs
        await cluster.elect("t", 3, (2, 3))  # replaces that file
        await write(cluster, 3, [b"z"])
        await cluster.agree("t", (2, 3))
        crash(cluster, 3, emptied=["data/t-0/leader-epoch-checkpoint"])
        await world.brokers[3].start()
        await in_sync(cluster, 2)
        await in_sync(cluster, 2, 3)
        await cluster.elect("t", 3, (2, 3))
        world.network.heal()
        await world.brokers[1].start()
        await in_sync(cluster, *ALL)
        assert contents(cluster.opened(1).log) == contents(cluster.opened(3).log)

    ReplicaCluster.run(scenario, log_flush_offset_checkpoint_interval_ms=3000)
