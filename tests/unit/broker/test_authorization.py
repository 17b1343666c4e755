"""An authorizer that rejects everything: each API answers with the right error or an empty list, and changes nothing.

The errors are those of Kafka's `KafkaApis` and `ControllerApis`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.requests.apis import SERVED
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.dispatch import BadRequestError, Dispatcher
from oncelog.net.server import Deferred
from oncelog.net.session import ANONYMOUS, Session
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message
from support.authorizers import refusing
from support.broker_fixtures import NOW, BrokerStorage, append

TOPIC, GROUP, TRANSACTION = "t", "g", "x"
E = ErrorCode
T, G = E.TOPIC_AUTHORIZATION_FAILED, E.GROUP_AUTHORIZATION_FAILED
C, X = E.CLUSTER_AUTHORIZATION_FAILED, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
BATCH = bytes(build_batch([Record(0, NOW, None, b"v")]))
IN_TRANSACTION = bytes(
    build_batch([Record(0, NOW, None, b"v")], producer_id=0, producer_epoch=0, base_sequence=0, transactional=True)
)

NEEDS_NO_PERMISSION = {
    ApiKey.API_VERSIONS: "a client needs it before it can authenticate",
    ApiKey.SASL_HANDSHAKE: "it is a part of the login",
    ApiKey.SASL_AUTHENTICATE: "it is a part of the login",
    ApiKey.DESCRIBE_CLUSTER: "only its field cluster_authorized_operations does, and is 0",
    **dict.fromkeys(
        (
            ApiKey.CREATE_DELEGATION_TOKEN,
            ApiKey.RENEW_DELEGATION_TOKEN,
            ApiKey.EXPIRE_DELEGATION_TOKEN,
            ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ),
        "the client must be identified, and Kafka checks that first; tests/clients/test_delegation_tokens.py",
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "each client may ask, as in Kafka",
    ApiKey.PUSH_TELEMETRY: "each client may push what it is asked for, as in Kafka",
}


ONE_COORDINATOR = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}


class Case(NamedTuple):
    """A request, as fields of its message, and the errors in its response."""

    api: ApiKey
    fields: dict[str, Any]
    errors: set[ErrorCode]
    version: int = -1
    empty: str = ""
    """A field of the response that must be empty."""


def topic(name: str = "name", **fields: Any) -> dict[str, Any]:
    return {"topics": [{name: TOPIC, **fields}]}


def cases(topic_id: UUID) -> Iterator[Case]:
    """Yield all requests, at least one of each API."""
    yield from cases_of_clients(topic_id)
    yield from cases_of_transactions()
    yield from cases_of_administration(topic_id)


def cases_of_clients(topic_id: UUID) -> Iterator[Case]:
    produced = {"topic_id": topic_id, "name": TOPIC}
    plain = [{**produced, "partition_data": [{"index": 0, "records": BATCH}]}]
    marked = [{**produced, "partition_data": [{"index": 0, "records": IN_TRANSACTION}]}]
    yield Case(ApiKey.PRODUCE, {"acks": 1, "topic_data": plain}, {T})
    yield Case(ApiKey.PRODUCE, {"acks": 1, "topic_data": plain}, {T}, 12)
    yield Case(ApiKey.PRODUCE, {"acks": 1, "topic_data": marked, "transactional_id": TRANSACTION}, {X})
    read = {"topic_id": topic_id, "topic": TOPIC, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}
    yield Case(ApiKey.FETCH, {"session_epoch": -1, "topics": [read]}, {T})
    yield Case(ApiKey.FETCH, {"session_epoch": -1, "topics": [read]}, {T}, 12)
    yield Case(ApiKey.LIST_OFFSETS, topic(partitions=[{"timestamp": -1}]), {T})
    yield Case(ApiKey.LIST_OFFSETS, {**topic(partitions=[{"timestamp": -1}]), "readable_ends": True}, {T})
    yield Case(ApiKey.METADATA, {"topics": None}, set(), empty="topics")
    yield Case(ApiKey.METADATA, {"topics": [{"name": TOPIC}, {"name": "new"}]}, {T})
    yield Case(ApiKey.METADATA, {"topics": [{"name": None, "topic_id": topic_id}]}, {T})
    offsets = {"group_id": GROUP, "topics": [{"topic_id": topic_id, "name": TOPIC, "partitions": [{}]}]}
    yield Case(ApiKey.OFFSET_COMMIT, offsets, {G})
    yield Case(ApiKey.OFFSET_COMMIT, offsets, {G}, 9)
    yield Case(ApiKey.OFFSET_FETCH, {"groups": [{"group_id": GROUP, "topics": None}]}, {G})
    yield Case(ApiKey.OFFSET_FETCH, {"group_id": GROUP, **topic(partition_indexes=[0])}, {G}, 1)
    yield Case(ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [GROUP]}, {G})
    yield Case(ApiKey.FIND_COORDINATOR, {"key_type": 1, "key": TRANSACTION}, {X}, 3)
    protocols = [{"name": "range", "metadata": b""}]
    joining = {"group_id": GROUP, "session_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": protocols}
    yield Case(ApiKey.JOIN_GROUP, joining, {G})
    yield Case(ApiKey.HEARTBEAT, {"group_id": GROUP}, {G})
    yield Case(ApiKey.LEAVE_GROUP, {"group_id": GROUP, "members": [{"member_id": "m"}]}, {G})
    yield Case(ApiKey.SYNC_GROUP, {"group_id": GROUP, "protocol_type": "consumer", "protocol_name": "range"}, {G})
    yield Case(ApiKey.DESCRIBE_GROUPS, {"groups": [GROUP]}, {G})
    yield Case(ApiKey.LIST_GROUPS, {}, set(), empty="groups")
    yield Case(ApiKey.API_VERSIONS, {"client_software_name": "c", "client_software_version": "1"}, set())
    yield Case(ApiKey.OFFSET_FOR_LEADER_EPOCH, topic("topic", partitions=[{}]), {T})
    yield Case(ApiKey.DELETE_RECORDS, topic(partitions=[{"offset": -1}]), {T})


def cases_of_transactions() -> Iterator[Case]:
    yield Case(ApiKey.INIT_PRODUCER_ID, {"transactional_id": TRANSACTION, "transaction_timeout_ms": 1000}, {X})
    yield Case(ApiKey.INIT_PRODUCER_ID, {"transactional_id": None}, {C})
    added = [{"name": TOPIC, "partitions": [0]}]
    old = {"v3_and_below_transactional_id": TRANSACTION, "v3_and_below_topics": added}
    yield Case(ApiKey.ADD_PARTITIONS_TO_TXN, old, {X}, 3)
    several = {"transactions": [{"transactional_id": TRANSACTION, "topics": added}]}
    yield Case(ApiKey.ADD_PARTITIONS_TO_TXN, several, {C})
    yield Case(ApiKey.ADD_OFFSETS_TO_TXN, {"transactional_id": TRANSACTION, "group_id": GROUP}, {X})
    yield Case(ApiKey.END_TXN, {"transactional_id": TRANSACTION}, {X})
    marker = {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    yield Case(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]}, {C})
    yield Case(
        ApiKey.TXN_OFFSET_COMMIT, {"transactional_id": TRANSACTION, "group_id": GROUP, **topic(partitions=[{}])}, {X}
    )


def cases_of_administration(topic_id: UUID) -> Iterator[Case]:
    yield Case(ApiKey.CREATE_TOPICS, {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]}, {T})
    yield Case(ApiKey.DELETE_TOPICS, {"topics": [{"name": TOPIC}, {"name": "absent"}], "timeout_ms": 1000}, {T})
    yield Case(ApiKey.DELETE_TOPICS, {"topics": [{"topic_id": topic_id}], "timeout_ms": 1000}, {T})
    any_acl = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    acl = {"resource_type": 2, "resource_name": TOPIC, "principal": "User:a", "operation": 3, "permission_type": 3}
    yield Case(ApiKey.DESCRIBE_ACLS, any_acl, {C})
    yield Case(ApiKey.CREATE_ACLS, {"creations": [acl]}, {C})
    yield Case(ApiKey.DELETE_ACLS, {"filters": [any_acl]}, {C})
    settings = [
        {"resource_type": 2, "resource_name": TOPIC},
        {"resource_type": 4, "resource_name": "1"},
        {"resource_type": 8, "resource_name": "1"},
        {"resource_type": 32, "resource_name": GROUP},
    ]
    yield Case(ApiKey.DESCRIBE_CONFIGS, {"resources": settings}, {T, C, G})
    changed = [{**each, "configs": [{"name": "retention.ms", "value": "5"}]} for each in settings]
    yield Case(ApiKey.ALTER_CONFIGS, {"resources": changed}, {T, C, G})
    yield Case(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": changed}, {T, C, G})
    more = [{"name": TOPIC, "count": 3, "assignments": None}, {"name": "absent", "count": 3, "assignments": None}]
    yield Case(ApiKey.CREATE_PARTITIONS, {"topics": more, "timeout_ms": 1000}, {T})
    yield Case(ApiKey.ELECT_LEADERS, {"topic_partitions": [{"topic": TOPIC, "partitions": [0]}]}, {C})
    yield Case(ApiKey.DELETE_GROUPS, {"groups_names": [GROUP]}, {G})
    yield Case(ApiKey.ALTER_PARTITION_REASSIGNMENTS, topic(partitions=[{"replicas": [1]}]), {C})
    yield Case(ApiKey.LIST_PARTITION_REASSIGNMENTS, {}, {C})
    yield Case(ApiKey.DESCRIBE_QUORUM, {}, {C})
    yield Case(ApiKey.OFFSET_DELETE, {"group_id": GROUP, **topic(partitions=[{}])}, {G})
    yield Case(ApiKey.DESCRIBE_CLIENT_QUOTAS, {}, {C})
    quota = {"entity": [{"entity_type": "user", "entity_name": None}], "ops": [{"key": "producer_byte_rate"}]}
    yield Case(ApiKey.ALTER_CLIENT_QUOTAS, {"entries": [quota]}, {C})
    yield Case(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {}, {C})
    upsertion = {"name": "u", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p"}
    yield Case(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, {"upsertions": [upsertion]}, {C})
    for api in (ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN):
        yield Case(api, {}, {E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED})
    yield Case(ApiKey.DESCRIBE_DELEGATION_TOKEN, {}, {E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED})
    yield Case(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, {E.ILLEGAL_SASL_STATE})
    yield Case(ApiKey.SASL_AUTHENTICATE, {}, {E.ILLEGAL_SASL_STATE})
    yield Case(ApiKey.UPDATE_FEATURES, {"feature_updates": [{"feature": "transaction.version"}]}, {C})
    yield Case(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, {C}, empty="results")
    yield Case(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, set(), 2, empty="results")
    yield Case(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": True}, set())
    yield Case(ApiKey.DESCRIBE_PRODUCERS, topic(partition_indexes=[0]), {T})
    yield Case(ApiKey.DESCRIBE_PRODUCERS, {**topic(partition_indexes=[0]), "include_batches": True}, {T})
    yield Case(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [TRANSACTION]}, {X})
    yield Case(ApiKey.LIST_TRANSACTIONS, {}, set(), empty="transaction_states")
    yield Case(ApiKey.CONSUMER_GROUP_HEARTBEAT, {"group_id": GROUP}, {G})
    yield Case(ApiKey.CONSUMER_GROUP_DESCRIBE, {"group_ids": [GROUP]}, {G})
    yield Case(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, {}, set())
    yield Case(ApiKey.PUSH_TELEMETRY, {}, {E.INVALID_REQUEST})
    yield Case(ApiKey.LIST_CONFIG_RESOURCES, {}, {C})
    yield Case(ApiKey.DESCRIBE_TOPIC_PARTITIONS, {}, set(), empty="topics")
    yield Case(ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"topics": [{"name": TOPIC}, {"name": "absent"}]}, {T})


def message(cls: type[Message], fields: dict[str, Any]) -> Message:
    """Create a message and the messages in its fields."""
    made = {}
    for name, value in fields.items():
        element = getattr(cls.FIELDS[name], "element", None)
        nested = isinstance(value, list) and value and isinstance(value[0], dict)
        made[name] = [message(element, each) for each in value] if nested else value  # type: ignore[arg-type]
    return cls(**made)


async def ask(dispatch: Dispatcher, case: Case) -> Any:
    version = SERVED[case.api].max_version if case.version < 0 else case.version
    request, response = messages(case.api)
    header = encode_request_header(RequestHeader(case.api, version, 1, "test"))
    frame = bytearray(header + message(request, case.fields).encode(version))
    answer: Any = dispatch(memoryview(frame), Session("127.0.0.1", 1, 1))
    if isinstance(answer, Deferred):
        answer = answer.answer
    if isinstance(answer, Awaitable):
        answer = await answer
    view = memoryview(b"".join(answer))
    return response.decode(view[decode_response_header(view, case.api, version)[1] :], version)


def errors(response: Any) -> set[ErrorCode]:
    """Return all errors anywhere in a response."""
    found = set()
    for name in response.FIELDS:
        value = getattr(response, name)
        if name in ("error_code", "partition_error_code") and value:
            found.add(ErrorCode(value))
        elif isinstance(value, (list, tuple)):
            found |= {code for each in value if isinstance(each, Message) for code in errors(each)}
    return found


async def prepare(broker: Broker) -> UUID:
    """Create a topic with a record, a group with an offset, and a transactional id. Return the topic's id."""
    created = await broker.topics.create(TOPIC, partitions=1)
    append(broker.partitions.require(TOPIC, 0))
    allowed = Dispatcher(broker.services)
    for key_type, key in enumerate((GROUP, TRANSACTION)):
        found = await ask(allowed, Case(ApiKey.FIND_COORDINATOR, {"key_type": key_type, "key": key}, set(), 3))
        assert not found.error_code, found
    offsets = {"group_id": GROUP, **topic(partitions=[{"committed_offset": 1}])}
    committed = await ask(allowed, Case(ApiKey.OFFSET_COMMIT, offsets, set(), 9))
    assert errors(committed) == set(), committed
    producer = {"transactional_id": TRANSACTION, "transaction_timeout_ms": 1000}
    begun = await ask(allowed, Case(ApiKey.INIT_PRODUCER_ID, producer, set()))
    assert not begun.error_code, begun
    return created.topic_id


