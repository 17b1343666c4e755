"""CreateTopics, DeleteTopics, and Metadata that creates missing topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.schema import NO_UUID
from support.servers import Server
from support.wire import Wire, batch, code, retried, until

ME = 1
"""The node id of both servers."""
OF_TOPIC, DEFAULT = 1, 5
LONG_NAME = 249


def wanted(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: dict[int, list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    """Return one topic of a request."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in (assignments or {}).items()
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


def create_all(
    wire: Wire, *topics: CreatableTopic, validate_only: bool = False, version: int | None = None
) -> dict[str, Any]:
    """Return the answers by name; each name is answered once."""
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=validate_only)
    results = wire.call(request, version).topics
    assert len({each.name for each in results}) == len(results)
    return {each.name: each for each in results}


def create(wire: Wire, topic: CreatableTopic, *, validate_only: bool = False, version: int | None = None) -> Any:
    """Return the only answer."""
    return create_all(wire, topic, validate_only=validate_only, version=version)[topic.name]


def metadata(wire: Wire, name: str, *, make: bool = False, version: int = 12) -> Any:
    """Return the topic in Metadata, whatever its error."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=make)
    return wire.call(request, version).topics[0]


def exists(wire: Wire, name: str) -> Any:
    """Wait for the topic."""
    return until(
        lambda: metadata(wire, name),
        lambda found: not found.error_code and not any(each.error_code for each in found.partitions),
        f"{name} is there",
    )


# -- CreateTopics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6, 7])
def test_topic_is_created(wire: Wire, name: str, version: int) -> None:
    answer = create(wire, wanted(name, 2, configs={"retention.ms": "5"}), version=version)
    assert not answer.error_code, answer
    found = exists(wire, name)
    assert sorted(each.partition_index for each in found.partitions) == [0, 1]
    if version >= 5:
        assert (answer.num_partitions, answer.replication_factor, answer.topic_config_error_code) == (2, 1, 0)
        settings = {each.name: (each.value, each.config_source) for each in answer.configs}
        assert settings["retention.ms"] == ("5", OF_TOPIC)
        assert settings["segment.ms"] == ("604800000", DEFAULT)
        assert [each.name for each in answer.configs] == sorted(settings)
    if version >= 7:
        assert answer.topic_id == found.topic_id != NO_UUID


def test_topic_is_created_with_broker_defaults(wire: Wire, name: str) -> None:
    answer = create(wire, wanted(name, -1, -1))
    assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 1, 1)


def test_topic_is_created_with_manual_assignment(wire: Wire, name: str) -> None:
    answer = create(wire, wanted(name, -1, -1, assignments={1: [ME], 0: [ME]}))
    assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 2, 1)
    assert [each.replica_nodes for each in exists(wire, name).partitions] == [[ME]] * 2


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ({"partitions": 0}, "INVALID_PARTITIONS"),
        ({"partitions": -2}, "INVALID_PARTITIONS"),
        ({"factor": 0}, "INVALID_REPLICATION_FACTOR"),
        ({"factor": -2}, "INVALID_REPLICATION_FACTOR"),
        ({"factor": 2}, "INVALID_REPLICATION_FACTOR"),
        ({"partitions": 0, "factor": 0}, "INVALID_REPLICATION_FACTOR"),
        ({"partitions": 10_001}, "POLICY_VIOLATION"),
        ({"assignments": {0: [ME]}}, "INVALID_REQUEST"),
        ({"partitions": -1, "assignments": {0: [ME]}}, "INVALID_REQUEST"),
        ({"partitions": -1, "factor": -1, "assignments": {1: [ME]}}, "INVALID_REPLICA_ASSIGNMENT"),
        ({"partitions": -1, "factor": -1, "assignments": {0: [ME], 2: [ME]}}, "INVALID_REPLICA_ASSIGNMENT"),
        ({"partitions": -1, "factor": -1, "assignments": {0: [17]}}, "INVALID_REPLICA_ASSIGNMENT"),
        ({"partitions": -1, "factor": -1, "assignments": {0: [ME, ME]}}, "INVALID_REPLICA_ASSIGNMENT"),
        ({"partitions": -1, "factor": -1, "assignments": {0: []}}, "INVALID_REPLICA_ASSIGNMENT"),
        ({"configs": {"no.such.setting": "1"}}, "INVALID_CONFIG"),
        ({"configs": {"retention.ms": "-2"}}, "INVALID_CONFIG"),
        ({"configs": {"retention.ms": None}}, "INVALID_CONFIG"),
        ({"partitions": 0, "configs": {"retention.ms": "-2"}}, "INVALID_CONFIG"),
        ({"configs": {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}}, "INVALID_CONFIG"),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_invalid_topics_are_rejected(
    wire: Wire, name: str, topic: dict[str, Any], error: str, validate_only: bool
) -> None:
    answer = create(wire, wanted(name, **topic), validate_only=validate_only)
    assert answer.error_code == code(error)
    assert answer.error_message
    assert metadata(wire, name).error_code == code("UNKNOWN_TOPIC_OR_PARTITION")


@pytest.mark.parametrize("version", [4, 7])
def test_error_message_shortens_a_rejected_setting(wire: Wire, server: Server, name: str, version: int) -> None:
    # DIFFERS[long error messages]: Kafka repeats the whole rejected value, and then cannot encode the message
    refusal = code("INVALID_CONFIG" if server.name == "oncelog" else "UNKNOWN_SERVER_ERROR")
    for key, value in (("x" * 32_760, "1"), ("retention.ms", "x" * 32_760)):
        answer = create(wire, wanted(name, configs={key: value}), version=version)
        assert answer.error_code == refusal
        assert len(answer.error_message or "") < 2000


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a b", "a\x00b", "ä", "a:b", "x" * (LONG_NAME + 1)])
def test_illegal_names(wire: Wire, bad: str) -> None:
    assert create(wire, wanted(bad)).error_code == code("INVALID_TOPIC_EXCEPTION")


def test_longest_name(wire: Wire, server: Server, name: str) -> None:
    longest = name.ljust(LONG_NAME, "x")
    assert not create(wire, wanted(longest)).error_code
    exists(wire, longest)
    assert not retried(lambda: wire.produce(longest, batch([b"x"]))).error_code
    assert not delete(wire, name=longest).error_code


def test_names_that_differ_only_in_dots_and_underscores(wire: Wire, name: str) -> None:
    dotted, underscored = f"{name}.a", f"{name}_a"
    assert not create(wire, wanted(dotted)).error_code
    exists(wire, dotted)
    answer = create(wire, wanted(underscored))
    assert answer.error_code == code("INVALID_TOPIC_EXCEPTION")
    assert dotted in answer.error_message
    assert create(wire, wanted(dotted)).error_code == code("TOPIC_ALREADY_EXISTS")


def test_name_of_kafkas_metadata_log_is_reserved(wire: Wire) -> None:
    assert create(wire, wanted("__cluster_metadata")).error_code == code("INVALID_REQUEST")


def test_validate_only_creates_nothing(wire: Wire, name: str) -> None:
    answer = create(wire, wanted(name, 3, configs={"retention.ms": "5"}), validate_only=True)
    assert (answer.error_code, answer.num_partitions) == (0, 3)
    assert {each.name: each.value for each in answer.configs}["retention.ms"] == "5"
    assert metadata(wire, name).error_code == code("UNKNOWN_TOPIC_OR_PARTITION")
    assert not create(wire, wanted(name)).error_code
    exists(wire, name)
    assert create(wire, wanted(name), validate_only=True).error_code == code("TOPIC_ALREADY_EXISTS")


def test_each_topic_has_its_own_error(wire: Wire, name: str) -> None:
    good, twice, bad = (f"{name}-{each}" for each in ("good", "twice", "bad"))
    answers = create_all(wire, wanted(good), wanted(twice), wanted(bad, 0), wanted(twice, 2))
    assert {topic: each.error_code for topic, each in answers.items()} == {
        good: 0,
        twice: code("INVALID_REQUEST"),
        bad: code("INVALID_PARTITIONS"),
    }
    exists(wire, good)
    assert metadata(wire, twice).error_code == code("UNKNOWN_TOPIC_OR_PARTITION")


def test_too_many_partitions_in_all(wire: Wire, name: str) -> None:
    answers = create_all(wire, wanted(f"{name}-a", 5000), wanted(f"{name}-b", 5001), validate_only=True)
    assert {each.error_code for each in answers.values()} == {code("POLICY_VIOLATION")}
    answers = create_all(wire, wanted(f"{name}-a", 4900), wanted(f"{name}-b", 4900), validate_only=True)
    assert {each.error_code for each in answers.values()} == {0}


@pytest.mark.parametrize("count", [200_000, 2**31 - 1])
@pytest.mark.parametrize("validate_only", [False, True])
def test_negative_count_does_not_offset_a_large_one(wire: Wire, name: str, count: int, validate_only: bool) -> None:
    topics = wanted(f"{name}-a", count), wanted(f"{name}-b", -count)
    answers = create_all(wire, *topics, validate_only=validate_only)
    assert {each.error_code for each in answers.values()} == {code("POLICY_VIOLATION")}


def test_topics_named_twice_are_not_counted(wire: Wire, name: str) -> None:
    twice = wanted(f"{name}-a", 6000)
    answers = create_all(wire, twice, twice, wanted(f"{name}-b"), validate_only=True)
    assert [answers[f"{name}-{each}"].error_code for each in "ab"] == [code("INVALID_REQUEST"), 0]


def test_error_message_shortens_a_rejected_assignment(wire: Wire, name: str) -> None:
    topic = wanted(name, -1, -1, assignments={0: list(range(100_000))})
    answer = create(wire, topic, version=4)
    assert answer.error_code == code("INVALID_REPLICA_ASSIGNMENT")
    assert len(answer.error_message) < 1000


# -- DeleteTopics ------------------------------------------------------------------------------------------------------


def delete_all(wire: Wire, *states: tuple[str | None, UUID], version: int = 6) -> list[Any]:
    """Return the answers in the order of names and ids (Kafka shuffles them)."""
    request = DeleteTopicsRequest(timeout_ms=10_000)
    if version >= 6:
        request.topics = [DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in states]
    else:
        request.topic_names = [name or "" for name, _ in states]
    return sorted(wire.call(request, version).responses, key=lambda each: (each.name or "", each.topic_id))


def delete(wire: Wire, name: str | None = None, topic_id: UUID = NO_UUID, version: int = 6) -> Any:
    """Return the only answer."""
    [answer] = delete_all(wire, (name, topic_id), version=version)
    return answer


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_topic_is_deleted_by_name(wire: Wire, name: str, version: int) -> None:
    wire.create_topic(name)
    answer = delete(wire, name, version=version)
    assert (answer.name, answer.error_code) == (name, 0)
    gone = code("UNKNOWN_TOPIC_OR_PARTITION")
    until(lambda: metadata(wire, name).error_code, lambda found: found == gone, "gone")
    assert delete(wire, name, version=version).error_code == gone


def test_topic_is_deleted_by_id(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name)
    answer = delete(wire, topic_id=topic_id)
    assert (answer.name, answer.topic_id, answer.error_code) == (name, topic_id, 0)
    assert delete(wire, topic_id=topic_id).error_code == code("UNKNOWN_TOPIC_ID")


def test_recreated_topic_is_empty_and_has_another_id(wire: Wire, name: str) -> None:
    before = wire.create_topic(name)
    assert not retried(lambda: wire.produce(name, batch([b"old"]))).error_code
    assert not delete(wire, name).error_code
    until(
        lambda: metadata(wire, name).error_code,
        lambda found: found == code("UNKNOWN_TOPIC_OR_PARTITION"),
        "the topic is deleted",
    )
    after = wire.create_topic(name)
    assert after != before
    assert not retried(lambda: wire.produce(name, batch([b"new"]))).error_code
    assert wire.values(after) == [b"new"]
    assert wire.fetch(before).error_code == code("UNKNOWN_TOPIC_ID")


def test_invalid_deletions_are_rejected(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name)
    refused = code("INVALID_REQUEST")
    assert delete(wire, None).error_code == refused
    assert delete(wire, name, topic_id).error_code == refused
    assert [each.error_code for each in delete_all(wire, (name, NO_UUID), (name, NO_UUID))] == [refused]
    assert [each.error_code for each in delete_all(wire, (None, topic_id), (None, topic_id))] == [refused]
    assert delete(wire, topic_id=uuid4()).error_code == code("UNKNOWN_TOPIC_ID")
    assert exists(wire, name).topic_id == topic_id


def test_each_deletion_has_its_own_error(wire: Wire, name: str) -> None:
    for each in ("a", "b"):
        wire.create_topic(f"{name}-{each}")
    answers = delete_all(wire, (f"{name}-a", NO_UUID), (f"{name}-x", NO_UUID), (f"{name}-b", NO_UUID))
    assert [each.error_code for each in answers] == [0, 0, code("UNKNOWN_TOPIC_OR_PARTITION")]


def test_internal_topics_cannot_be_deleted(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: Kafka would delete them with all offsets and transactions, so the test does not try it."""
    wire.find_coordinator(name)
    if server.name == "oncelog":
        assert delete(wire, "__transaction_state").error_code == code("INVALID_REQUEST")
    found = exists(wire, "__transaction_state")
    assert found.is_internal


