"""The table of permissions (I12): for each API and version, the outcome without and with each permission.

`support.permission_table` has the requests and the ACLs, `support.permission_outcomes` the outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from oncelog.broker.requests.apis import SERVED
from oncelog.protocol.apis import messages
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.create_acls import CreateAclsRequest
from oncelog.protocol.messages.delete_acls import DeleteAclsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.permission_outcomes import OUTCOMES
from support.permission_rows import GONE, OPEN, SHUT, Row
from support.permission_setup import prepared
from support.permission_table import NOT_IN_TABLE, rows
from support.permissions import CLUSTER_NAME, Grant, GuardedServer, built, grant, outcome, revoke
from support.wire import Wire, batch, until

ROWS = {row.name: row for row in rows()}
TOPIC, GROUP, CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE

GUARDED_SETTINGS = {"transaction.two.phase.commit.enable": "true"}


class Guarded(NamedTuple):
    """A server with the table's objects, a connection of the administrator, and one of the client."""

    administrator: Wire
    client: Wire
    ids: Mapping[str, UUID]


@pytest.fixture(scope="module")
def ids(guarded: GuardedServer) -> Mapping[str, UUID]:
    with guarded.administrator() as administrator:
        return prepared(administrator)


@pytest.fixture
def two(guarded: GuardedServer, ids: Mapping[str, UUID]) -> Iterator[Guarded]:
    with guarded.administrator() as administrator, guarded.client() as client:
        yield Guarded(administrator, client, ids)


@pytest.fixture
def permit(two: Guarded) -> Iterator[Any]:
    """Grant ACLs until the end of the test."""
    granted: list[Grant] = []

    def permit(*grants: Grant) -> None:
        grant(two.administrator, grants)
        granted.extend(grants)

    yield permit
    revoke(two.administrator, granted)


def versions(row: Row, client: Wire) -> range:
    served = SERVED[row.api]
    low, high = client.versions.get(row.api, (served.min_version, served.max_version))
    return range(max(low, served.min_version, row.from_version), min(high, served.max_version, row.up_to) + 1)


def outcomes(row: Row, two: Guarded) -> dict[int, str]:
    request, _ = messages(row.api)
    names = {topic_id: name for name, topic_id in two.ids.items()}
    return {
        version: outcome(two.client.call(built(request, row.fields(version, two.ids)), version), names)
        for version in versions(row, two.client)
    }


def expected(lines: Mapping[str, str]) -> dict[int, str]:
    found = {}
    for family, line in lines.items():
        low, _, high = family.partition("-")
        found |= dict.fromkeys(range(int(low), int(high or low) + 1), line)
    return found


def served(outcomes: Mapping[int, str], versions: range) -> dict[int, str]:
    """Return the outcomes of the versions that the server has: Apache Kafka 4.3 has no InitProducerId v6."""
    return {version: line for version, line in outcomes.items() if version in versions}


def denied(grants: Iterable[Grant], operation: AclOperation) -> tuple[Grant, ...]:
    """Return ACLs that deny an operation on the resources of other ACLs."""
    return tuple(each._replace(permission=AclPermission.DENY, operation=operation) for each in grants)


def test_each_api_is_in_the_table() -> None:
    assert {row.api for row in ROWS.values()} | set(NOT_IN_TABLE) == set(SERVED)
    assert set(ROWS) == set(OUTCOMES)


@pytest.mark.parametrize("name", ROWS)
def test_outcome_without_and_with_each_permission(two: Guarded, permit: Any, name: str) -> None:
    row = ROWS[name]
    without, allowed = (served(expected(lines), versions(row, two.client)) for lines in OUTCOMES[name])
    permit(*row.given)
    assert outcomes(row, two) == without
    grant(two.administrator, row.insufficient)
    assert outcomes(row, two) == without, row.insufficient
    for grants in row.sufficient:
        grant(two.administrator, grants)
        assert outcomes(row, two) == allowed, grants
        denying = denied(grants, row.denied)
        grant(two.administrator, denying)
        assert outcomes(row, two) == without, denying
        revoke(two.administrator, (*grants, *denying))
    revoke(two.administrator, row.insufficient)
    assert outcomes(row, two) == without


