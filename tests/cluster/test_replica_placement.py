"""The brokers that get the replicas of new partitions, also while brokers are down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.broker_sets import Brokers, ask, everywhere, run, three
from support.turns import until


def described(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)


def assigned(name: str, *replicas: list[int]) -> CreateTopicsRequest:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(replicas)
    ]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    return CreateTopicsRequest(topics=[topic])


def test_internal_topic_has_a_replica_on_a_broker_that_has_just_started(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first = await brokers.start(1)
        await brokers.start(2)
        topic = await first.topics.ensure_internal("__consumer_offsets")
        assert {tuple(sorted(info.replicas)) for info in topic.partitions} == {(1, 2)}

    run(Brokers(tmp_path), body)


def test_internal_topics_get_replicas_on_brokers_that_are_down(tmp_path: Path) -> None:
    """As in Apache Kafka: otherwise the topic would keep one replica."""

    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers, transaction_state_log_replication_factor="2")
        await brokers.stop(2)
        await brokers.stop(3)
        for key_type in (0, 1):
            await ask(first, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["key"]))
        for name, factor in {"__consumer_offsets": 3, "__transaction_state": 2}.items():
            topic = first.metadata.image.topic(name)
            assert topic is not None
            assert {(len(info.replicas), info.leader, info.isr) for info in topic.partitions} == {(factor, 1, (1,))}

    run(Brokers(tmp_path), body)


def test_replicas_are_placed_on_running_brokers(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, second, _ = await three(brokers)

        async def create(name: str, factor: int, partitions: int = 6) -> Any:
            topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
            return (await ask(second, CreateTopicsRequest(topics=[topic]))).topics[0]

        assert (await create("a", 2)).error_code == ErrorCode.NONE
        info = second.metadata.image.topic("a")
        assert info is not None
        assert sorted(each.leader for each in info.partitions) == [1, 1, 2, 2, 3, 3]
        assert all(len(set(each.replicas)) == 2 and each.isr == each.replicas for each in info.partitions)
        refused = await create("b", 4)
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert refused.error_message == "replication factor 4 is higher than 3, the number of registered brokers"
        assert second.metadata.image.topic("b") is None
        more = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="a", count=12, assignments=None)], timeout_ms=5000
        )
        assert (await ask(second, more)).results[0].error_code == ErrorCode.NONE
        await everywhere(brokers, "a")
        await brokers.crash(3)
        await until(lambda: len(first.metadata.image.brokers) == len(second.metadata.image.brokers) == 2)
        assert (await create("c", 2)).error_code == ErrorCode.NONE
        info = second.metadata.image.topic("c")
        assert info is not None
        assert {tuple(sorted(each.replicas)) for each in info.partitions} == {(1, 2)}

    run(Brokers(tmp_path), body)


def test_broker_that_is_down_is_still_registered_for_a_reassignment(tmp_path: Path) -> None:
    """As in Apache Kafka. oncelog cannot move replicas, but must not say that the broker does not exist."""

    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers)
        await first.topics.create("t", assignment=[(1, 3)])
        await brokers.stop(3)
        await until(lambda: sorted(first.metadata.image.brokers) == [1, 2])

        async def reassigned(*replicas: int) -> tuple[int, str | None]:
            partition = ReassignablePartition(partition_index=0, replicas=list(replicas))
            topic = ReassignableTopic(name="t", partitions=[partition])
            answer = await ask(first, AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=5000))
            (found,) = answer.responses[0].partitions
            return found.error_code, found.error_message

        refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await reassigned(1, 3) == (ErrorCode.NONE, None)
        assert await reassigned(1, 2, 3) == (refused, "This version cannot move replicas to other brokers.")
        unknown = "The manual partition assignment includes broker 4, but no such broker is registered."
        assert await reassigned(1, 4) == (refused, unknown)

    run(Brokers(tmp_path), body)


def test_new_partitions_get_a_replica_on_a_broker_that_is_down(tmp_path: Path) -> None:
    """As in Apache Kafka, where a broker that is down is fenced, but remains registered."""

    async def body(brokers: Brokers) -> None:
        first, second, _ = await three(brokers)
        await first.topics.create("old", partitions=1, replication_factor=3)
        await everywhere(brokers, "old")
        await brokers.crash(3)
        await until(lambda: len(first.metadata.image.brokers) == len(second.metadata.image.brokers) == 2)
        topic = CreatableTopic(name="new", num_partitions=6, replication_factor=3)
        (result,) = (await ask(second, CreateTopicsRequest(topics=[topic]))).topics
        assert (result.error_code, result.replication_factor) == (ErrorCode.NONE, 3)
        topic = CreatableTopic(name="four", num_partitions=1, replication_factor=4)
        (result,) = (await ask(second, CreateTopicsRequest(topics=[topic]))).topics
        assert result.error_message == "replication factor 4 is higher than 3, the number of registered brokers"
        (result,) = (await ask(second, assigned("assigned", [3, 1], [2, 3]))).topics
        assert result.error_code == ErrorCode.NONE
        (result,) = (await ask(second, assigned("dead", [3]))).topics
        assert (result.error_code, result.error_message) == (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "all brokers of partition 0 ([3]) are down; start one of them, or name a running one",
        )
        await first.loader.catch_up()
        more = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(name="old", count=4, assignments=None),
                CreatePartitionsTopic(
                    name="assigned", count=3, assignments=[CreatePartitionsAssignment(broker_ids=[3, 1])]
                ),
            ],
            timeout_ms=5000,
        )
        assert [each.error_code for each in (await ask(first, more)).results] == [ErrorCode.NONE] * 2
        await second.topics.ensure_internal("__consumer_offsets")
        names = {"new": 6, "old": 4, "assigned": 3, "__consumer_offsets": 50}
        await first.loader.catch_up()
        for name, count in names.items():
            info = first.metadata.image.topic(name)
            assert info is not None
            assert len(info.partitions) == count
            for each in info.partitions:
                assert 3 in each.replicas
                assert each.isr == tuple(broker for broker in each.replicas if broker != 3)
                assert each.leader == each.isr[0]
        third = await brokers.start(3)
        for name in names:
            await until(
                lambda name=name: all(
                    sorted(each.isr) == sorted(each.replicas) for each in third.metadata.image.topic(name).partitions
                )
            )

    run(Brokers(tmp_path), body)


def test_assigned_replicas_are_checked(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, *_ = await three(brokers)
        for name, replicas in {"dead": [[1, 4]], "twice": [[1, 1]], "uneven": [[1, 2], [3]], "none": [[]]}.items():
            (result,) = (await ask(first, assigned(name, *replicas))).topics
            assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        (result,) = (await ask(first, assigned("t", [3, 1], [2, 3]))).topics
        assert (result.error_code, result.replication_factor) == (ErrorCode.NONE, 2)
        assert [each.leader_id for each in (await ask(first, described("t"))).topics[0].partitions] == [3, 2]

    run(Brokers(tmp_path), body)
