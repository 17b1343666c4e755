"""Groups through a broker's server: every API in every version, and the errors of each API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.coordinators import groups
from oncelog.broker.coordinators.record_batches import EndMarker
from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.errors import ErrorCode as E
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.sim.world import PORT, World
from support.group_driver import subscription
from support.raw_client import RawWriter


class Setup:
    """A broker with the topic `t` of two partitions, and a transactional writer `etl` that has started."""

    def __init__(self, world: World, broker: Any, writer: RawWriter, topic: UUID) -> None:
        self.world = world
        self.broker = broker
        self.writer = writer
        self.topic = topic

    async def call(self, request: Any, version: int | None = None) -> Any:
        return await self.writer.call(request, lambda _: 0, version)

    async def join(self, version: int, member_id: str = "", instance: str | None = None, group: str = "g") -> Any:
        return await self.call(
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000 if version else -1,
                member_id=member_id,
                group_instance_id=instance,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
            ),
            version,
        )

    async def commit(self, offset: int, version: int, group: str = "g", partition: int = 0) -> int:
        partitions = [OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)]
        topic = OffsetCommitRequestTopic(partitions=partitions)
        if version >= 10:
            topic.topic_id = self.topic
        else:
            topic.name = "t"
        response = await self.call(OffsetCommitRequest(group_id=group, topics=[topic]), version)
        (answer,) = response.topics
        assert (answer.name, answer.topic_id) == (topic.name, topic.topic_id)
        code: int = answer.partitions[0].error_code
        return code

    async def fetch(self, version: int, group: str = "g", *, stable: bool = False, everything: bool = False) -> Any:
        """Return the committed offset of partition 0, or its error code as E."""
        request = OffsetFetchRequest(require_stable=stable)
        if version >= 8:
            topics = OffsetFetchRequestTopics(partition_indexes=[0])
            if version >= 10:
                topics.topic_id = self.topic
            else:
                topics.name = "t"
            request.groups = [OffsetFetchRequestGroup(group_id=group, topics=None if everything else [topics])]
            response = (await self.call(request, version)).groups[0]
            assert response.group_id == group
        else:
            request.group_id = group
            request.topics = None if everything else [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
            response = await self.call(request, version)
        assert response.error_code == E.NONE
        (partition,) = response.topics[0].partitions
        return E(partition.error_code) if partition.error_code else partition.committed_offset

    async def commit_in_transaction(self, offset: int, version: int, group: str = "g") -> E:
        partitions = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
        request = TxnOffsetCommitRequest(
            transactional_id="etl",
            group_id=group,
            producer_id=self.writer.producer_id,
            producer_epoch=self.writer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=partitions)],
        )
        response = await self.call(request, version)
        return E(response.topics[0].partitions[0].error_code)


def with_broker(scenario: Callable[[Setup], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run(world: World) -> None:
        broker = await world.start_broker(**settings)
        writer = RawWriter("broker-1", PORT, "etl")
        topic = await writer.create_topic("t", 2)
        await writer.start()
        await writer.call(FindCoordinatorRequest(coordinator_keys=["g"]), lambda r: r.coordinators[0].error_code)
        setup = Setup(world, broker, writer, topic)
        await setup.writer.call(ListGroupsRequest())
        await scenario(setup)
        await broker.stop()

    World(1).run(run, limit_s=3600)


@pytest.mark.parametrize("version", range(7))
def test_coordinators_are_found(version: int) -> None:
    async def scenario(setup: Setup) -> None:
        for key_type, error in ((0, E.NONE), (1, E.NONE), (2, E.INVALID_REQUEST), (9, E.INVALID_REQUEST)):
            if version == 0 and key_type:
                continue  # version 0 supports only groups
            request = FindCoordinatorRequest(key_type=key_type)
            if version >= 4:
                request.coordinator_keys = ["", "g"]
                answers = (await setup.call(request, version)).coordinators
                assert [answer.key for answer in answers] == ["", "g"]
            else:
                request.key = "g"
                answers = [await setup.call(request, version)]
            for answer in answers:
                assert (answer.error_code, answer.node_id) == (error, -1 if error else 1)

    with_broker(scenario)


@pytest.mark.parametrize("version", range(10))
def test_life_cycle_of_a_member(version: int) -> None:
    """Each API is called in about the version that belongs to this one of JoinGroup."""
    sync_version, other_version = min(version, 5), min(version, 4)

    async def scenario(setup: Setup) -> None:
        refused = await setup.join(version, "stranger")
        assert refused.error_code == E.UNKNOWN_MEMBER_ID
        joined = await setup.join(version)
        if version >= 4:
            assert joined.error_code == E.MEMBER_ID_REQUIRED
            joined = await setup.join(version, joined.member_id)
        member, generation = joined.member_id, joined.generation_id
        assert (joined.error_code, generation, joined.leader) == (E.NONE, 1, member)
        assert joined.protocol_name == "range"
        assert [m.member_id for m in joined.members] == [member]
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
            assignments=[SyncGroupRequestAssignment(member_id=member, assignment=b"all")],
        )
        synced = await setup.call(sync, sync_version)
        assert (synced.error_code, synced.assignment) == (E.NONE, b"all")
        heartbeat = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member)
        assert (await setup.call(heartbeat, other_version)).error_code == E.NONE
        described = (await setup.call(DescribeGroupsRequest(groups=["g", "x"]), min(version, 6))).groups
        assert [group.group_state for group in described] == ["Stable", "Dead"]
        assert described[1].error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE)
        (only,) = described[0].members
        assert (only.member_id, only.member_assignment, only.client_host[:1]) == (member, b"all", "/")
        (listed,) = (await setup.call(ListGroupsRequest(), sync_version)).groups
        assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
        for expected in (E.NONE, E.UNKNOWN_MEMBER_ID):
            leave = LeaveGroupRequest(group_id="g")
            if sync_version >= 3:
                leave.members = [MemberIdentity(member_id=member)]
                answer = await setup.call(leave, sync_version)
                assert (answer.error_code, answer.members[0].error_code) == (E.NONE, expected)
            else:
                leave.member_id = member
                assert (await setup.call(leave, sync_version)).error_code == expected

    with_broker(scenario)


@pytest.mark.parametrize("version", range(5, 10))
def test_static_member_restarts(version: int) -> None:
    async def scenario(setup: Setup) -> None:
        joined = await setup.join(version, instance="i")
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=joined.member_id,
            group_instance_id="i",
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
        )
        await setup.call(sync, 5)
        again = await setup.join(version, instance="i")
        assert (again.generation_id, again.skip_assignment) == (1, version >= 9)
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id, group_instance_id="i")
        assert (await setup.call(heartbeat)).error_code == E.FENCED_INSTANCE_ID

    with_broker(scenario)


def test_empty_group_id_is_rejected_for_members() -> None:
    async def scenario(setup: Setup) -> None:
        assert (await setup.join(9, group="")).error_code == E.INVALID_GROUP_ID
        unnamed = SyncGroupRequest(protocol_type="p", protocol_name="p")
        for request in (unnamed, HeartbeatRequest(), LeaveGroupRequest()):
            assert (await setup.call(request)).error_code == E.INVALID_GROUP_ID
        no_protocol = SyncGroupRequest(group_id="g")
        assert (await setup.call(no_protocol, 5)).error_code == E.INCONSISTENT_GROUP_PROTOCOL
        assert await setup.commit_in_transaction(1, 5, group="") is E.INVALID_GROUP_ID
        # Kafka permits this for very old consumers with manual assignment.
        assert await setup.commit(7, 9, group="") == E.NONE
        assert await setup.fetch(9, group="") == 7

    with_broker(scenario)


def test_offsets_in_every_version() -> None:
    async def scenario(setup: Setup) -> None:
        for version in range(2, 11):
            assert await setup.commit(100 + version, version) == E.NONE
            for fetched in range(1, 11):
                assert await setup.fetch(fetched) == 100 + version
                if fetched >= 2:
                    assert await setup.fetch(fetched, everything=True) == 100 + version
            assert await setup.commit(1, version, partition=2) == E.UNKNOWN_TOPIC_OR_PARTITION
            assert await setup.commit(1, version, partition=-1) == E.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(scenario)


def test_unknown_topics_have_their_own_errors() -> None:
    async def scenario(setup: Setup) -> None:
        unknown = UUID(int=77)
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        topics = [
            OffsetCommitRequestTopic(topic_id=unknown, partitions=partitions),
            OffsetCommitRequestTopic(topic_id=setup.topic, partitions=[
                *partitions, OffsetCommitRequestPartition(partition_index=9, committed_offset=1),
            ]),
        ]  # fmt: skip
        response = await setup.call(OffsetCommitRequest(group_id="g", topics=topics), 10)
        assert {
            (topic.topic_id, partition.partition_index): partition.error_code
            for topic in response.topics
            for partition in topic.partitions
        } == {
            (unknown, 0): E.UNKNOWN_TOPIC_ID,
            (setup.topic, 0): E.NONE,
            (setup.topic, 9): E.UNKNOWN_TOPIC_OR_PARTITION,
        }
        asked = [OffsetFetchRequestTopics(topic_id=topic, partition_indexes=[0]) for topic in (unknown, setup.topic)]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=asked)])
        (group,) = (await setup.call(request, 10)).groups
        assert {topic.topic_id: topic.partitions[0].error_code for topic in group.topics} == {
            unknown: E.UNKNOWN_TOPIC_ID,
            setup.topic: E.NONE,
        }

    with_broker(scenario)


def test_several_groups_are_fetched_at_once() -> None:
    async def scenario(setup: Setup) -> None:
        await setup.commit(1, 9, group="one")
        await setup.commit(2, 9, group="two")
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("two", "none", "one")]
        answers = (await setup.call(OffsetFetchRequest(groups=groups), 9)).groups
        assert [
            (group.group_id, [p.committed_offset for topic in group.topics for p in topic.partitions])
            for group in answers
        ] == [("two", [2]), ("none", []), ("one", [1])]

    with_broker(scenario)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_in_a_transaction(version: int, commit: bool) -> None:
    async def scenario(setup: Setup) -> None:
        writer = setup.writer
        assert await setup.commit(1, 9) == E.NONE
        if version < 5:  # the partition is added by its own request
            not_added = E.TRANSACTION_ABORTABLE if version >= 4 else E.INVALID_TXN_STATE
            assert await setup.commit_in_transaction(5, version) is not_added
            add = AddOffsetsToTxnRequest(
                transactional_id="etl",
                producer_id=writer.producer_id,
                producer_epoch=writer.epoch,
                group_id="g",
            )
            assert (await setup.call(add, 3)).error_code == E.NONE
        assert await setup.commit_in_transaction(5, version) is E.NONE
        assert await setup.fetch(9) == 1
        assert await setup.fetch(7, stable=True) is E.UNSTABLE_OFFSET_COMMIT
        end = EndTxnRequest(
            transactional_id="etl",
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            committed=commit,
        )
        assert (await setup.call(end, 5 if version >= 5 else 3)).error_code == E.NONE
        while await setup.fetch(9, stable=True) is E.UNSTABLE_OFFSET_COMMIT:
            await asyncio.sleep(0.01)
        assert await setup.fetch(9, stable=True) == (5 if commit else 1)
        if version >= 5:  # in version 2, the previous epoch has ended: a late commit opens nothing
            late = await setup.commit_in_transaction(6, version)
            assert late in (E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED)

    with_broker(scenario)


def test_marker_that_arrives_during_verification_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-890: the commit is late, and would leave a transaction that is never ended."""

    async def scenario(setup: Setup) -> None:
        broker, writer = setup.broker.broker, setup.writer
        assert broker is not None
        home = partition_for("g", 50)

        async def add_partitions(*_: Any, **__: Any) -> dict[tuple[str, int], E]:
            marker = EndMarker(False, writer.producer_id, writer.epoch, coordinator_epoch=0, transaction_version=1)
            broker.services.markers.append("__consumer_offsets", home, marker)
            return {("__consumer_offsets", home): E.NONE}

        monkeypatch.setattr(broker.transactions, "add_partitions", add_partitions)
        assert await setup.commit_in_transaction(5, 3) is E.INVALID_TXN_STATE
        assert await setup.fetch(9, stable=True) == -1

    with_broker(scenario)


