"""How long a change of topics may wait for its turn: `timeout_ms` of CreateTopics, CreatePartitions and DeleteTopics.

Source: Kafka's `ControllerRequestContext` and `KafkaEventQueue`. The deadline applies until the change starts. A
request whose deadline has passed is rejected as a whole, whatever else is wrong with it.
"""

from __future__ import annotations

import pytest

from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.wire import Wire, code

TIMED_OUT = code("REQUEST_TIMED_OUT")
OVER = [0, -1, -(2**31)]


def partition_count(wire: Wire, name: str) -> int:
    """Return the number of partitions of the topic, or 0 if it does not exist."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    [found] = wire.call(request, 12).topics
    return len(found.partitions)


def wanted(name: str, partitions: int = 1) -> CreatableTopic:
    """Return one topic of CreateTopics."""
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)


@pytest.mark.parametrize("timeout_ms", OVER)
def test_topics_are_not_created_after_the_timeout(wire: Wire, name: str, timeout_ms: int) -> None:
    topics = [wanted(name), wanted(f"{name}-none", 0), wanted("a/b")]
    answer = wire.call(CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms))
    assert {each.name: each.error_code for each in answer.topics} == {
        name: TIMED_OUT,
        f"{name}-none": TIMED_OUT,
        "a/b": TIMED_OUT,
    }
    validated = wire.call(CreateTopicsRequest(topics=[wanted(name)], timeout_ms=timeout_ms, validate_only=True))
    assert [each.error_code for each in validated.topics] == [TIMED_OUT]
    wire.create_topic(f"{name}-after")  # changes are made in order: the previous one can no longer happen
    assert partition_count(wire, name) == 0


@pytest.mark.parametrize("timeout_ms", OVER)
def test_partitions_are_not_added_after_the_timeout(wire: Wire, name: str, timeout_ms: int) -> None:
    wire.create_topic(name)
    grown = [CreatePartitionsTopic(name=name, count=3, assignments=None)]
    grown.append(CreatePartitionsTopic(name=f"{name}-missing", count=3, assignments=None))
    answer = wire.call(CreatePartitionsRequest(topics=grown, timeout_ms=timeout_ms))
    assert {each.name: each.error_code for each in answer.results} == {name: TIMED_OUT, f"{name}-missing": TIMED_OUT}
    wire.create_topic(f"{name}-after")
    assert partition_count(wire, name) == 1


@pytest.mark.parametrize("timeout_ms", OVER)
def test_topics_are_not_deleted_after_the_timeout(wire: Wire, name: str, timeout_ms: int) -> None:
    topic_id = wire.create_topic(name)
    missing = f"{name}-missing"
    doomed = [DeleteTopicState(name=name), DeleteTopicState(name=missing)]
    answer = wire.call(DeleteTopicsRequest(topics=doomed, timeout_ms=timeout_ms))
    assert {each.name: each.error_code for each in answer.responses} == {name: TIMED_OUT, missing: TIMED_OUT}
    by_id = wire.call(DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=timeout_ms))
    assert [(each.topic_id, each.error_code) for each in by_id.responses] == [(topic_id, TIMED_OUT)]
    by_name = wire.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=timeout_ms), 5)
    assert [(each.name, each.error_code) for each in by_name.responses] == [(name, TIMED_OUT)]
    wire.create_topic(f"{name}-after")
    assert partition_count(wire, name) == 1


def test_request_without_valid_items_does_not_time_out(wire: Wire, name: str) -> None:
    """Requests without any valid item are answered at once, with the error of each item."""
    twice = wire.call(CreateTopicsRequest(topics=[wanted(name), wanted(name)], timeout_ms=0))
    assert {(each.name, each.error_code) for each in twice.topics} == {(name, code("INVALID_REQUEST"))}
    reserved = wire.call(CreateTopicsRequest(topics=[wanted("__cluster_metadata")], timeout_ms=0))
    assert [each.error_code for each in reserved.topics] == [code("INVALID_REQUEST")]
    grown = CreatePartitionsTopic(name=name, count=3, assignments=None)
    twice = wire.call(CreatePartitionsRequest(topics=[grown, grown], timeout_ms=0))
    assert {(each.name, each.error_code) for each in twice.results} == {(name, code("INVALID_REQUEST"))}
    doomed = DeleteTopicState(name=name)
    twice = wire.call(DeleteTopicsRequest(topics=[doomed, doomed], timeout_ms=0))
    assert {(each.name, each.error_code) for each in twice.responses} == {(name, code("INVALID_REQUEST"))}
    assert wire.call(CreateTopicsRequest(topics=[], timeout_ms=0)).topics == []


def test_timeout_of_one_millisecond_reports_the_outcome(wire: Wire, name: str) -> None:
    answer = wire.call(CreateTopicsRequest(topics=[wanted(name)], timeout_ms=1)).topics[0]
    assert answer.error_code in {0, TIMED_OUT}
    wire.create_topic(f"{name}-after")
    assert partition_count(wire, name) == (0 if answer.error_code else 1)
