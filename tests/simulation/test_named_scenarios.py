"""The named scenarios of replication on three real brokers: known ways in which other brokers have lost records.

`marker_without_leader` is in `tests/unit/broker/test_peer_transactions.py`, on two brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.cluster.brokers import read_registrations
from oncelog.cluster.leader import Leadership
from oncelog.cluster.partition_state import decode_state, state_path
from oncelog.net.connection import ClientConnection
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support import cluster_mutations, replica_mutations
from support.checked_patch import CheckedPatch, Patch, can_be_patched
from support.replica_cluster import ReplicaCluster, values

ALL = 1, 2, 3
LAG_MS = 2000


def term_of(cluster: ReplicaCluster, number: int, topic: str = "t") -> Leadership:
    term = cluster.opened(number, topic).term
    assert term is not None
    return term


def cut(cluster: ReplicaCluster, number: int) -> None:
    """Cut a broker off from the other brokers."""
    for other in ALL:
        if other != number:
            cluster.world.network.cut(f"broker-{number}", f"broker-{other}")


def ends_in_isr(cluster: ReplicaCluster, number: int) -> list[int]:
    """Return a list that gets the log end offset of a member of the ISR, at each write to the store."""
    world, ends = cluster.world, list[int]()
    multi = world.store.multi

    def watched(*arguments: Any, **options: Any) -> None:
        multi(*arguments, **options)
        found = cluster.replica(number, "t") if world.brokers[number].alive else None
        if number in decode_state(world.store.get(state_path("t", 0))).isr:
            ends.append(0 if found is None else found.log.log_end_offset)

    world.store.multi = watched  # type: ignore[method-assign]
    return ends


async def ended(outcome: asyncio.Future[ErrorCode]) -> ErrorCode:
    """Wait for an outcome, but not forever. Raises TimeoutError."""
    return await asyncio.wait_for(outcome, 60)


async def fetch_as(cluster: ReplicaCluster, follower: int, epoch: int, offset: int, last_epoch: int) -> Any:
    """Send broker 1 the Fetch of a follower, and return the answer for the partition."""
    topic = cluster.broker(1).metadata.image.topics_by_name["t"]
    asked = FetchPartition(
        partition=0,
        current_leader_epoch=0,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        log_start_offset=0,
        partition_max_bytes=1 << 20,
    )
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=follower, replica_epoch=epoch),
        max_wait_ms=0,
        topics=[FetchTopic(topic_id=topic.topic_id, partitions=[asked])],
    )
    connection: ClientConnection = await cluster.connection(1)
    response: Any = await connection.call(request)
    return response.responses[0].partitions[0]


def test_hw_lost_on_restart() -> None:
    """A follower that restarts before it knows the high watermark keeps its records (KIP-101)."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2)
        machine = cluster.world.brokers[2]
        assert await cluster.append(1, "t", b"a") is ErrorCode.NONE
        assert cluster.opened(2).log.high_watermark == 0
        machine.kill()
        cut(cluster, 1)
        await machine.start()
        await cluster.eventually(lambda: cluster.replica(2, "t") is not None)
        assert (cluster.opened(2).log.high_watermark, cluster.records(2)) == (0, [b"a"])
        await cluster.elect("t", 2, (2, 3))
        cluster.world.network.heal()
        await cluster.agree("t", ALL)
        assert cluster.records(2) == [b"a"]

    ReplicaCluster.run(scenario)


def test_fast_failover() -> None:
    """A follower drops its records of an epoch that the leader does not know (KIP-279, KAFKA-6361).

    Broker 2 has led an epoch between two epochs of broker 1, which has as many records as broker 2.
    """

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"a")
        await cluster.agree("t", ALL)
        for number in ALL:
            cut(cluster, number)
        assert await cluster.append(1, "t", b"b", acks=1) is ErrorCode.NONE
        await cluster.elect("t", 2, ALL)
        assert await cluster.append(2, "t", b"dropped", acks=1) is ErrorCode.NONE
        await cluster.elect("t", 1, ALL)
        assert await cluster.append(1, "t", b"c", acks=1) is ErrorCode.NONE
        cluster.world.network.heal()
        await cluster.agree("t", ALL)
        assert cluster.records(2) == [b"a", b"b", b"c"]

    ReplicaCluster.run(scenario)


