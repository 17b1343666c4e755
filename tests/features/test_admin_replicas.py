"""Elections and reassignments on one broker, whose partitions have one replica each (KIP-183, 455, 460, 860)."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopic
from oncelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopic,
)
from support.wire import Wire

ME = 1
"""The node id of both servers."""
NOT_NEEDED = (ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
ELECTIONS = pytest.mark.parametrize(
    ("version", "election_type"),
    [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)],
    ids=["v0", "v1-preferred", "v1-unclean", "v2-preferred", "v2-unclean"],
)


def elections(answer: Any) -> list[tuple[str, list[tuple[int, int, str | None]]]]:
    """Return an answer to ElectLeaders as plain values."""
    return [
        (topic.topic, [(each.partition_id, each.error_code, each.error_message) for each in topic.partition_result])
        for topic in answer.replica_election_results
    ]


@ELECTIONS
def test_partition_with_a_leader_needs_no_election(wire: Wire, name: str, version: int, election_type: int) -> None:
    wire.create_topic(name, 2)
    topics = [
        ElectLeadersTopic(topic=name, partitions=[0, 1, 5, -1]),
        ElectLeadersTopic(topic=f"{name}-missing", partitions=[0]),
    ]
    answer = wire.call(ElectLeadersRequest(election_type=election_type, topic_partitions=topics), version)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not answer.error_code
    assert elections(answer) == [
        (
            name,
            [
                (0, *NOT_NEEDED),
                (1, *NOT_NEEDED),
                (5, unknown, f"No such partition as {name}-5"),
                (-1, unknown, f"No such partition as {name}--1"),
            ],
        ),
        (f"{name}-missing", [(0, unknown, f"No such topic as {name}-missing")]),
    ]


@ELECTIONS
def test_election_of_all_omits_partitions_with_a_leader(
    wire: Wire, name: str, version: int, election_type: int
) -> None:
    wire.create_topic(name, 2)
    answer = wire.call(ElectLeadersRequest(election_type=election_type, topic_partitions=None), version)
    assert not answer.error_code
    assert (name, []) in elections(answer)
    assert not any(partitions for _, partitions in elections(answer))


def test_election_of_no_partitions(wire: Wire) -> None:
    answer = wire.call(ElectLeadersRequest(election_type=7, topic_partitions=[], timeout_ms=0))
    assert (answer.error_code, answer.replica_election_results) == (0, [])


@pytest.mark.parametrize("version", [1, 2])
def test_unknown_election_type_is_rejected(wire: Wire, name: str, version: int) -> None:
    topics = [ElectLeadersTopic(topic=name, partitions=[0])]
    answer = wire.call(ElectLeadersRequest(election_type=2, topic_partitions=topics), version)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert elections(answer) == [(name, [(0, ErrorCode.INVALID_REQUEST, "Unknown election type 2")])]


def test_election_with_timeout_zero_times_out(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    topics = [ElectLeadersTopic(topic=name, partitions=[0])]
    answer = wire.call(ElectLeadersRequest(topic_partitions=topics, timeout_ms=0))
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    [(_, [(index, code, _)])] = elections(answer)
    assert (index, code) == (0, ErrorCode.REQUEST_TIMED_OUT)


def test_no_reassignment_is_listed(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    topics = [
        ListPartitionReassignmentsTopic(name=name, partition_indexes=[0, 9]),
        ListPartitionReassignmentsTopic(name=f"{name}-missing", partition_indexes=[0]),
    ]
    for wanted in (None, [], topics):
        answer = wire.call(ListPartitionReassignmentsRequest(topics=wanted))
        assert (answer.error_code, answer.topics) == (0, [])


def reassign(wire: Wire, request: AlterPartitionReassignmentsRequest, version: int) -> list[tuple[str, int, int, Any]]:
    """Return the answers as (topic, partition, error, message)."""
    answer = wire.call(request, version)
    assert not answer.error_code
    return [
        (topic.name, each.partition_index, each.error_code, each.error_message)
        for topic in answer.responses
        for each in topic.partitions
    ]


@pytest.mark.parametrize(("version", "change"), [(0, True), (1, True), (1, False)])
def test_partition_can_be_reassigned_to_its_own_replicas(wire: Wire, name: str, version: int, change: bool) -> None:
    wire.create_topic(name, 2)
    missing = f"{name}-missing"
    here = [ReassignablePartition(partition_index=index, replicas=[ME]) for index in (0, 1, 7)]
    topics = [ReassignableTopic(name=name, partitions=here), ReassignableTopic(name=missing, partitions=here[:1])]
    request = AlterPartitionReassignmentsRequest(topics=topics, allow_replication_factor_change=change)
    assert reassign(wire, request, version) == [
        (name, 0, 0, None),
        (name, 1, 0, None),
        (name, 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:7."),
        (missing, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {missing}."),
    ]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("replicas", "what"),
    [
        ([], "an empty replica list."),
        ([2], "broker 2, but no such broker is registered."),
        ([ME, 2], "broker 2, but no such broker is registered."),
        ([ME, ME], "the broker 1 more than once."),
        ([2, ME, ME], "the broker 1 more than once."),
        ([-1], "broker -1, but no such broker is registered."),
    ],
)
def test_other_replicas_are_rejected(wire: Wire, name: str, version: int, replicas: list[int], what: str) -> None:
    wire.create_topic(name)
    wanted = [ReassignablePartition(partition_index=0, replicas=replicas)]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=wanted)])
    message = f"The manual partition assignment includes {what}"
    assert reassign(wire, request, version) == [(name, 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)]


def test_cancelling_a_reassignment_that_is_not_in_progress_fails(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wanted = [ReassignablePartition(partition_index=0, replicas=None)]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=wanted)])
    [(_, _, code, _)] = reassign(wire, request, 1)
    assert code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_reassignment_with_timeout_zero_times_out(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wanted = [ReassignablePartition(partition_index=0, replicas=[ME])]
    topics = [ReassignableTopic(name=name, partitions=wanted)]
    answer = wire.call(AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=0))
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert answer.responses[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert not wire.call(AlterPartitionReassignmentsRequest(topics=[], timeout_ms=0)).error_code