def all_operations(field: int) -> set[AclOperation]:
    assert field >= 0, field
    return {operation for operation in AclOperation if field & 1 << operation}


def test_authorized_operations_are_those_of_the_client(two: Guarded, permit: Any) -> None:
    """KIP-430. Without DESCRIBE, there are none."""
    client = two.client

    def operations() -> tuple[set[AclOperation], ...]:
        topics = client.call(
            MetadataRequest(
                topics=[MetadataRequestTopic(name=OPEN)],
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            ),
            9,
        )
        pages = client.call(DescribeTopicPartitionsRequest(topics=[TopicRequest(name=OPEN)]))
        groups = client.call(DescribeGroupsRequest(groups=[OPEN], include_authorized_operations=True))
        cluster = client.call(DescribeClusterRequest(include_cluster_authorized_operations=True))
        of_topic = topics.topics[0].topic_authorized_operations
        assert pages.topics[0].topic_authorized_operations == of_topic
        of_cluster = topics.cluster_authorized_operations
        assert cluster.cluster_authorized_operations == of_cluster
        return tuple(map(all_operations, (of_topic, groups.groups[0].authorized_operations, of_cluster)))

    configs = {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}
    of_topic = {READ, DESCRIBE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.CREATE, *configs}
    of_group = {READ, DESCRIBE, AclOperation.DELETE, *configs}
    assert operations() == (of_topic, of_group, set())
    permit(Grant(AclOperation.ALTER, CLUSTER))
    assert operations() == (of_topic, of_group, {AclOperation.ALTER, DESCRIBE})
    permit(
        Grant(AclOperation.ALTER_CONFIGS, TOPIC, OPEN, AclPermission.DENY), Grant(READ, GROUP, OPEN, AclPermission.DENY)
    )
    narrowed = of_topic - {AclOperation.ALTER_CONFIGS}
    assert operations() == (narrowed, of_group - {READ}, {AclOperation.ALTER, DESCRIBE})
    permit(Grant(AclOperation.ALL, TOPIC, "*"))
    assert operations()[0] == narrowed | {WRITE}, "DENY comes before ALLOW of all topics"


def test_missing_topics_look_like_forbidden_ones(two: Guarded) -> None:
    """Every row that names a forbidden and a missing topic has the same error for both, if it names no ids."""
    compared = 0
    for row in ROWS.values():
        for line in expected(OUTCOMES[row.name][0]).values():
            errors = dict(part.split("=") for part in line.split())
            if {SHUT, GONE} <= set(errors) and errors[GONE] != "UNKNOWN_TOPIC_ID":
                assert errors[SHUT] == errors[GONE], row.name
                compared += 1
    assert compared > 50
    hidden = two.client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in (SHUT, GONE)]), 12)
    shut, gone = sorted(hidden.topics, key=lambda topic: topic.name, reverse=True)
    assert (shut.topic_id, shut.partitions, shut.is_internal) == (gone.topic_id, gone.partitions, gone.is_internal)


def deleted(wire: Wire, **topic: Any) -> tuple[str | None, int]:
    answer = wire.call(DeleteTopicsRequest(topics=[DeleteTopicState(**topic)], timeout_ms=10_000))
    return answer.responses[0].name, answer.responses[0].error_code


