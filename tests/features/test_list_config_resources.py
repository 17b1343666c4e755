"""ListConfigResources: the objects that have settings (KIP-1142)."""

from __future__ import annotations

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.list_config_resources import ListConfigResourcesRequest
from support.wire import Wire

UNKNOWN_TYPE = 3


def listed(wire: Wire, *types: int) -> set[tuple[int, str]]:
    """Return the listed resources as (type, name)."""
    answer = wire.call(ListConfigResourcesRequest(resource_types=list(types)), 1)
    assert answer.error_code == 0
    found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
    assert len(found) == len(set(found))
    return set(found)


@pytest.fixture
def topic(wire: Wire, name: str) -> str:
    wire.create_topic(name)
    return name


def brokers(wire: Wire, kind: ResourceType) -> set[tuple[int, str]]:
    """Return a resource of this type for each running broker."""
    return {(kind, str(each.broker_id)) for each in wire.call(DescribeClusterRequest()).brokers}


def test_each_type_can_be_listed_alone(wire: Wire, topic: str) -> None:
    topics = listed(wire, ResourceType.TOPIC)
    assert (ResourceType.TOPIC, topic) in topics
    assert {kind for kind, _ in topics} == {ResourceType.TOPIC}
    assert listed(wire, ResourceType.BROKER) == brokers(wire, ResourceType.BROKER) != set()
    assert listed(wire, ResourceType.BROKER_LOGGER) == brokers(wire, ResourceType.BROKER_LOGGER)
    assert listed(wire, ResourceType.CLIENT_METRICS) == set()


def test_request_without_types_lists_all_types(wire: Wire, topic: str) -> None:
    found = listed(wire)
    assert (ResourceType.TOPIC, topic) in found
    assert found >= brokers(wire, ResourceType.BROKER) | brokers(wire, ResourceType.BROKER_LOGGER)


def test_repeated_type_is_listed_once(wire: Wire) -> None:
    assert listed(wire, ResourceType.BROKER, ResourceType.BROKER) == brokers(wire, ResourceType.BROKER)


def test_unknown_type_is_an_error(wire: Wire) -> None:
    answer = wire.call(ListConfigResourcesRequest(resource_types=[ResourceType.BROKER, UNKNOWN_TYPE]), 1)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


def test_version_0_lists_client_metrics_only(wire: Wire) -> None:
    answer = wire.call(ListConfigResourcesRequest(), 0)
    assert (answer.error_code, answer.config_resources) == (0, [])