async def state(broker: Broker) -> list[Any]:
    """Return everything that a rejected request could change."""
    allowed = Dispatcher(broker.services)
    questions = (
        Case(ApiKey.METADATA, {"topics": None}, set()),
        Case(ApiKey.DESCRIBE_CONFIGS, {"resources": [{"resource_type": 2, "resource_name": TOPIC}]}, set()),
        Case(ApiKey.LIST_OFFSETS, topic(partitions=[{"timestamp": -1}]), set()),
        Case(ApiKey.LIST_OFFSETS, topic(partitions=[{"timestamp": -2}]), set()),
        Case(ApiKey.DESCRIBE_PRODUCERS, topic(partition_indexes=[0]), set()),
        Case(ApiKey.DESCRIBE_GROUPS, {"groups": [GROUP]}, set()),
        Case(ApiKey.OFFSET_FETCH, {"group_id": GROUP, "topics": None}, set(), 7),
        Case(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [TRANSACTION]}, set()),
    )
    return [await ask(allowed, question) for question in questions]


def test_each_api_is_in_the_table() -> None:
    assert {case.api for case in cases(UUID(int=1))} == set(SERVED)


def test_authorizer_that_rejects_everything(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        topic_id = await prepare(broker)
        before = await state(broker)
        rejecting = Dispatcher(replace(broker.services, authorizer=refusing(*AclResource)))
        for case in cases(topic_id):
            response = await ask(rejecting, case)
            assert errors(response) == case.errors, (case, response)
            assert case.errors & {T, G, C, X} or case.empty or case.api in NEEDS_NO_PERMISSION, case
            if case.empty:
                assert not getattr(response, case.empty), (case, response)
            assert await state(broker) == before, case
        with_operations = {"include_cluster_authorized_operations": True}
        cluster = await ask(rejecting, Case(ApiKey.DESCRIBE_CLUSTER, with_operations, set()))
        assert cluster.cluster_authorized_operations == 0
        marked = [{"name": TOPIC, "partition_data": [{"index": 0, "records": IN_TRANSACTION}]}]
        with pytest.raises(BadRequestError, match="acks=0"):  # the client reads no answer
            await ask(
                rejecting,
                Case(ApiKey.PRODUCE, {"acks": 0, "transactional_id": TRANSACTION, "topic_data": marked}, set(), 12),
            )

    storage.run_broker(life, **ONE_COORDINATOR)


def test_topics_are_rejected_individually(storage: BrokerStorage) -> None:
    """If the group or the transaction is allowed, its topics are still checked."""

    async def life(broker: Broker) -> None:
        topic_id = await prepare(broker)
        before = await state(broker)
        rejecting = Dispatcher(replace(broker.services, authorizer=refusing(AclResource.TOPIC)))
        read = {"group_id": GROUP, "topics": [{"topic_id": topic_id, "name": TOPIC, "partitions": [{}]}]}
        by_name = {"group_id": GROUP, **topic(partitions=[{}])}
        added = {
            "v3_and_below_transactional_id": TRANSACTION,
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
        }
        named = {"group_id": GROUP, "topics": [{"topic_id": topic_id, "name": TOPIC, "partition_indexes": [0]}]}
        for case in (
            Case(ApiKey.OFFSET_COMMIT, read, {T}),
            Case(ApiKey.OFFSET_COMMIT, read, {T}, 9),
            Case(ApiKey.OFFSET_FETCH, {"groups": [named]}, {T}),
            Case(ApiKey.OFFSET_FETCH, {"groups": [named]}, {T}, 9),
            Case(ApiKey.OFFSET_DELETE, by_name, {T}),
            Case(ApiKey.TXN_OFFSET_COMMIT, {"transactional_id": TRANSACTION, **by_name}, {T}),
            Case(ApiKey.ADD_PARTITIONS_TO_TXN, added, {T}, 3),
        ):
            response = await ask(rejecting, case)
            assert errors(response) == case.errors, (case, response)
        everything = {"groups": [{"group_id": GROUP, "topics": None}]}
        assert (await ask(rejecting, Case(ApiKey.OFFSET_FETCH, everything, set()))).groups[0].topics == []
        created = {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]}
        (hidden,) = (await ask(rejecting, Case(ApiKey.CREATE_TOPICS, {**created, "validate_only": True}, set()))).topics
        assert (hidden.error_code, hidden.topic_config_error_code, hidden.configs) == (E.NONE, T, [])
        assert await state(broker) == before

    storage.run_broker(life, **ONE_COORDINATOR)


def test_rejection_names_the_principal_and_the_resource() -> None:
    authorizer = refusing(AclResource.GROUP)
    context = RequestContext(0, 0, 1, "test", Session(), authorizer=authorizer)
    context.authorize(AclOperation.READ, AclResource.TOPIC, TOPIC)
    with pytest.raises(ProtocolError) as refused:
        context.authorize(AclOperation.READ, AclResource.GROUP, GROUP)
    assert refused.value.code is E.GROUP_AUTHORIZATION_FAILED
    assert str(refused.value) == "User:ANONYMOUS has no permission for READ on GROUP 'g'"
    assert authorizer.refused == [(ANONYMOUS, AclOperation.READ, AclResource.GROUP, GROUP)]
