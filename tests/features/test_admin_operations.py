"""Authorized operations of topics, groups and the cluster (KIP-430): all of them without an authorizer.

Source: Kafka's `AuthHelper.authorizedOperations`, `AclEntry.supportedOperations`; bits are numbers of `AclOperation`.
"""

from __future__ import annotations

from uuid import uuid4

import pytest

from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.wire import Wire, code, retried

NOT_ASKED = -(2**31)
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(3, 10)
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(10, 13)
OF_TOPIC = {READ, WRITE, CREATE, DESCRIBE, DELETE, ALTER, DESCRIBE_CONFIGS, ALTER_CONFIGS}
OF_GROUP = {READ, DESCRIBE, DELETE, DESCRIBE_CONFIGS, ALTER_CONFIGS}
OF_CLUSTER = {CREATE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, ALTER, DESCRIBE}


def operations(field: int) -> set[int]:
    """Return the operations in a bit field."""
    assert field != NOT_ASKED
    return {bit for bit in range(32) if field >> bit & 1}


@pytest.mark.parametrize("version", [8, 10, 11, 12, 13])
def test_authorized_operations_of_topics(wire: Wire, name: str, version: int) -> None:
    """A missing topic has them, too, and so has each topic in a request for all."""
    wire.create_topic(name)
    names = [MetadataRequestTopic(name=each) for each in (name, f"{name}-missing")]
    for topics in (names, names[:1], None):
        request = MetadataRequest(
            topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=True
        )
        answer = wire.call(request, version)
        assert {each.name for each in answer.topics} >= {each.name for each in topics or names[:1]}
        for each in answer.topics:
            assert operations(each.topic_authorized_operations) == OF_TOPIC
        assert answer.cluster_authorized_operations == NOT_ASKED


def test_authorized_operations_of_topics_by_id(wire: Wire, name: str) -> None:
    """An unknown topic id has no operations."""
    topic_id, unknown = wire.create_topic(name), uuid4()
    topics = [MetadataRequestTopic(name=None, topic_id=each) for each in (topic_id, unknown)]
    answer = wire.call(MetadataRequest(topics=topics, include_topic_authorized_operations=True), 12)
    by_id = {each.topic_id: each for each in answer.topics}
    assert operations(by_id[topic_id].topic_authorized_operations) == OF_TOPIC
    assert by_id[unknown].error_code == code("UNKNOWN_TOPIC_ID")
    assert by_id[unknown].topic_authorized_operations == NOT_ASKED


@pytest.mark.parametrize("version", [8, 9, 10])
def test_authorized_operations_of_the_cluster_in_metadata(wire: Wire, version: int) -> None:
    answer = wire.call(MetadataRequest(topics=[], include_cluster_authorized_operations=True), version)
    assert operations(answer.cluster_authorized_operations) == OF_CLUSTER


def test_authorized_operations_of_the_cluster(wire: Wire) -> None:
    low, high = wire.versions[DescribeClusterRequest.API_KEY]
    for version in range(low, min(high, DescribeClusterRequest.MAX_VERSION) + 1):
        answer = wire.call(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
        assert operations(answer.cluster_authorized_operations) == OF_CLUSTER
        answer = wire.call(DescribeClusterRequest(), version)
        assert answer.cluster_authorized_operations == NOT_ASKED


def test_authorized_operations_of_groups(wire: Wire, name: str) -> None:
    """Before version 6, a missing group is a dead one without an error, and has operations."""
    wire.find_coordinator(name, 0)
    request = DescribeGroupsRequest(groups=[name], include_authorized_operations=True)
    retried(lambda: wire.call(request), lambda answer: answer.groups[0].error_code)
    for version in (3, 5, 6):
        [found] = wire.call(request, version).groups
        assert found.error_code == (code("GROUP_ID_NOT_FOUND") if version >= 6 else 0)
        if found.error_code:
            assert found.authorized_operations == NOT_ASKED
        else:
            assert operations(found.authorized_operations) == OF_GROUP


def test_authorized_operations_are_omitted_unless_requested(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    answer = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 10)
    assert answer.topics[0].topic_authorized_operations == answer.cluster_authorized_operations == NOT_ASKED


@pytest.mark.parametrize(("kind", "error"), [(0, "UNSUPPORTED"), (2, "MISMATCHED"), (3, "UNSUPPORTED")])
def test_other_endpoints_are_not_described(wire: Wire, kind: int, error: str) -> None:
    answer = wire.call(DescribeClusterRequest(endpoint_type=kind, include_cluster_authorized_operations=True), 1)
    assert answer.error_code == code(f"{error}_ENDPOINT_TYPE")
    assert answer.brokers == []
    assert answer.cluster_authorized_operations == NOT_ASKED