def test_offsets_of_a_deleted_topic_are_forgotten() -> None:
    async def scenario(setup: Setup) -> None:
        assert await setup.commit(7, 9) == E.NONE
        assert await setup.commit_in_transaction(8, 5) is E.NONE
        await setup.writer.call(
            DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=setup.topic)], timeout_ms=10_000),
            lambda response: response.responses[0].error_code,
        )
        setup.topic = await setup.writer.create_topic("t", 2)
        assert await setup.fetch(9, stable=True) == -1

    with_broker(scenario)


def test_heartbeats_succeed_while_the_coordinator_loads() -> None:
    async def scenario(setup: Setup) -> None:
        broker = setup.broker.broker
        assert broker is not None
        broker.groups.shell.terms.close()
        assert (await setup.call(HeartbeatRequest(group_id="g", member_id="m"))).error_code == E.NONE
        assert (await setup.join(9)).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        assert await setup.commit(1, 9) == E.COORDINATOR_LOAD_IN_PROGRESS
        assert await setup.commit_in_transaction(1, 1) is E.COORDINATOR_NOT_AVAILABLE
        assert await setup.commit_in_transaction(1, 2) is E.COORDINATOR_LOAD_IN_PROGRESS
        assert (await setup.call(ListGroupsRequest())).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        assert await setup.call(DescribeGroupsRequest(groups=["g"])) is not None
        await broker.groups.shell.terms.load()
        assert await setup.commit(1, 9) == E.NONE

    with_broker(scenario)


