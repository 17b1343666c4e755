"""Security and replica requests of other libraries' admin clients, on a broker that has neither."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ResourcePatternFilter
from kafka.admin import ACLResourcePatternType as PatternType
from kafka.admin import ResourceType as KafkaPythonResource
from kafka.errors import SecurityDisabledError
from kafka.structs import TopicPartition as KafkaPythonPartition

from support.clients.confluent import ConfluentClient
from support.servers import Server

EVERY_ACL = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
ONE_ACL = AclBinding(
    ResourceType.TOPIC, "any", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW
)


@pytest.fixture
def librdkafka(server: Server) -> AdminClient:
    """The admin client of confluent-kafka."""
    return AdminClient({"bootstrap.servers": server.bootstrap})


def error_of(future: Future[Any]) -> str:
    """Return the name of the error that a call raises."""
    with pytest.raises(KafkaException) as refused:
        future.result(30)
    return str(refused.value.args[0].name()).lstrip("_")


def test_librdkafka_gets_security_disabled(librdkafka: AdminClient) -> None:
    """librdkafka drops the error of DescribeAcls."""
    assert librdkafka.describe_acls(EVERY_ACL).result(30) == []
    assert error_of(librdkafka.create_acls([ONE_ACL])[ONE_ACL]) == "SECURITY_DISABLED"
    assert error_of(librdkafka.delete_acls([EVERY_ACL])[EVERY_ACL]) == "SECURITY_DISABLED"


def test_librdkafka_lists_no_users(librdkafka: AdminClient) -> None:
    everyone = librdkafka.describe_user_scram_credentials()
    assert isinstance(everyone, Future)
    assert everyone.result(30) == {}
    one = librdkafka.describe_user_scram_credentials(["a"])
    assert isinstance(one, dict)
    assert error_of(one["a"]) == "RESOURCE_NOT_FOUND"


def test_librdkafka_elects_no_leader(server: Server, librdkafka: AdminClient, name: str) -> None:
    ConfluentClient(server.bootstrap).create_topic(name, 1)
    found = librdkafka.elect_leaders(ElectionType.PREFERRED, [TopicPartition(name, 0)]).result(30)
    [error] = found.values()
    assert error.name() == "ELECTION_NOT_NEEDED"


def test_kafka_python_asks_for_replicas_and_security(server: Server, name: str) -> None:
    ConfluentClient(server.bootstrap).create_topic(name, 1)
    partition = KafkaPythonPartition(name, 0)
    client = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    try:
        client.elect_leaders(0, {name: [0]})
        assert client.alter_partition_reassignments({partition: [1]}) == {partition: None}
        assert client.list_partition_reassignments([partition]) == {}
        assert client.describe_user_scram_credentials() == {}
        everything = ResourcePatternFilter(KafkaPythonResource.ANY, None, PatternType.ANY)
        with pytest.raises(SecurityDisabledError, match="No Authorizer is configured on the broker"):
            client.describe_acls(ACLFilter(None, "*", ACLOperation.ANY, ACLPermissionType.ANY, everything))
    finally:
        client.close()
