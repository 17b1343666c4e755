"""Three brokers with replicated partitions: what followers have, and what remains after a leader is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.net.connection import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.replica_cluster import ReplicaCluster, values

ALL = 1, 2, 3


def test_followers_get_the_leaders_records() -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL)
        for number in range(10):
            assert await cluster.append(1, "t", b"%d" % number) is ErrorCode.NONE
        await cluster.agree("t", ALL)
        follower = cluster.replica(3, "t")
        assert follower is not None
        assert values(follower.log) == [b"%d" % number for number in range(10)]
        assert await cluster.append(2, "t", b"x") is ErrorCode.NOT_LEADER_OR_FOLLOWER

    ReplicaCluster.run(scenario)


def test_a_new_leader_has_all_acknowledged_records_and_the_old_one_truncates() -> None:
    """The old leader has a record that no follower has, and must drop it."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2)
        for number in range(5):
            await cluster.append(1, "t", b"%d" % number)
        cluster.world.network.cut("broker-1", "broker-2")
        cluster.world.network.cut("broker-1", "broker-3")
        await cluster.append(1, "t", b"lost", acks=1)
        await cluster.elect("t", 2, (2, 3))
        assert await cluster.append(2, "t", b"5") is ErrorCode.NONE
        cluster.world.network.heal("broker-1", "broker-2")
        cluster.world.network.heal("broker-1", "broker-3")
        await cluster.agree("t", ALL)
        old = cluster.replica(1, "t")
        assert old is not None
        assert values(old.log) == [b"%d" % number for number in range(6)]
        await cluster.eventually(lambda: set(cluster.state("t").isr) == {1, 2, 3})

    ReplicaCluster.run(scenario)


def test_partitions_that_have_moved_away_cause_no_more_fetches() -> None:
    """The former leader answers with errors for them until its fetch session forgets them."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("stays", ALL)
        moving = [f"moves-{number}" for number in range(6)]
        for topic in moving:
            await cluster.create(topic, ALL)
            await cluster.append(1, topic, b"0")
        loader = cluster.broker(3).loader
        publish = loader._publish

        async def late() -> Any:
            await asyncio.sleep(0.5)  # the former leader knows of the elections before the follower
            return await publish()

        loader._publish = late  # type: ignore[method-assign]
        for topic in moving:
            await cluster.elect(topic, 2, ALL)
        await asyncio.sleep(5)
        fetches = 0
        peers = cluster.broker(3).peers
        original = peers.request

        async def counted(broker: int, *arguments: Any) -> Any:
            nonlocal fetches
            fetches += broker == 1
            return await original(broker, *arguments)

        peers.request = counted  # type: ignore[method-assign,assignment]
        await asyncio.sleep(5)
        assert 0 < fetches <= 20  # each waits for 500 ms

    ReplicaCluster.run(scenario)


def test_a_follower_that_lags_leaves_the_in_sync_replicas_and_returns() -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"0")
        cluster.world.brokers[3].pause()
        assert await cluster.append(1, "t", b"1") is ErrorCode.NONE  # after broker 3 has left
        assert cluster.state("t").isr == (1, 2)
        cluster.world.brokers[3].resume()
        await cluster.eventually(lambda: cluster.state("t").isr == (1, 2, 3))
        await cluster.agree("t", ALL)

    ReplicaCluster.run(scenario, replica_lag_time_max_ms=2000)


@pytest.mark.parametrize("automatic", [True, False])
def test_preferred_leaders_are_elected_automatically_unless_this_is_disabled(*, automatic: bool) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (2, 1))
        await cluster.elect("t", 1, (1, 2))
        await asyncio.sleep(100)
        assert cluster.state("t").leader == (2 if automatic else 1)

    settings = {"auto_leader_rebalance_enable": automatic, "leader_imbalance_check_interval_seconds": 2}
    ReplicaCluster.run(scenario, **settings)


def test_too_few_in_sync_replicas_reject_acks_all() -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL, least=2)
        await cluster.append(1, "t", b"0")
        for number in (2, 3):
            cluster.world.brokers[number].kill()
        await cluster.append(1, "t", b"1", acks=1)
        await cluster.eventually(lambda: cluster.state("t").isr == (1,))
        assert await cluster.append(1, "t", b"2") is ErrorCode.NOT_ENOUGH_REPLICAS
        leader = cluster.replica(1, "t")
        assert leader is not None
        assert (leader.log.high_watermark, leader.log.log_end_offset) == (1, 2)
        for number in (2, 3):
            await cluster.world.brokers[number].start()
        await cluster.agree("t", ALL)
        assert await cluster.append(1, "t", b"3") is ErrorCode.NONE

    ReplicaCluster.run(scenario, replica_lag_time_max_ms=2000)


def test_a_follower_restarts_where_the_leaders_log_starts() -> None:
    """The leader has deleted the records after the follower's last one."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1, 2))
        await cluster.append(1, "t", b"0")
        cluster.world.brokers[2].kill()
        for number in range(1, 20):
            await cluster.append(1, "t", b"%d" % number, acks=1)
        await cluster.eventually(lambda: cluster.state("t").isr == (1,))
        leader = cluster.replica(1, "t")
        assert leader is not None
        leader.log.advance_log_start(15)
        await cluster.world.brokers[2].start()
        await cluster.agree("t", (1, 2))
        follower = cluster.replica(2, "t")
        assert follower is not None
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (15, 20)
        await cluster.eventually(lambda: cluster.state("t").isr == (1, 2))

    ReplicaCluster.run(scenario, replica_lag_time_max_ms=2000)


