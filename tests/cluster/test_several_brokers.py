"""What each of several brokers answers about the cluster, asked over the wire."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.replication import in_sync
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.partition_state import PartitionState, encode_state, state_path
from oncelog.cluster.state_writes import StateWrite
from oncelog.cluster.store import Set, StoreError, UnavailableError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopic
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.broker_fixtures import append
from support.broker_sets import Brokers, ask, everywhere, fetch_nothing, has_record, run, three
from support.turns import until


def described(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)


def test_each_broker_describes_all_brokers_and_the_controller(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        started = await three(brokers)
        ports = [(broker.node_id, broker.port, f"rack-{broker.node_id}") for broker in started]
        for broker in started:
            metadata = await ask(broker, MetadataRequest(topics=[]))
            assert [(each.node_id, each.port, each.rack) for each in metadata.brokers] == ports
            assert metadata.controller_id == 1
            cluster = await ask(broker, DescribeClusterRequest())
            assert [(each.broker_id, each.port, each.rack) for each in cluster.brokers] == ports
            assert cluster.controller_id == 1

    run(Brokers(tmp_path), body)


def test_clients_get_the_addresses_of_their_listener(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        both = "PLAINTEXT://127.0.0.1:0,OUTER://127.0.0.1:0"
        first = await brokers.start(1, listeners=both, listener_security_protocol_map="OUTER:PLAINTEXT")
        second = await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        await first.topics.create("t", assignment=[(1, 2), (2, 1)])
        metadata = await ask(first, described("t"), listener="OUTER")
        assert [(each.node_id, each.port) for each in metadata.brokers] == [(1, first.server.listeners["OUTER"].port)]
        one, other = metadata.topics[0].partitions
        assert (one.error_code, one.leader_id, one.offline_replicas) == (ErrorCode.NONE, 1, [2])
        assert (other.error_code, other.leader_id) == (ErrorCode.LISTENER_NOT_FOUND, -1)
        old = await ask(first, described("t"), 5, listener="OUTER")
        assert old.topics[0].partitions[1].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        inner = await ask(first, described("t"))
        assert [each.port for each in inner.brokers] == [first.port, second.port]
        assert [each.leader_id for each in inner.topics[0].partitions] == [1, 2]

    run(Brokers(tmp_path), body)


def test_partition_without_a_leader(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers)
        await first.topics.create("t", assignment=[(2,), (2, 3)])
        await everywhere(brokers, "t")
        await brokers.crash(2)
        await until(lambda: first.metadata.image.partition("t", 1).leader == 3)  # type: ignore[union-attr]
        gone, moved = (await ask(first, described("t"))).topics[0].partitions
        assert (gone.error_code, gone.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert (gone.replica_nodes, gone.isr_nodes, gone.offline_replicas) == ([2], [], [2])
        assert (moved.error_code, moved.leader_id, moved.leader_epoch) == (ErrorCode.NONE, 3, 1)
        assert (moved.replica_nodes, moved.isr_nodes, moved.offline_replicas) == ([2, 3], [3], [2])
        answer = await ask(first, DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]))
        gone, moved = answer.topics[0].partitions
        assert (gone.error_code, gone.leader_id, gone.eligible_leader_replicas) == (ErrorCode.NONE, -1, [2])
        assert (moved.leader_id, moved.isr_nodes, moved.offline_replicas) == (3, [3], [2])

    run(Brokers(tmp_path), body)


def test_coordinators_are_found_on_every_broker(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        started = await three(brokers, offsets_topic_num_partitions="6", transaction_state_log_num_partitions="6")
        ports = {broker.node_id: broker.port for broker in started}
        keys = [f"key-{number}" for number in range(30)]
        for key_type, topic in enumerate(("__consumer_offsets", "__transaction_state")):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
            found = await ask(started[0], request)
            assert {each.error_code for each in found.coordinators} == {ErrorCode.NONE}
            assert {each.node_id for each in found.coordinators} == {1, 2, 3}
            assert all(each.port == ports[each.node_id] for each in found.coordinators)
            info = started[0].metadata.image.topic(topic)
            assert info is not None
            assert all(len(each.replicas) == 3 for each in info.partitions)
            assert info.configs.get("min.insync.replicas") == (None if key_type == 0 else "2")
            await everywhere(brokers, topic)
            assert (await ask(started[2], request)).coordinators == found.coordinators

    run(Brokers(tmp_path), body)


def test_preferred_leaders_are_elected(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, second, _ = await three(brokers)
        fetch_nothing(second)  # it would join the in-sync replicas of the second partition
        await first.topics.create("t", assignment=[(2, 3), (2, 3), (1, 2)])
        await everywhere(brokers, "t")
        for index, isr in enumerate(((3, 2), (3,))):
            path = state_path("t", index)
            state = PartitionState(3, 5, isr, 0, first.metadata.image.brokers[3].epoch)
            ChangeLog(first.store).write([Set(path, encode_state(state), 0)], path)
        await first.loader.catch_up()
        await second.loader.catch_up()
        topics = [ElectLeadersTopic(topic="t", partitions=[0, 1, 2, 3])]
        request = ElectLeadersRequest(election_type=0, topic_partitions=topics, timeout_ms=5000)
        assert (await ask(second, request)).error_code == ErrorCode.NOT_CONTROLLER
        answer = await ask(first, request)
        (result,) = answer.replica_election_results
        assert (answer.error_code, [each.error_code for each in result.partition_result]) == (
            ErrorCode.NONE,
            [
                ErrorCode.NONE,
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                ErrorCode.ELECTION_NOT_NEEDED,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ],
        )
        info = first.metadata.image.partition("t", 0)
        assert info is not None
        assert (info.leader, info.leader_epoch) == (2, 6)
        every = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=5000)
        (result,) = (await ask(first, every)).replica_election_results
        assert [each.partition_id for each in result.partition_result] == [1]

    run(Brokers(tmp_path), body)


def test_unclean_election_elects_a_replica_that_is_not_in_sync(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers)
        await first.topics.create("t", assignment=[(2, 3), (2, 3)], configs={"unclean.leader.election.enable": "false"})
        await everywhere(brokers, "t")
        brokers.running[2].in_sync.close()  # otherwise, the leader could add the follower again
        epoch = first.metadata.image.brokers[2].epoch
        for index in (0, 1):
            path = state_path("t", index)
            ChangeLog(first.store).write([Set(path, encode_state(PartitionState(2, 0, (2,), 0, epoch)), 0)], path)
        await first.loader.catch_up()
        await brokers.crash(2)
        await until(lambda: first.metadata.image.partition("t", 1).leader == -1)  # type: ignore[union-attr]
        topics = [ElectLeadersTopic(topic="t", partitions=[0])]
        answer = await ask(first, ElectLeadersRequest(election_type=1, topic_partitions=topics, timeout_ms=5000))
        assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.NONE
        info = first.metadata.image.partition("t", 0)
        assert info is not None
        assert (info.leader, info.isr) == (3, (3,))
        await first.settings.alter_topic("t", lambda _: {"unclean.leader.election.enable": "true"}, validate_only=False)
        await until(lambda: first.metadata.image.partition("t", 1).leader == 3)  # type: ignore[union-attr]

    run(Brokers(tmp_path), body)


def test_unclean_election_and_the_records_that_it_costs_are_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = 20

    def lines(part: str) -> list[str]:
        """Return the warnings with this text."""
        messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        return [message for message in messages if part in message]

    def counted(line: str) -> int:
        """Return how many logs a line stands for."""
        more = re.search(r": (\d+) more in", line)
        return int(more[1]) if more else 1

    async def body(brokers: Brokers) -> None:
        first, second, third = await three(brokers)
        await first.topics.create("t", assignment=[(2, 3)] * count)
        await everywhere(brokers, "t")
        replicas = [second.partitions.require("t", index) for index in range(count)]
        for replica in replicas:
            append(replica)
        await until(lambda: all(has_record(third, "t", index) for index in range(count)))
        await brokers.stop(3)
        for replica in 2 * replicas:
            append(replica)
        await until(lambda: all(replica.log.high_watermark == 3 for replica in replicas))  # without the follower
        await brokers.stop(2)
        await brokers.start(3)
        await until(lambda: 3 in first.metadata.image.brokers)
        topics = [ElectLeadersTopic(topic="t", partitions=list(range(count)))]

        async def elected() -> bool:
            await ask(first, ElectLeadersRequest(election_type=1, topic_partitions=topics, timeout_ms=5000))
            return all(info.leader == 3 for info in first.metadata.image.topic("t").partitions)  # type: ignore[union-attr]

        async with asyncio.timeout(60):
            while not await elected():
                await asyncio.sleep(0.05)
        assert first.counters()["kafka_controller_controllerstats_uncleanleaderelections_total"] == count
        await brokers.start(2)
        await until(lambda: sum(map(counted, lines("giving up"))) == count)
        await until(lambda: brokers.running[3].counters()["kafka_server_replicamanager_isrexpands_total"] >= count)

    run(Brokers(tmp_path), body)
    unclean = [line for line in lines("unclean election") if line.startswith("unclean election of leaders for")]
    assert re.search(
        r"partitions?: acknowledged records that the new leader lacks are lost\. t-\d+: broker 3 \(in sync before: 2\)",
        unclean[0],
    )
    assert re.fullmatch(
        r"t-\d+ differs from the log of its new leader, broker 3, which was not in sync: giving up the records from "
        "offset 1 to 2, of which those before offset 3 were acknowledged",
        lines("giving up")[0],
    )
    assert len(lines("giving up")) < count / 2


def test_death_of_a_broker_is_one_line_for_all_partitions_of_a_leader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers)
        await first.topics.create("t", assignment=[(1, 2)] * 30)
        await everywhere(brokers, "t")
        for partition in range(30):
            first.partitions.require("t", partition)
        await brokers.crash(2)
        await until(lambda: all(info.isr == (1,) for info in first.metadata.image.topic("t").partitions))  # type: ignore[union-attr]
        first.in_sync.close()  # it logs what it has collected

    with caplog.at_level(logging.INFO):
        run(Brokers(tmp_path), body)
    assert "broker 2 has left those of" in caplog.text
    assert caplog.text.count("in-sync replicas") <= 3


def test_metadata_lists_a_broker_that_stops_until_its_session_would_have_ended(tmp_path: Path) -> None:
    """librdkafka may hang if a broker that restarts is not listed for a moment. DescribeCluster shows what runs."""

    async def listed(broker: Broker) -> list[int]:
        return [each.node_id for each in (await ask(broker, MetadataRequest(topics=[]))).brokers]

    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers, broker_session_timeout_ms="6000")
        await brokers.stop(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        assert await listed(first) == [1, 2, 3]
        running = (await ask(first, DescribeClusterRequest())).brokers
        assert [each.broker_id for each in running] == [1, 3]
        await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 3)
        assert await listed(first) == [1, 2, 3]
        await brokers.stop(3)
        async with asyncio.timeout(60):
            while await listed(first) != [1, 2]:
                await asyncio.sleep(0.1)

    run(Brokers(tmp_path), body)


def test_log_of_a_topic_that_was_deleted_while_the_broker_was_down_is_set_aside(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        deleted = await first.topics.create("deleted", assignment=[(1, 2), (1, 2)])
        await first.topics.create("kept", assignment=[(1, 2)])
        await everywhere(brokers, "kept")
        for key in (("deleted", 0), ("deleted", 1), ("kept", 0)):
            append(first.partitions.require(*key))
            await until(lambda key=key: has_record(second, *key))
        await brokers.stop(2)
        await first.topics.delete(deleted)
        await brokers.start(2)
        await first.topics.create("deleted", assignment=[(1, 2)])
        append(first.partitions.require("deleted", 0))
        await until(lambda: has_record(brokers.running[2], "deleted", 0))
        folders = {path.name for path in (tmp_path / "data-2").iterdir() if path.is_dir()}
        strays = {name for name in folders if name.endswith("-stray")}
        assert folders - strays == {"deleted-0", "kept-0"}
        assert {name.partition(".")[0] for name in strays} == {"deleted-0", "deleted-1"}

    run(Brokers(tmp_path), body)


def test_obsolete_write_of_the_isr_is_logged_at_debug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a rolling restart, the controller changes the states of partitions while their leaders do."""
    original = in_sync.write_states
    failures = [UnavailableError("the disk hangs")]

    def overtaken(
        changes: ChangeLog, writes: Sequence[StateWrite], *, session: int | None
    ) -> Iterator[tuple[StateWrite, StoreError | None]]:
        if failures:
            return iter([(write, failures[0]) for write in writes])
        for write in writes:
            path = state_path(write.topic, write.partition)
            node = changes.store.get(path)
            changes.write([Set(path, node.data, node.version)], path)
        monkeypatch.setattr(in_sync, "write_states", original)
        return original(changes, writes, session=session)

    def said(level: int) -> int:
        return sum(each.levelno == level and "were not written" in each.getMessage() for each in caplog.records)

    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers)
        monkeypatch.setattr(in_sync, "write_states", overtaken)
        await first.topics.create("t", assignment=[(2, 3)])
        epoch = first.metadata.image.brokers[2].epoch
        alone = encode_state(PartitionState(2, 0, (2,), 0, epoch))  # broker 3 joins
        ChangeLog(first.store).write([Set(state_path("t", 0), alone, 0)], state_path("t", 0))
        await until(lambda: said(logging.INFO) > 0)
        failures.clear()
        before = said(logging.INFO)
        await until(lambda: set(first.metadata.image.partition("t", 0).isr) == {2, 3})  # type: ignore[union-attr]
        assert said(logging.INFO) == before
        assert said(logging.DEBUG) > 0

    with caplog.at_level(logging.DEBUG, "oncelog"):
        run(Brokers(tmp_path), body)