def test_same_leader_new_epoch() -> None:
    """If the same broker leads the next epoch, waits of the former one fail, and the records remain (KAFKA-7164)."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"0")
        cut(cluster, 1)
        waiting = asyncio.ensure_future(cluster.append(1, "t", b"1"))
        await cluster.eventually(lambda: cluster.opened(1).log.log_end_offset == 2)
        await cluster.elect("t", 1, ALL)
        assert await ended(waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.world.network.heal()
        assert await cluster.append(1, "t", b"2") is ErrorCode.NONE
        await cluster.agree("t", ALL)
        log = cluster.opened(2).log
        assert values(log) == [b"0", b"1", b"2"]
        assert [log.epoch_at(offset) for offset in range(3)] == [0, 0, 1]

    ReplicaCluster.run(scenario)


def lagging_hw_join() -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        network = cluster.world.network
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"a")
        await cluster.agree("t", ALL)
        network.cut("broker-1", "broker-3")
        waiting = asyncio.ensure_future(cluster.append(1, "t", b"b"))
        await cluster.eventually(lambda: cluster.opened(2).log.log_end_offset == 2)
        network.cut("broker-1", "broker-2", both_ways=False)  # broker 2 does not learn the high watermark
        await cluster.eventually(lambda: cluster.state("t").isr == (1, 2))
        assert await ended(waiting) is ErrorCode.NONE
        network.slow("broker-2", "broker-3", 0.5)  # the Fetch of broker 3 arrives before it gets records
        assert (cluster.opened(2).log.high_watermark, cluster.opened(3).log.log_end_offset) == (1, 1)
        await cluster.elect("t", 2, (1, 2))
        term, ends = term_of(cluster, 2), ends_in_isr(cluster, 3)
        await cluster.eventually(lambda: (found := term.follower(3)) is not None and found.log_end == 1)
        assert (term.high_watermark, term.epoch_start) == (1, 2)
        network.heal()
        await cluster.eventually(lambda: set(cluster.state("t").isr) == {1, 2, 3})
        await cluster.agree("t", ALL)
        assert min(ends) == 2
        assert cluster.records(3) == [b"a", b"b"]

    ReplicaCluster.run(scenario, replica_lag_time_max_ms=LAG_MS)


def test_lagging_hw_join() -> None:
    """A replica joins the ISR of a new leader only with all records before the new epoch (KAFKA-7128)."""
    lagging_hw_join()


def bounced_disk() -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        world = cluster.world
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"a")
        cut(cluster, 3)
        await cluster.append(1, "t", b"b")
        await cluster.eventually(lambda: cluster.state("t").isr == (1, 2))
        term, ends = term_of(cluster, 1), ends_in_isr(cluster, 3)
        world.store_link("broker-1").latency_s = 1.0, 1.0
        world.network.heal()
        await cluster.eventually(lambda: 3 in (term._pending or ()))
        machine = world.brokers[3]
        machine.kill()
        for path in [path for path in machine.disk.files if path.startswith("data/t-0/")]:
            del machine.disk.files[path]
        cut(cluster, 3)
        await machine.start()
        await cluster.eventually(lambda: 3 not in (term._pending or ()))
        world.network.heal()
        await cluster.eventually(lambda: set(cluster.state("t").isr) == {1, 2, 3})
        assert min(ends) == 2

    ReplicaCluster.run(scenario, store_latency_s=(0.001, 0.002), replica_lag_time_max_ms=LAG_MS)


def test_bounced_disk() -> None:
    """A replica that loses its disk while it is added to the ISR is not added (KIP-903, KAFKA-14617)."""
    bounced_disk()


def fetch_from_the_dead() -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1, 2), least=2)
        await cluster.append(1, "t", b"a")
        dead, machine = cluster.epoch(2), cluster.world.brokers[2]
        cluster.world.network.cut("broker-1", "broker-2")
        waiting = asyncio.ensure_future(cluster.append(1, "t", b"b"))
        machine.kill()
        await machine.start()
        known = cluster.broker(1).metadata
        await cluster.eventually(lambda: known.image.brokers[2].epoch == cluster.epoch(2) > dead)
        answer = await fetch_as(cluster, 2, dead, 2, 0)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (waiting.done(), cluster.opened(1).log.high_watermark) == (False, 1)
        cluster.world.network.heal()
        assert await ended(waiting) is ErrorCode.NONE
        await cluster.agree("t", (1, 2))

    ReplicaCluster.run(scenario)


def test_fetch_from_the_dead() -> None:
    """A Fetch that a process sent before it was replaced does not count (KAFKA-15221)."""
    fetch_from_the_dead()


def test_zombie_leader() -> None:
    """A leader that is cut off only from the store commits nothing after an election (KAFKA-2729, KAFKA-6880)."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"a")
        link = cluster.world.store_link("broker-1")
        link.cut_requests = True
        await cluster.eventually(lambda: cluster.state("t").leader in (2, 3))
        leader = cluster.state("t").leader
        await cluster.eventually(lambda: cluster.broker(leader).partitions.leads("t", 0))
        zombie = asyncio.ensure_future(cluster.append(1, "t", b"zombie"))
        assert await cluster.append(leader, "t", b"new") is ErrorCode.NONE
        assert term_of(cluster, 1).leader_epoch == 0
        assert (zombie.done(), cluster.opened(1).log.high_watermark) == (False, 1)
        link.cut_requests = False
        assert await ended(zombie) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.agree("t", ALL)
        assert cluster.records(1) == [b"a", b"new"]

    ReplicaCluster.run(scenario, broker_session_timeout_ms=2000, broker_heartbeat_interval_ms=500)