# -- Metadata ----------------------------------------------------------------------------------------------------------


def test_metadata_creates_missing_topics(wire: Wire, name: str) -> None:
    assert metadata(wire, name).error_code == code("UNKNOWN_TOPIC_OR_PARTITION")
    assert metadata(wire, name, make=True).error_code in {
        0,
        code("UNKNOWN_TOPIC_OR_PARTITION"),
        code("LEADER_NOT_AVAILABLE"),
    }
    assert len(exists(wire, name).partitions) == 1
    assert not retried(lambda: wire.produce(name, batch([b"x"]))).error_code


@pytest.mark.parametrize("bad", ["a/b", "..", "x" * (LONG_NAME + 1)])
def test_metadata_creates_no_illegal_names(wire: Wire, bad: str) -> None:
    assert metadata(wire, bad, make=True).error_code == code("INVALID_TOPIC_EXCEPTION")


def test_metadata_describes_a_topic_once(wire: Wire, name: str) -> None:
    wire.create_topic(name, 3)
    exists(wire, name)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)] * 5)
    assert [each.name for each in wire.call(request, 12).topics] == [name]


def test_metadata_creates_at_most_as_many_partitions_as_a_request_may(
    start_server: Callable[..., Server], name: str
) -> None:
    with Wire(start_server({"num.partitions": "5001"}).bootstrap) as wire:
        topics = [MetadataRequestTopic(name=f"{name}-{each}") for each in "ab"]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=True)
        unknown = code("UNKNOWN_TOPIC_OR_PARTITION")
        assert [each.error_code for each in wire.call(request, 12).topics] == [unknown] * 2
        wire.create_topic(f"{name}-c")  # a later change is visible, so an earlier one would be, too
        assert [each.error_code for each in wire.call(MetadataRequest(topics=topics), 12).topics] == [unknown] * 2