def test_topic_id_shows_the_name_only_to_who_may_describe_the_topic(two: Guarded, permit: Any) -> None:
    wanted: dict[str, Any] = {"name": None, "topic_id": two.ids[SHUT]}
    assert deleted(two.client, **wanted) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    permit(Grant(DESCRIBE, TOPIC, SHUT))
    assert deleted(two.client, **wanted) == (SHUT, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("allowing", [Grant(AclOperation.DELETE, TOPIC, "doomed"), Grant(AclOperation.DELETE, CLUSTER)])
def test_topic_is_deleted_with_permission(two: Guarded, permit: Any, allowing: Grant) -> None:
    two.administrator.create_topic("doomed")
    permit(allowing)
    assert deleted(two.client, name="doomed") == ("doomed", 0)


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        (PatternType.LITERAL, "shut", True),
        (PatternType.LITERAL, "*", True),
        (PatternType.LITERAL, "shu", False),
        (PatternType.LITERAL, "shut.", False),
        (PatternType.LITERAL, "Shut", False),
        (PatternType.PREFIXED, "s", True),
        (PatternType.PREFIXED, "shut", True),
        (PatternType.PREFIXED, "shut.", False),
        (PatternType.PREFIXED, "hut", False),
        (PatternType.PREFIXED, "*", False),
    ],
)
def test_names_of_acls_select_topics(two: Guarded, permit: Any, pattern: PatternType, name: str, allowed: bool) -> None:
    permit(Grant(DESCRIBE, TOPIC, name, pattern=pattern))
    found = two.client.call(MetadataRequest(topics=[MetadataRequestTopic(name=SHUT)]), 9).topics[0].error_code
    assert found == (0 if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize(
    ("principal", "host", "allowed"),
    [
        ("User:ANONYMOUS", "*", True),
        ("User:*", "127.0.0.1", True),
        ("User:*", "*", True),
        ("User:ANONYMOUS", "127.0.0.9", False),
        ("User:ANONYMOUS", "127.0.0.0/8", False),
        ("User:anonymous", "*", False),
        ("User:A*", "*", False),
        ("Group:*", "*", False),
    ],
)
def test_principals_and_hosts_are_compared_exactly(
    two: Guarded, permit: Any, principal: str, host: str, allowed: bool
) -> None:
    permit(Grant(DESCRIBE, TOPIC, SHUT, principal=principal, host=host))
    found = two.client.call(MetadataRequest(topics=[MetadataRequestTopic(name=SHUT)]), 9).topics[0].error_code
    assert found == (0 if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def test_no_client_adds_an_internal_topic_to_a_transaction(two: Guarded) -> None:
    answer = two.administrator.call(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=OPEN,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="__consumer_offsets", partitions=[0])],
        ),
        3,
    )
    found = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
    assert found.partition_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def without_id(wire: Wire) -> int:
    code: int = wire.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)).error_code
    return code


def test_denied_patterns_outweigh_allowed_ones_for_idempotent_producers(two: Guarded, permit: Any) -> None:
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    deny = AclPermission.DENY
    permit(Grant(AclOperation.ALTER, TOPIC, "a"), Grant(READ, TOPIC, "a"))
    assert without_id(two.client) == refused, "nothing implies WRITE"
    permit(Grant(WRITE, TOPIC, "ab", pattern=PatternType.PREFIXED))
    assert without_id(two.client) == 0
    permit(Grant(WRITE, TOPIC, "ab", deny))
    assert without_id(two.client) == 0, "other names have the prefix"
    permit(Grant(WRITE, TOPIC, "a", deny, PatternType.PREFIXED))
    assert without_id(two.client) == refused, "the shorter prefix includes the longer one"
    permit(Grant(WRITE, TOPIC, "b"))
    assert without_id(two.client) == 0
    permit(Grant(WRITE, TOPIC, "*", deny))
    assert without_id(two.client) == refused
    permit(Grant(AclOperation.IDEMPOTENT_WRITE, CLUSTER))
    assert without_id(two.client) == 0


def test_next_fetch_of_a_session_notices_a_deleted_acl(two: Guarded, permit: Any) -> None:
    granted = Grant(READ, TOPIC, SHUT)
    permit(Grant(DESCRIBE, TOPIC, SHUT))
    grant(two.administrator, [granted])

    def fetch(session: int, epoch: int, *, named: bool) -> Any:
        partition = FetchPartition(partition=0, fetch_offset=10**6 if named else 0, partition_max_bytes=1000)
        topics = [FetchTopic(topic_id=two.ids[SHUT], partitions=[partition])] if named else []
        return two.client.call(
            FetchRequest(session_id=session, session_epoch=epoch, max_wait_ms=0, max_bytes=1000, topics=topics)
        )

    first = fetch(0, 0, named=True)
    assert first.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    revoke(two.administrator, [granted])
    found = fetch(first.session_id, 1, named=False).responses[0].partitions[0]
    assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_fetch_that_waits_while_its_acl_is_deleted(guarded: GuardedServer, two: Guarded) -> None:
    """DIFFERS: Kafka checks at the beginning of a Fetch, and returns the record. oncelog also checks at its end."""
    topic_id = two.administrator.create_topic("watched")
    granted = Grant(READ, TOPIC, "watched")
    grant(two.administrator, [granted])
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        session_epoch=-1,
        max_wait_ms=60_000,
        min_bytes=1,
        max_bytes=1000,
        topics=[FetchTopic(topic_id=topic_id, partitions=[partition])],
    )
    version = two.client.send(request)
    revoke(two.administrator, [granted])
    two.administrator.produce("watched", batch([b"secret"]))
    found = two.client.receive(request, version).responses[0].partitions[0]
    if guarded.name == "oncelog":
        assert (found.error_code, bytes(found.records or b"")) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
    else:
        assert found.error_code == 0
        assert b"secret" in bytes(found.records)