async def commit(cluster: ReplicaCluster, broker: int, offset: int) -> ErrorCode:
    """Commit an offset at a broker. Return the error."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    response: Any = await (await cluster.connection(broker)).call(OffsetCommitRequest(group_id="g", topics=topics), 9)
    return ErrorCode.of(response.topics[0].partitions[0].error_code)


async def serves(cluster: ReplicaCluster, broker: int, offset: int) -> None:
    """Commit an offset as soon as a broker coordinates the group."""
    async with asyncio.timeout(60):
        while (code := await commit(cluster, broker, offset)) is not ErrorCode.NONE:
            assert code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            await asyncio.sleep(0.01)


def test_coordinator_term() -> None:
    """If another commit gets the offset of a truncated one and is committed, the first one fails (KAFKA-20634)."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL)
        await cluster.create(CONSUMER_OFFSETS, ALL, least=2)
        await serves(cluster, 1, 1)
        await cluster.agree(CONSUMER_OFFSETS, ALL)
        end = cluster.opened(1, CONSUMER_OFFSETS).log.log_end_offset
        cut(cluster, 1)
        lost = asyncio.ensure_future(commit(cluster, 1, 2))
        await cluster.eventually(lambda: cluster.opened(1, CONSUMER_OFFSETS).log.log_end_offset == end + 1)
        await cluster.elect(CONSUMER_OFFSETS, 2, (2, 3))
        await serves(cluster, 2, 3)
        cluster.world.network.heal()
        await cluster.agree(CONSUMER_OFFSETS, ALL)
        assert cluster.opened(1, CONSUMER_OFFSETS).log.high_watermark == end + 1
        assert await ended(lost) is ErrorCode.NOT_COORDINATOR

    ReplicaCluster.run(scenario)