def test_an_unclean_truncation_drops_unsent_responses() -> None:
    """The pages of a response are truncated before the client has read them."""

    async def scenario(cluster: ReplicaCluster) -> None:
        network, brokers = cluster.world.network, cluster.world.brokers
        await cluster.create("t", (1, 2))
        brokers[2].kill()
        for _ in range(20):
            await cluster.append(1, "t", bytes(10_000), acks=1)
        await cluster.eventually(lambda: cluster.state("t").isr == (1,))
        network.cut("broker-1", "broker-2")
        await brokers[2].start()
        cluster.broker(1).server.unsent.copies = False  # as with uvloop: the transport gets the pages themselves
        connection = await cluster.connection(1)
        network.cut("broker-1", "client", both_ways=False)
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topic_id = cluster.broker(1).metadata.image.topics_by_name["t"].topic_id
        answer = connection.send(
            FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic_id=topic_id, partitions=[partition])])
        )
        await asyncio.sleep(1)
        assert not answer.done()
        await cluster.elect("t", 2, (2,))
        network.heal("broker-1", "broker-2")
        leader, old = cluster.replica(2, "t"), cluster.replica(1, "t")
        assert leader is not None
        assert old is not None
        assert old.log.high_watermark == 20
        await cluster.eventually(lambda: old.log.log_end_offset == leader.log.log_end_offset)
        network.heal()
        with pytest.raises(ConnectionLostError):
            await answer
        assert brokers[1].alive

    ReplicaCluster.run(scenario, replica_lag_time_max_ms=2000)


def test_state_that_the_leader_writes_keeps_the_controller_epoch() -> None:
    """As in Kafka, where it is the epoch of the controller that has elected the leader."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", ALL)
        cluster.world.brokers[1].kill()
        await cluster.eventually(lambda: cluster.state("t").leader in (2, 3))
        elected = cluster.state("t")
        assert elected.controller_epoch > 0
        await cluster.world.brokers[1].start()
        await cluster.eventually(lambda: set(cluster.state("t").isr) == set(ALL))
        joined = cluster.state("t")
        assert (joined.leader_epoch, joined.controller_epoch) == (elected.leader_epoch, elected.controller_epoch)

    ReplicaCluster.run(scenario)
