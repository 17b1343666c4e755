"""New partitions (KIP-195), pages of partitions (KIP-966), and end offsets of leader epochs (KIP-101, 320)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncelog.protocol.messages import describe_topic_partitions as dtp
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from oncelog.protocol.schema import NO_UUID
from support.servers import Server
from support.wire import Wire, batch, code, retried, until

ME = 1
"""The node id of both servers."""
TOPIC_OPERATIONS = 3576
"""All operations on a topic: without an authorizer, every client may perform them."""


def grow(
    wire: Wire, *topics: tuple[str, int, list[list[int]] | None], validate_only: bool = False, version: int = 3
) -> dict[str, Any]:
    """Return the answers to CreatePartitions by topic."""
    wanted = [
        CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None if ids is None else [CreatePartitionsAssignment(broker_ids=each) for each in ids],
        )
        for name, count, ids in topics
    ]
    request = CreatePartitionsRequest(topics=wanted, timeout_ms=10_000, validate_only=validate_only)
    results = wire.call(request, version).results
    assert len({each.name for each in results}) == len(results)
    return {each.name: each for each in results}


def partitions(wire: Wire, name: str) -> list[Any]:
    """Return the topic's partitions in Metadata."""
    [topic] = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12).topics
    assert not topic.error_code, topic
    return sorted(topic.partitions, key=lambda each: each.partition_index)


def has(wire: Wire, name: str, count: int) -> None:
    """Wait until the topic has this many partitions, all with a leader."""
    until(
        lambda: [(each.partition_index, each.error_code, each.leader_id) for each in partitions(wire, name)],
        lambda found: found == [(index, 0, ME) for index in range(count)],
        f"{count} partitions",
    )


# -- CreatePartitions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_partitions_are_added(wire: Wire, name: str, version: int) -> None:
    topic_id = wire.create_topic(name, 2)
    assert not retried(lambda: wire.produce(name, batch([b"before"]), partition=1)).error_code
    answer = grow(wire, (name, 5, None), version=version)[name]
    assert not answer.error_code, answer
    has(wire, name, 5)
    for partition in (1, 4):
        assert not retried(lambda p=partition: wire.produce(name, batch([b"after"]), partition=p)).error_code
    assert wire.values(topic_id, 1) == [b"before", b"after"]
    assert wire.values(topic_id, 4) == [b"after"]
    assert retried(lambda: wire.produce(name, batch([b"first"]), partition=3)).base_offset == 0


