"""All three brokers stop, and one comes back with a damaged disk, or with an old copy. The others must lose no record.

The matrix has each kind of damage, the broker that starts first, and how the brokers stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.sim import damage as disk_damage
from support.replica_cluster import ReplicaCluster

ALL = 1, 2, 3
SMALL = {"internal.segment.bytes": "400"}
WRITTEN = [b"%d" % number * 20 for number in range(12)]
MORE = [b"more %d" % number * 20 for number in range(12)]
Files = dict[str, bytearray]


def files_of(cluster: ReplicaCluster, number: int) -> Files:
    """Return the contents of a broker's segments, in order."""
    files = cluster.world.brokers[number].disk.files
    return {path: files[path].data for path in sorted(files) if path.startswith("data/t-0/") and path.endswith(".log")}


def flip_a_bit(cluster: ReplicaCluster, number: int) -> None:
    last = [data for data in files_of(cluster, number).values() if data][-1]
    last[len(last) // 2] ^= 1


def cut_in_half(cluster: ReplicaCluster, number: int) -> None:
    last = [data for data in files_of(cluster, number).values() if data][-1]
    del last[len(last) // 2 :]


def lose_first_segment(cluster: ReplicaCluster, number: int) -> None:
    del cluster.world.brokers[number].disk.files[next(iter(files_of(cluster, number)))]


def lose_two_segments(cluster: ReplicaCluster, number: int) -> None:
    for path in list(files_of(cluster, number))[:2]:
        del cluster.world.brokers[number].disk.files[path]


def lose_partition(cluster: ReplicaCluster, number: int) -> None:
    disk_damage.remove(cluster.world.brokers[number].disk, "data/t-0")


DAMAGES: dict[str, Callable[[ReplicaCluster, int], None]] = {
    "flipped bit": flip_a_bit,
    "half a file": cut_in_half,
    "first segment gone": lose_first_segment,
    "partition directory gone": lose_partition,
}


async def end(cluster: ReplicaCluster, number: int, *, clean: bool) -> None:
    """Stop one broker of several that stop together, or kill it."""
    machine = cluster.world.brokers[number]
    if clean:
        assert machine.process is not None
        assert machine.broker is not None
        await cluster.world.loop.spawn(machine.process, machine.broker.stop(together=True))
    machine.kill()


async def fill(cluster: ReplicaCluster) -> None:
    """Write records that all replicas have, and whose high watermark is in the checkpoints."""
    await cluster.create("t", ALL, least=2, **SMALL)
    for value in WRITTEN:
        assert await cluster.append(1, "t", value) is ErrorCode.NONE
    await cluster.agree("t", ALL)
    await asyncio.sleep(11)  # until housekeeping has written the high watermark


async def check_complete(
    cluster: ReplicaCluster, intact: tuple[int, ...] = ALL, *, written: list[bytes] = WRITTEN
) -> None:
    """Check that all brokers come back, and that replicas have all records."""
    await cluster.eventually(lambda: set(cluster.state("t").isr) == set(ALL))
    await cluster.agree("t", intact)
    assert [cluster.records(number) for number in intact] == [written] * len(intact)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
@pytest.mark.parametrize("first", ["damaged first", "damaged last", "damaged alone for long"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_replica_takes_no_records_of_the_others(damage: str, first: str, clean: bool) -> None:
    """After a clean stop, a start does not read the records, as in Kafka. So it does not find the flipped bit."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await fill(cluster)
        for number in ALL:
            await end(cluster, number, clean=clean)
        DAMAGES[damage](cluster, 3)
        order = (1, 2, 3) if first == "damaged last" else (3, 1, 2)
        for number in order:
            await cluster.world.brokers[number].start()
            if first == "damaged alone for long" and number == 3:
                await asyncio.sleep(60)
        await check_complete(cluster, ALL if damage != "flipped bit" or not clean else (1, 2))

    ReplicaCluster.run(scenario)


@pytest.mark.parametrize("first", ["damaged first", "damaged last"])
@pytest.mark.parametrize("damage", [lose_first_segment, lose_two_segments])
def test_lost_segments_whose_records_were_synced_are_noticed_after_a_kill(
    damage: Callable[[ReplicaCluster, int], None], first: str
) -> None:
    """A clean stop has synced the records, so the recovery point is after the segments that are lost."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await fill(cluster)
        for number in ALL:
            await end(cluster, number, clean=True)
        for number in ALL:
            await cluster.world.brokers[number].start()
        await asyncio.sleep(30)  # until there is a leader, and all replicas are in sync
        assert await cluster.append(cluster.state("t").leader, "t", MORE[0]) is ErrorCode.NONE
        await asyncio.sleep(11)  # until housekeeping has written the high watermark
        for number in ALL:
            await end(cluster, number, clean=False)
        damage(cluster, 3)
        for number in (1, 2, 3) if first == "damaged last" else (3, 1, 2):
            await cluster.world.brokers[number].start()
        await check_complete(cluster, written=[*WRITTEN, MORE[0]])

    ReplicaCluster.run(scenario)


def copy(cluster: ReplicaCluster, number: int, prefix: str) -> dict[str, bytes]:
    """Copy the files of a broker in one directory."""
    return disk_damage.copy(cluster.world.brokers[number].disk, prefix)


def put_back(cluster: ReplicaCluster, number: int, prefix: str, copied: dict[str, bytes]) -> None:
    """Replace a directory by a copy."""
    disk_damage.put_back(cluster.world.brokers[number].disk, prefix, copied)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
@pytest.mark.parametrize("copied", ["after a clean stop", "after kill -9", "while it ran"])
@pytest.mark.parametrize("log_dirs", [("data",), ("data", "more")], ids=["one directory", "one of two directories"])
def test_old_copy_takes_no_records_of_the_others(log_dirs: tuple[str, ...], copied: str, clean: bool) -> None:
    """Each start, each stop, and each checkpoint of new high watermarks makes former copies old."""

    async def scenario(cluster: ReplicaCluster) -> None:
        machine = cluster.world.brokers[3]
        await cluster.create("t", ALL, least=2, **SMALL)
        for value in WRITTEN[:4]:
            assert await cluster.append(1, "t", value) is ErrorCode.NONE
        await cluster.agree("t", ALL)
        await asyncio.sleep(6)
        prefix = next(path for path in machine.disk.files if "/t-0/" in path).split("/")[0]
        if copied == "while it ran":
            old = copy(cluster, 3, prefix)
        else:
            await end(cluster, 3, clean=copied == "after a clean stop")
            old = copy(cluster, 3, prefix)
            await asyncio.sleep(10)
            await machine.start()
            await cluster.eventually(lambda: set(cluster.state("t").isr) == set(ALL))
        leader = cluster.state("t").leader
        for value in WRITTEN[4:]:
            assert await cluster.append(leader, "t", value) is ErrorCode.NONE
        await cluster.agree("t", ALL)
        await asyncio.sleep(11)
        for number in ALL:
            await end(cluster, number, clean=clean)
        put_back(cluster, 3, prefix, old)
        await asyncio.sleep(10)  # until the sessions have ended
        await machine.start()
        await asyncio.sleep(60)
        for number in (1, 2):
            await cluster.world.brokers[number].start()
        await check_complete(cluster)

    ReplicaCluster.run(scenario, log_dirs=log_dirs)


async def die_while_starting(cluster: ReplicaCluster, changes: int) -> None:
    """Start broker 3, whose process dies at one of its changes of the disk. Start it again, and then the others."""
    machine = cluster.world.brokers[3]
    await machine.start(die_in=changes)
    await asyncio.sleep(20)
    machine.kill()
    await asyncio.sleep(10)  # until the session has ended
    await machine.start()
    await asyncio.sleep(60)
    for number in (1, 2):
        await cluster.world.brokers[number].start()


@pytest.mark.parametrize("changes", range(12))
def test_damage_is_noticed_if_the_first_start_with_it_dies(changes: int) -> None:
    """The clean-shutdown mark shows that the first segment is gone. Its records were not deleted."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await fill(cluster)
        for number in ALL:
            await end(cluster, number, clean=True)
        lose_first_segment(cluster, 3)
        await asyncio.sleep(10)  # until the sessions have ended
        await die_while_starting(cluster, changes)
        await check_complete(cluster)

    ReplicaCluster.run(scenario)


@pytest.mark.parametrize("changes", range(16))
def test_old_copy_is_noticed_if_the_first_start_with_it_dies(changes: int) -> None:
    """The process dies at one of its first changes of the disk, for example between those of two directories."""

    async def scenario(cluster: ReplicaCluster) -> None:
        machine = cluster.world.brokers[3]
        await cluster.create("t", ALL, least=2, **SMALL)
        assert await cluster.append(1, "t", WRITTEN[0]) is ErrorCode.NONE
        await cluster.agree("t", ALL)
        prefix = next(path for path in machine.disk.files if "/t-0/" in path).split("/")[0]
        await end(cluster, 3, clean=True)
        old = copy(cluster, 3, prefix)
        await asyncio.sleep(10)
        await machine.start()
        await cluster.eventually(lambda: set(cluster.state("t").isr) == set(ALL))
        for value in WRITTEN[1:]:
            assert await cluster.append(cluster.state("t").leader, "t", value) is ErrorCode.NONE
        await cluster.agree("t", ALL)
        for number in ALL:
            await end(cluster, number, clean=True)
        put_back(cluster, 3, prefix, old)
        await asyncio.sleep(10)  # until the sessions have ended
        await die_while_starting(cluster, changes)
        await check_complete(cluster)

    ReplicaCluster.run(scenario, log_dirs=("data", "more"))


ORDERS = {
    "alone for long": (3, None, 2, 1),
    "before the complete one": (3, 1, 2),
    "after the complete one": (2, None, 3, 1),
    "after the one that has missed records": (1, None, 3, None, 2),
}
"""The order in which the brokers start. None is a pause."""


STUCK = (
    "no leader for 1 partition, because the complete replicas are not running: t-0: broker 3 lacks records, broker 2 "
    "has all. Start these brokers: 2. If they are lost for good, accept the loss of records with: oncelog topic alter "
    "t --config unclean.leader.election.enable=true"
)


async def leave(cluster: ReplicaCluster, number: int, *, clean: bool) -> None:
    """Stop or kill a broker, and wait until it has left the ISR."""
    machine = cluster.world.brokers[number]
    if clean:
        await machine.stop()
    else:
        machine.kill()
    others = set(cluster.state("t").isr) - {number}
    await cluster.eventually(lambda: set(cluster.state("t").isr) == others and cluster.state("t").leader in others)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("damage", [*DAMAGES, "old copy"])
def test_damaged_last_member_of_the_isr_takes_no_records_of_the_others(
    damage: str, order: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The brokers have stopped one after the other. Broker 2 has all records, and broker 1 has missed some."""
    if damage == "flipped bit" and clean:
        damage = "half a file"  # after a clean stop, a start does not read the records, as in Kafka

    async def scenario(cluster: ReplicaCluster) -> None:
        await fill(cluster)
        old = copy(cluster, 3, "data")
        await leave(cluster, 1, clean=clean)
        for value in MORE:
            assert await cluster.append(cluster.state("t").leader, "t", value) is ErrorCode.NONE
        await asyncio.sleep(11)  # until housekeeping has written the high watermark
        await leave(cluster, 2, clean=clean)
        await end(cluster, 3, clean=clean)
        if damage == "old copy":
            put_back(cluster, 3, "data", old)
        else:
            DAMAGES[damage](cluster, 3)
        for number in ORDERS[order]:
            if number is None:
                await asyncio.sleep(60)
            else:
                await cluster.world.brokers[number].start()
        await check_complete(cluster, written=WRITTEN + MORE)

    ReplicaCluster.run(scenario)
    waits = order in ("alone for long", "after the one that has missed records")
    warnings = [text for text in caplog.messages if text.startswith("no leader for 1 partition")]
    assert warnings == ([STUCK] if waits else [])


def test_log_that_was_compared_with_its_clean_stop_is_not_compared_again(caplog: pytest.LogCaptureFixture) -> None:
    """Broker 3 waits for broker 2, because its replica of t is damaged. Meanwhile, it serves u, and is killed."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await fill(cluster)
        await cluster.create("u", (3,))
        assert await cluster.append(3, "u", b"before") is ErrorCode.NONE
        await leave(cluster, 1, clean=True)
        await leave(cluster, 2, clean=True)
        await end(cluster, 3, clean=True)
        lose_first_segment(cluster, 3)
        machine = cluster.world.brokers[3]
        await machine.start()
        await asyncio.sleep(60)
        assert await cluster.append(3, "u", b"after") is ErrorCode.NONE
        machine.kill()
        await asyncio.sleep(10)
        await machine.start()
        await asyncio.sleep(60)
        for number in (2, 1):
            await cluster.world.brokers[number].start()
        await check_complete(cluster)

    ReplicaCluster.run(scenario)
    changed = [text for text in caplog.messages if "have changed since the last clean stop" in text]
    assert [text for text in changed if "u-0" in text] == []
    assert len([text for text in changed if "t-0" in text]) >= 2  # each start notices the damage


def test_copy_of_a_whole_broker_that_is_not_old_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    """A disk was replaced by a copy that was made after the last stop."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await fill(cluster)
        for number in ALL:
            await end(cluster, number, clean=True)
        put_back(cluster, 3, "data", copy(cluster, 3, "data"))
        await asyncio.sleep(10)
        await cluster.world.brokers[3].start()
        await cluster.eventually(lambda: cluster.state("t").leader == 3)
        for number in (1, 2):
            await cluster.world.brokers[number].start()
        await check_complete(cluster)

    ReplicaCluster.run(scenario)
    assert "older copy" not in caplog.text


def test_old_copy_of_a_partition_without_other_replicas_is_used_and_named(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        machine = cluster.world.brokers[3]
        await cluster.create("t", (3,))
        assert await cluster.append(3, "t", b"old") is ErrorCode.NONE
        await machine.stop()
        old = copy(cluster, 3, "data")
        await machine.start()
        await cluster.eventually(lambda: cluster.broker(3).partitions.leads("t", 0))
        assert await cluster.append(3, "t", b"new") is ErrorCode.NONE
        await machine.stop()
        put_back(cluster, 3, "data", old)
        assert "is an older copy" not in caplog.text
        await machine.start()
        await cluster.eventually(lambda: cluster.replica(3, "t") is not None)
        assert cluster.records(3) == [b"old"]
        assert "log directory data is an older copy: it has generation 2, but this broker has written 4" in caplog.text

    ReplicaCluster.run(scenario)


@pytest.mark.parametrize("changes", range(0, 30, 2))
def test_torn_end_is_noticed_if_the_first_start_with_it_dies(changes: int) -> None:
    """No checkpoint has the high watermark, so only the torn end shows that records are missing."""

    async def scenario(cluster: ReplicaCluster) -> None:
        machine = cluster.world.brokers[3]
        await cluster.create("t", ALL, least=2, **SMALL)
        for value in WRITTEN:
            assert await cluster.append(1, "t", value) is ErrorCode.NONE
        await cluster.agree("t", ALL)
        for number in ALL:
            await end(cluster, number, clean=False)
        cut_in_half(cluster, 3)
        await asyncio.sleep(10)  # until the sessions have ended
        await machine.start(die_in=changes)
        await asyncio.sleep(2)
        machine.kill()
        await asyncio.sleep(10)
        await machine.start()
        await asyncio.sleep(60)
        for number in (1, 2):
            await cluster.world.brokers[number].start()
        await check_complete(cluster)

    ReplicaCluster.run(scenario, log_dirs=("data",))