def test_classic_member_of_a_consumer_group_that_is_asked_to_join_must_do_so_in_time() -> None:
    """Its Heartbeat begins the time, also if no other request comes after it."""

    async def scenario(setup: Setup) -> None:
        async def beat(**fields: Any) -> Any:
            return await setup.call(ConsumerGroupHeartbeatRequest(group_id="g", member_id="new", **fields), 1)

        answer = await beat(
            member_epoch=0, rebalance_timeout_ms=60_000, subscribed_topic_names=["t"], topic_partitions=[]
        )
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=600_000,
            rebalance_timeout_ms=10_000,
            member_id="old",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
        )
        joined = await setup.call(join)
        assert joined.error_code == E.NONE
        sync = SyncGroupRequest(group_id="g", generation_id=joined.generation_id, member_id="old")
        assert (await setup.call(sync, 4)).error_code == E.NONE
        answer = await beat(member_epoch=answer.member_epoch)
        await beat(member_epoch=answer.member_epoch, topic_partitions=[])
        await asyncio.sleep(12)  # no deadline is left but the sessions' ends
        asked = HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id="old")
        assert (await setup.call(asked)).error_code == E.REBALANCE_IN_PROGRESS
        await asyncio.sleep(11)  # the session of "new" lasts longer
        assert (await setup.call(asked)).error_code == E.UNKNOWN_MEMBER_ID

    with_broker(scenario, group_consumer_assignment_interval_ms=0)


def test_one_group_at_a_time_matches_its_regular_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many at once would each take a part of every turn of the loop, and other requests would wait for all of them."""
    running, most, done = 0, 0, 0

    async def match(patterns: Iterable[str], image: Any, _: Any) -> dict[str, frozenset[str]]:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        done += 1
        return {pattern: frozenset({"t"}) for pattern in patterns}

    monkeypatch.setattr(groups, "matching_topics", match)

    async def scenario(setup: Setup) -> None:
        for group in ("g1", "g2", "g3"):
            beat = ConsumerGroupHeartbeatRequest(
                group_id=group, member_id="m", rebalance_timeout_ms=1, subscribed_topic_regex="t", topic_partitions=[]
            )
            assert not (await setup.call(beat, 1)).error_code
        while done < 3:
            await asyncio.sleep(0.01)
        assert most == 1

    with_broker(scenario)