def diverging_fetch_counts_not() -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1, 2), least=2)
        await cluster.append(1, "t", b"a")
        cluster.world.network.cut("broker-1", "broker-2")
        waiting = asyncio.ensure_future(cluster.append(1, "t", b"b"))
        await cluster.eventually(lambda: cluster.opened(1).log.log_end_offset == 2)
        answer = await fetch_as(cluster, 2, cluster.epoch(2), 5, 0)
        assert (answer.error_code, answer.diverging_epoch.end_offset) == (0, 2)
        assert await cluster.append(1, "t", b"c", acks=1) is ErrorCode.NONE  # the leader computes the high watermark
        assert (waiting.done(), cluster.opened(1).log.high_watermark) == (False, 1)
        cluster.world.network.heal()
        assert await ended(waiting) is ErrorCode.NONE
        await cluster.agree("t", (1, 2))

    ReplicaCluster.run(scenario)


def test_diverging_fetch_counts_not() -> None:
    """A diverging Fetch says nothing about the follower's log (KAFKA-13141)."""
    diverging_fetch_counts_not()


def test_last_replica_standing() -> None:
    """If the last in-sync replica loses power, an eligible one leads, which has all committed records (KIP-966)."""

    async def scenario(cluster: ReplicaCluster) -> None:
        brokers = cluster.world.brokers
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"a")
        await cluster.agree("t", ALL)
        brokers[3].kill()
        await cluster.eventually(lambda: cluster.state("t").isr == (1, 2))
        assert await cluster.append(1, "t", b"b") is ErrorCode.NONE
        brokers[2].kill()
        await cluster.eventually(lambda: (cluster.state("t").isr, cluster.state("t").elr) == ((1,), (2,)))
        assert await cluster.append(1, "t", b"refused") is ErrorCode.NOT_ENOUGH_REPLICAS
        await cluster.append(1, "t", b"uncommitted", acks=1)
        brokers[1].crash()
        await brokers[3].start()
        await asyncio.sleep(30)
        assert cluster.state("t").leader == -1
        await brokers[1].start()
        await asyncio.sleep(30)
        assert cluster.state("t").leader == -1
        await brokers[2].start()
        await cluster.eventually(lambda: cluster.state("t").leader == 2)
        await cluster.eventually(lambda: set(cluster.state("t").isr) == {1, 2, 3})
        assert await cluster.append(2, "t", b"c") is ErrorCode.NONE
        await cluster.agree("t", ALL)
        assert cluster.records(1) == [b"a", b"b", b"c"]

    ReplicaCluster.run(scenario)


def joins_while_lacking(cluster: ReplicaCluster, number: int) -> list[tuple[int, ...]]:
    """Return a list that gets each ISR of t that a broker joins while its registration says that it lacks records."""
    store, joined = cluster.world.store, list[tuple[int, ...]]()
    multi = store.multi

    def watched(*arguments: Any, **options: Any) -> None:
        before = cluster.state("t").isr
        multi(*arguments, **options)
        isr, brokers = cluster.state("t").isr, read_registrations(store)
        if number in set(isr) - set(before) and brokers[number].lost_unsynced:
            joined.append(isr)

    store.multi = watched  # type: ignore[method-assign]
    return joined


def test_crashed_member() -> None:
    """A replica that may lack records joins no ISR before it has left all of them.

    Otherwise, the controller would remove it again, and the leader would add it again, repeatedly.
    """

    async def scenario(cluster: ReplicaCluster) -> None:
        machine, link = cluster.world.brokers[3], cluster.world.store_link("broker-3")
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"a")
        await cluster.agree("t", ALL)
        joined = joins_while_lacking(cluster, 3)
        left = asyncio.ensure_future(cluster.eventually(lambda: 3 not in cluster.state("t").isr))
        machine.crash()
        link.latency_s = 0.5, 0.5  # so the broker notes late that it has left the ISR
        await machine.start()
        await left
        await cluster.eventually(lambda: set(cluster.state("t").isr) == {1, 2, 3})
        link.latency_s = 0.0, 0.0
        await cluster.agree("t", ALL)
        assert joined == []

    ReplicaCluster.run(scenario)