def test_invalid_acls_have_the_messages_of_kafka(two: Guarded) -> None:
    valid = Grant(READ, TOPIC, "valid")
    wanted = [
        valid,
        valid._replace(name=""),
        valid._replace(resource=CLUSTER, name="other"),
        valid._replace(principal="alice"),
        valid._replace(resource=99),  # type: ignore[arg-type]
        valid._replace(pattern=9),  # type: ignore[arg-type]
        valid._replace(operation=99),  # type: ignore[arg-type]
        valid._replace(permission=9),  # type: ignore[arg-type]
        valid,
    ]
    answer = two.administrator.call(CreateAclsRequest(creations=[each.creation() for each in wanted]))
    assert [each.error_message for each in answer.results] == [
        "",
        "Invalid empty resource name",
        f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}",
        "Could not parse principal from `alice` (no colon is present separating the principal type from the principal "
        "name)",
        "Invalid resourceType UNKNOWN",
        "Invalid patternType UNKNOWN",
        "Invalid operation UNKNOWN",
        "Invalid permissionType UNKNOWN",
        "",
    ]
    codes = [each.error_code for each in answer.results]
    assert codes == [0, *[ErrorCode.INVALID_REQUEST] * 7, 0]
    filters = [valid.filter(), valid._replace(resource=99).filter(), valid._replace(operation=99).filter()]  # type: ignore[arg-type]
    removed = two.administrator.call(DeleteAclsRequest(filters=filters)).filter_results
    assert [(each.error_code, each.error_message, len(each.matching_acls)) for each in removed] == [
        (0, None, 1),
        (ErrorCode.INVALID_REQUEST, "Unknown patternFilter.", 0),
        (ErrorCode.INVALID_REQUEST, "Unknown entryFilter.", 0),
    ]
    assert [(each.error_code, each.error_message) for each in removed[0].matching_acls] == [(0, None)]


@pytest.mark.parametrize(("field", "number"), [("resource_type", 1), ("resource_pattern_type", 2), ("operation", 1)])
def test_values_of_filters_are_no_values_of_acls(guarded: GuardedServer, two: Guarded, field: str, number: int) -> None:
    """DIFFERS: Kafka fails the request with UNKNOWN_SERVER_ERROR. oncelog says which ACL is invalid, and why."""
    valid, wrong = Grant(READ, TOPIC, "valid"), Grant(READ, TOPIC, "t").creation()
    setattr(wrong, field, number)
    answer = two.administrator.call(CreateAclsRequest(creations=[valid.creation(), wrong]))
    codes = [each.error_code for each in answer.results]
    if guarded.name == "oncelog":
        assert codes == [0, ErrorCode.INVALID_REQUEST]
        revoke(two.administrator, [valid])
    else:
        assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
def test_the_number_zero_closes_the_connection(guarded: GuardedServer, field: str) -> None:
    creation = Grant(READ, TOPIC, "t").creation()
    setattr(creation, field, 0)
    with guarded.client() as client, pytest.raises((ConnectionError, AssertionError)):
        client.call(CreateAclsRequest(creations=[creation]))


def test_produce_without_answers_closes_the_connection(guarded: GuardedServer, ids: Mapping[str, UUID]) -> None:
    row = ROWS["Produce"]
    with guarded.client() as client:
        fields = {**row.fields(9, ids), "acks": 0}
        client.send(built(messages(row.api)[0], fields), 9)
        with pytest.raises(ConnectionError):
            until(lambda: client.call(MetadataRequest(topics=[]), 9), lambda _: False, "the connection is closed")