def test_metadata_of_a_colliding_name(wire: Wire, name: str) -> None:
    wire.create_topic(f"{name}.a")
    found = metadata(wire, f"{name}_a", make=True)
    assert found.error_code in {code("INVALID_TOPIC_EXCEPTION"), code("UNKNOWN_TOPIC_OR_PARTITION")}
    assert metadata(wire, f"{name}_a").error_code


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_metadata_by_id(wire: Wire, name: str, version: int) -> None:
    topic_id = wire.create_topic(name)

    def asked(wanted_id: UUID) -> Any:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=wanted_id)])
        return wire.call(request, version).topics[0]

    if version >= 12:
        found = asked(topic_id)
        assert (found.error_code, found.name, found.topic_id) == (0, name, topic_id)
        assert asked(uuid4()).error_code == code("UNKNOWN_TOPIC_ID")
    else:
        assert metadata(wire, name, version=version).topic_id == topic_id


@pytest.mark.parametrize("version", [12, 13])
def test_ids_in_a_metadata_request_take_precedence_over_names(wire: Wire, name: str, version: int) -> None:
    """If one topic is given by its id, all names are ignored. Java's client sends ids with empty names."""
    first, second = (wire.create_topic(f"{name}-{each}") for each in "ab")

    def asked(*topics: tuple[str | None, UUID]) -> set[tuple[str | None, UUID, int]]:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=each, topic_id=one) for each, one in topics])
        answer = wire.call(request, version)
        return {(each.name, each.topic_id, each.error_code) for each in answer.topics}

    missing = uuid4()
    of_first = (f"{name}-a", first, 0)
    assert asked(("", first), ("", missing)) == {of_first, (None, missing, code("UNKNOWN_TOPIC_ID"))}
    assert asked((f"{name}-b", first), (None, first)) == {of_first}
    assert asked((f"{name}-b", NO_UUID), ("", first), (f"{name}-c", NO_UUID)) == {of_first}
    assert asked((f"{name}-b", NO_UUID)) == {(f"{name}-b", second, 0)}