def test_idle_epoch() -> None:
    """Epochs without records neither hide a divergence nor drop records (KAFKA-15608, KAFKA-20961)."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"a")
        await cluster.agree("t", ALL)
        cut(cluster, 1)
        await cluster.append(1, "t", b"dropped", acks=1)
        await cluster.elect("t", 2, ALL)
        await cluster.elect("t", 3, ALL)
        cluster.world.network.heal()
        await cluster.agree("t", ALL)
        assert cluster.records(1) == [b"a"]
        await cluster.elect("t", 1, ALL)
        assert await cluster.append(1, "t", b"b") is ErrorCode.NONE
        await cluster.agree("t", ALL)
        log = cluster.opened(2).log
        assert (values(log), [log.epoch_at(offset) for offset in range(2)]) == ([b"a", b"b"], [0, 3])
        asked = [OffsetForLeaderPartition(partition=0, leader_epoch=epoch) for epoch in (0, 1, 2, 3)]
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=asked)])
        response: Any = await (await cluster.connection(1)).call(request)
        found = [(each.leader_epoch, each.end_offset) for each in response.topics[0].partitions]
        assert found == [(0, 1), (0, 1), (0, 1), (3, 2)]

    ReplicaCluster.run(scenario)


@pytest.mark.parametrize("leaders", [(2,), (2, 3)])
def test_deleted_divergence(leaders: tuple[int, ...]) -> None:
    """A former leader drops a record although the new leader has deleted its own record there.

    The former leader's log ends where the new one begins. With two new leaders, the epoch of the last begins there.
    """

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2)
        assert await cluster.append(1, "t", b"a") is ErrorCode.NONE
        cut(cluster, 1)
        await cluster.append(1, "t", b"dropped", acks=1)
        await cluster.elect("t", 2, (2, 3))
        assert await cluster.append(2, "t", b"b") is ErrorCode.NONE
        for leader in leaders[1:]:
            await cluster.elect("t", leader, (2, 3))
        assert await cluster.append(leaders[-1], "t", b"c") is ErrorCode.NONE
        cluster.opened(leaders[-1]).log.advance_log_start(2)
        cluster.world.network.heal()
        await cluster.agree("t", ALL)
        assert cluster.opened(1).log.segments.first_offset == 2

    ReplicaCluster.run(scenario)


MUTATIONS: list[tuple[Patch, Callable[[], None]]] = [
    (replica_mutations.truncation_by_high_watermark, test_hw_lost_on_restart),
    (replica_mutations.truncation_to_the_leaders_end, test_fast_failover),
    (replica_mutations.waits_outlive_their_term, test_same_leader_new_epoch),
    (cluster_mutations.joins_at_the_high_watermark, lagging_hw_join),
    (cluster_mutations.joining_unchecked, bounced_disk),
    (replica_mutations.replaced_process_counts, fetch_from_the_dead),
    (replica_mutations.high_watermark_is_log_end, test_zombie_leader),
    (cluster_mutations.replies_of_lost_records_are_sent, test_coordinator_term),
    (replica_mutations.diverging_fetch_counts, diverging_fetch_counts_not),
    (replica_mutations.any_replica_is_elected, test_last_replica_standing),
    (replica_mutations.no_truncation, test_idle_epoch),
]


@pytest.mark.parametrize(("mutation", "scenario"), [each for each in MUTATIONS if can_be_patched(each[0])])
def test_scenario_catches_the_mutation(
    mutation: Patch, scenario: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = CheckedPatch(monkeypatch)
    mutation(patch)
    with pytest.raises((AssertionError, TimeoutError)):
        scenario()
    assert not patch.unused