def test_partitions_are_added_with_manual_assignment(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    assert not grow(wire, (name, 3, [[ME], [ME]]))[name].error_code
    has(wire, name, 3)
    assert [each.replica_nodes for each in partitions(wire, name)] == [[ME]] * 3


@pytest.mark.parametrize("count", [-1, 0, 1, 2])
def test_partition_count_cannot_decrease(wire: Wire, name: str, count: int) -> None:
    wire.create_topic(name, 2)
    answer = grow(wire, (name, count, None))[name]
    assert answer.error_code == code("INVALID_PARTITIONS")
    assert "2 partition(s)" in answer.error_message
    assert len(partitions(wire, name)) == 2


@pytest.mark.parametrize("ids", [[], [[ME]], [[ME], [ME], [ME]], [[], []], [[ME], [17]], [[ME], [ME, ME]]])
def test_invalid_assignments(wire: Wire, name: str, ids: list[list[int]]) -> None:
    wire.create_topic(name)
    assert grow(wire, (name, 3, ids))[name].error_code == code("INVALID_REPLICA_ASSIGNMENT")
    assert len(partitions(wire, name)) == 1


def test_each_topic_has_its_own_error(wire: Wire, name: str) -> None:
    for each in ("a", "b", "c"):
        wire.create_topic(f"{name}-{each}")
    twice = [(f"{name}-b", 2, None), (f"{name}-b", 3, None)]
    answers = grow(wire, (f"{name}-a", 2, None), *twice, (f"{name}-x", 2, None), (f"{name}-c", 1, None))
    assert {topic.removeprefix(name): each.error_code for topic, each in answers.items()} == {
        "-a": 0,
        "-b": code("INVALID_REQUEST"),
        "-x": code("UNKNOWN_TOPIC_OR_PARTITION"),
        "-c": code("INVALID_PARTITIONS"),
    }
    has(wire, f"{name}-a", 2)
    has(wire, f"{name}-b", 1)


def test_validate_only_adds_nothing(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    assert not grow(wire, (name, 4, None), validate_only=True)[name].error_code
    assert grow(wire, (name, 1, None), validate_only=True)[name].error_code == code("INVALID_PARTITIONS")
    assert len(partitions(wire, name)) == 1


def test_too_many_partitions_in_all(wire: Wire, server: Server, name: str) -> None:
    # DIFFERS[too many partitions]: Kafka's bounded list of records overflows, and it has no error code for that. The
    # topics that Kafka rejects depend on the order of a hash map; oncelog rejects the last.
    refusal = code("POLICY_VIOLATION" if server.name == "oncelog" else "UNKNOWN_SERVER_ERROR")
    names = [f"{name}-{each}" for each in "abc"]
    for each in names:
        wire.create_topic(each)
        has(wire, each, 1)
    answers = grow(wire, *((each, 4000, None) for each in names), validate_only=True)
    codes = [answers[each].error_code for each in names]
    assert codes == [0, 0, refusal] if server.name == "oncelog" else sorted(codes) == sorted([0, 0, refusal])


def test_internal_topics_cannot_get_partitions(start_server: Callable[..., Server], name: str) -> None:
    """DIFFERS: Kafka permits it; afterwards, keys are looked up in other partitions than before."""
    server = start_server({"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"})
    with Wire(server.bootstrap) as wire:
        wire.find_coordinator(name)
        answer = grow(wire, ("__transaction_state", 2, None))["__transaction_state"]
        assert answer.error_code == (0 if server.name == "apache-kafka" else code("INVALID_REQUEST"))


def test_added_partitions_survive_a_restart(own_server: Server, name: str) -> None:
    with Wire(own_server.bootstrap) as wire:
        topic_id = wire.create_topic(name)
        assert not grow(wire, (name, 3, None))[name].error_code
        has(wire, name, 3)
        assert not retried(lambda: wire.produce(name, batch([b"x"]), partition=2)).error_code
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        has(wire, name, 3)
        until(lambda: wire.fetch(topic_id, 2).error_code, lambda found: not found, "the partition has a leader")
        assert wire.values(topic_id, 2) == [b"x"]
        assert not grow(wire, (name, 4, None))[name].error_code
        has(wire, name, 4)


# -- DescribeTopicPartitions -------------------------------------------------------------------------------------------


def page(wire: Wire, names: list[str], cursor: tuple[str, int] | None = None, limit: int = 2000) -> Any:
    """Return one answer to DescribeTopicPartitions."""
    begin = None if cursor is None else dtp.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    request = dtp.DescribeTopicPartitionsRequest(
        topics=[dtp.TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=begin
    )
    return wire.call(request)


def numbers(answer: Any) -> list[tuple[str, list[int]]]:
    """Return topics and numbers of partitions in an answer."""
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in answer.topics]


def test_partitions_are_described(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, 2)
    answer = page(wire, [name])
    [topic] = answer.topics
    assert answer.next_cursor is None
    assert (topic.error_code, topic.name, topic.topic_id, topic.is_internal) == (0, name, topic_id, False)
    assert topic.topic_authorized_operations == TOPIC_OPERATIONS
    assert [each.partition_index for each in topic.partitions] == [0, 1]
    for each in topic.partitions:
        assert (each.error_code, each.leader_id, each.leader_epoch) == (0, ME, 0)
        assert (each.replica_nodes, each.isr_nodes, each.offline_replicas) == ([ME], [ME], [])
        assert (each.eligible_leader_replicas, each.last_known_elr) == ([], [])


def test_pages(wire: Wire, name: str) -> None:
    first, second, third = (f"{name}-{each}" for each in "abc")
    for topic, count in ((first, 3), (second, 2), (third, 1)):
        wire.create_topic(topic, count)
    names = [third, first, second]  # listed in the order of names
    found, cursor, pages = [], None, 0
    while True:
        answer = page(wire, names, cursor, limit=2)
        found += [(topic, number) for topic, all_ in numbers(answer) for number in all_]
        pages += 1
        assert pages <= 3
        if answer.next_cursor is None:
            break
        cursor = answer.next_cursor.topic_name, answer.next_cursor.partition_index
    assert found == [(first, 0), (first, 1), (first, 2), (second, 0), (second, 1), (third, 0)]
    assert pages == 3
    answer = page(wire, names, limit=3)
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == (second, 0)
    assert numbers(page(wire, names, limit=0)) == numbers(page(wire, names, limit=1)) == [(first, [0])]


def test_cursor_without_topics_pages_through_all(wire: Wire, name: str) -> None:
    topic = f"zzzz-{name}"
    wire.create_topic(topic, 2)
    answer = page(wire, [], (topic, 1), limit=1)
    assert numbers(answer)[0] == (topic, [1])
    assert topic in {each.name for each in page(wire, []).topics}
    answer = page(wire, [], (f"zzzzz-{name}", 0))
    assert topic not in {each.name for each in answer.topics}
    assert numbers(page(wire, [topic], (topic, 7))) == [(topic, [])]


def test_unknown_topics(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    answer = page(wire, [f"{name}-x", "a/b", name])
    assert {each.name: each.error_code for each in answer.topics} == {
        f"{name}-x": code("UNKNOWN_TOPIC_OR_PARTITION"),
        "a/b": code("INVALID_TOPIC_EXCEPTION"),
        name: 0,
    }
    assert {each.topic_id for each in answer.topics if each.error_code} == {NO_UUID}


@pytest.mark.parametrize("cursor", [("zz", 0), (None, -1)])
def test_invalid_cursors_are_rejected(wire: Wire, name: str, cursor: tuple[str | None, int]) -> None:
    wire.create_topic(name)
    answer = page(wire, [name], (cursor[0] or name, cursor[1]))
    assert [(each.name, each.error_code) for each in answer.topics] == [(name, code("INVALID_REQUEST"))]


def test_brokers_limit_of_partitions_per_page(start_server: Callable[..., Server], name: str) -> None:
    server = start_server({"max.request.partition.size.limit": "2"})
    with Wire(server.bootstrap) as wire:
        wire.create_topic(name, 3)
        answer = page(wire, [name])
        assert numbers(answer) == [(name, [0, 1])]
        assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == (name, 2)


# -- OffsetForLeaderEpoch ----------------------------------------------------------------------------------------------


def end_of(
    wire: Wire, name: str, epoch: int, current: int = -1, partition: int = 0, version: int = 4
) -> tuple[int, int, int]:
    """Return (error, epoch, end offset)."""
    asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=name, partitions=[asked])])
    [found] = wire.call(request, version).topics[0].partitions
    assert found.partition == partition
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_end_offset_of_a_leader_epoch(wire: Wire, name: str, version: int) -> None:
    wire.create_topic(name)
    until(
        lambda: end_of(wire, name, 0, version=version), lambda found: found == (0, 0, 0), "the log is known and empty"
    )
    assert not retried(lambda: wire.produce(name, batch([b"a", b"b", b"c"]))).error_code
    assert end_of(wire, name, 0, version=version) == (0, 0, 3)
    assert end_of(wire, name, 0, 0, version=version) == (0, 0, 3)
    assert end_of(wire, name, 1, version=version) == (0, -1, -1)
    assert end_of(wire, name, -1, version=version) == (0, -1, -1)


def test_unknown_epochs_and_partitions(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    assert not retried(lambda: wire.produce(name, batch([b"a"]))).error_code
    assert end_of(wire, name, 0, 1) == (code("UNKNOWN_LEADER_EPOCH"), -1, -1)
    assert end_of(wire, name, 0, partition=1) == (code("UNKNOWN_TOPIC_OR_PARTITION"), -1, -1)
    assert end_of(wire, f"{name}-x", 0) == (code("UNKNOWN_TOPIC_OR_PARTITION"), -1, -1)
