"""The rows of transactions and administration, and all rows of the table of permissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from oncelog.protocol.apis import ApiKey
from oncelog.protocol.kinds import AclOperation as Op
from oncelog.protocol.kinds import AclResource as On
from support.permission_rows import (
    DESCRIBING,
    GONE,
    NOT_DESCRIBING,
    OPEN,
    SHUT,
    WRITE_OPEN,
    Fields,
    Row,
    by_topic,
    grants,
    groups,
    lacking,
    records,
    spelled,
)

NOT_IN_TABLE = {
    ApiKey.SASL_HANDSHAKE: "it is a part of the login",
    ApiKey.SASL_AUTHENTICATE: "it is a part of the login",
}
"""Why APIs have no row."""


def rows() -> Iterator[Row]:
    yield from records()
    yield from groups()
    yield from transactions()
    yield from topics()
    yield from cluster()


def transactions() -> Iterator[Row]:
    write = grants(On.TRANSACTIONAL_ID, Op.WRITE, Op.ALL)
    no_write = lacking(On.TRANSACTIONAL_ID, Op.DESCRIBE, Op.READ, Op.TWO_PHASE_COMMIT)
    write_topic = grants(On.TOPIC, Op.WRITE, Op.ALL)
    no_write_topic = lacking(On.TOPIC, Op.READ, Op.DESCRIBE, Op.ALTER)
    producer = {"producer_id": 99_999, "producer_epoch": 0}
    yield Row(
        "InitProducerId",
        ApiKey.INIT_PRODUCER_ID,
        lambda version, ids: {"transactional_id": SHUT, "transaction_timeout_ms": 10_000},
        write,
        no_write,
    )
    yield Row(
        "InitProducerId with two-phase commit",
        ApiKey.INIT_PRODUCER_ID,
        lambda version, ids: {"transactional_id": SHUT, "transaction_timeout_ms": 10_000, "enable2_pc": True},
        grants(On.TRANSACTIONAL_ID, Op.TWO_PHASE_COMMIT),
        lacking(On.TRANSACTIONAL_ID, Op.DESCRIBE, Op.READ),
        from_version=6,
        given=lacking(On.TRANSACTIONAL_ID, Op.WRITE),
        denied=Op.TWO_PHASE_COMMIT,
    )
    yield Row(
        "InitProducerId without an id",
        ApiKey.INIT_PRODUCER_ID,
        lambda version, ids: {"transactional_id": None},
        (*grants(On.CLUSTER, Op.IDEMPOTENT_WRITE, Op.ALL), *write_topic),
        (*lacking(On.CLUSTER, Op.CREATE, Op.DESCRIBE, Op.CLUSTER_ACTION), *no_write_topic),
    )
    yield Row(
        "FindCoordinator of transactions",
        ApiKey.FIND_COORDINATOR,
        lambda version, ids: (
            {"key_type": 1, "coordinator_keys": [OPEN, SHUT]} if version >= 4 else {"key_type": 1, "key": SHUT}
        ),
        grants(On.TRANSACTIONAL_ID, Op.DESCRIBE, Op.WRITE, Op.ALL),
        lacking(On.TRANSACTIONAL_ID, Op.TWO_PHASE_COMMIT, Op.CREATE),
        from_version=1,
    )

    def added(transaction: str) -> Fields:
        def made(version: int, ids: Mapping[str, UUID]) -> dict[str, Any]:
            parts = by_topic(lambda name: {"name": name, "partitions": [0]})
            if version >= 4:
                return {"transactions": [{"transactional_id": transaction, **producer, "topics": parts[:1]}]}
            own = {"transactional_id": transaction, **producer, "topics": parts}
            return {f"v3_and_below_{key}": value for key, value in own.items()}

        return made

    yield Row("AddPartitionsToTxn", ApiKey.ADD_PARTITIONS_TO_TXN, added(SHUT), write, no_write, 0, 3, WRITE_OPEN)
    yield Row(
        "AddPartitionsToTxn of a topic",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        added(OPEN),
        write_topic,
        no_write_topic,
        0,
        3,
        WRITE_OPEN,
    )
    yield Row(
        "AddPartitionsToTxn of a broker",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        added(OPEN),
        grants(On.CLUSTER, Op.CLUSTER_ACTION, Op.ALL),
        lacking(On.CLUSTER, Op.DESCRIBE, Op.ALTER),
        4,
    )
    for part, transaction, group, enough, too_little in (
        ("", SHUT, OPEN, write, no_write),
        (" of a group", OPEN, SHUT, grants(On.GROUP, Op.READ, Op.ALL), lacking(On.GROUP, Op.DESCRIBE, Op.DELETE)),
        (" of a topic", OPEN, OPEN, grants(On.TOPIC, Op.READ, Op.ALL), lacking(On.TOPIC, Op.WRITE, Op.DESCRIBE)),
    ):
        own = {"transactional_id": transaction, "group_id": group, **producer}
        if "topic" not in part:
            yield Row(
                f"AddOffsetsToTxn{part}",
                ApiKey.ADD_OFFSETS_TO_TXN,
                lambda version, ids, own=own: own,  # type: ignore[misc]
                enough,
                too_little,
            )
        committed = [{"partition_index": 0, "committed_offset": 1}]
        yield Row(
            f"TxnOffsetCommit{part}",
            ApiKey.TXN_OFFSET_COMMIT,
            lambda version, ids, own=own, committed=committed: {  # type: ignore[misc]
                **own,
                "topics": by_topic(lambda name: {"name": name, "partitions": committed}),
            },
            enough,
            too_little,
        )
    yield Row(
        "EndTxn",
        ApiKey.END_TXN,
        lambda version, ids: {"transactional_id": SHUT, **producer, "committed": False},
        write,
        no_write,
    )
    yield Row(
        "WriteTxnMarkers",
        ApiKey.WRITE_TXN_MARKERS,
        lambda version, ids: {
            "markers": [{**producer, "topics": [{"name": GONE, "partition_indexes": [0]}], "coordinator_epoch": 0}]
        },
        grants(On.CLUSTER, Op.CLUSTER_ACTION, Op.ALTER, Op.ALL),
        lacking(On.CLUSTER, Op.DESCRIBE, Op.IDEMPOTENT_WRITE),
    )
    describe = grants(On.TRANSACTIONAL_ID, Op.DESCRIBE, Op.WRITE, Op.ALL)
    no_describe = lacking(On.TRANSACTIONAL_ID, Op.TWO_PHASE_COMMIT, Op.CREATE)
    yield Row(
        "DescribeTransactions",
        ApiKey.DESCRIBE_TRANSACTIONS,
        lambda version, ids: {"transactional_ids": [OPEN, SHUT, GONE]},
        describe,
        no_describe,
    )
    yield Row(
        "ListTransactions",
        ApiKey.LIST_TRANSACTIONS,
        lambda version, ids: {},
        describe,
        no_describe,
    )


def topics() -> Iterator[Row]:
    describe = grants(On.TOPIC, *DESCRIBING)
    no_describe = lacking(On.TOPIC, *NOT_DESCRIBING)
    yield Row(
        "Metadata",
        ApiKey.METADATA,
        lambda version, ids: {"topics": by_topic(lambda name: {"name": name})},
        describe,
        no_describe,
    )
    yield Row(
        "Metadata by id",
        ApiKey.METADATA,
        lambda version, ids: {"topics": by_topic(lambda name: {"name": None, "topic_id": ids[name]})},
        describe,
        no_describe,
        12,
    )
    yield Row(
        "Metadata of all topics",
        ApiKey.METADATA,
        lambda version, ids: {"topics": None if version else []},
        describe,
        no_describe,
    )
    yield Row(
        "DescribeTopicPartitions",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        lambda version, ids: {"topics": by_topic(lambda name: {"name": name})},
        describe,
        no_describe,
    )
    yield Row(
        "DescribeTopicPartitions of all topics",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        lambda version, ids: {},
        describe,
        no_describe,
    )
    new = {"num_partitions": 1, "replication_factor": 1}
    yield Row(
        "CreateTopics",
        ApiKey.CREATE_TOPICS,
        lambda version, ids: {"topics": [{"name": "new", **new}], "timeout_ms": 10_000, "validate_only": True},
        (*grants(On.TOPIC, Op.CREATE, name="new"), *grants(On.CLUSTER, Op.CREATE, Op.ALL)),
        (*lacking(On.TOPIC, Op.DESCRIBE, Op.WRITE, Op.ALTER, name="new"), *lacking(On.CLUSTER, Op.ALTER, Op.DESCRIBE)),
    )
    yield Row(
        "CreateTopics, its settings",
        ApiKey.CREATE_TOPICS,
        lambda version, ids: {
            "topics": [{"name": "open-new", **new}],
            "timeout_ms": 10_000,
            "validate_only": True,
        },
        grants(On.TOPIC, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, name="open-new"),
        lacking(On.TOPIC, Op.DESCRIBE, Op.ALTER, name="open-new"),
        5,
        denied=Op.DESCRIBE_CONFIGS,
    )
    yield Row(
        "DeleteTopics that do not exist",
        ApiKey.DELETE_TOPICS,
        lambda version, ids: (
            {"topics": [{"name": GONE}], "timeout_ms": 10_000}
            if version >= 6
            else {"topic_names": [GONE], "timeout_ms": 10_000}
        ),
        (
            *grants(On.TOPIC, Op.DELETE, Op.ALL, Op.DESCRIBE, name=GONE),
            *grants(On.CLUSTER, Op.DELETE, Op.ALL),
        ),
        (*lacking(On.TOPIC, *NOT_DESCRIBING, name=GONE), *lacking(On.CLUSTER, Op.ALTER, Op.CREATE)),
    )
    yield Row(
        "DeleteTopics that exist",
        ApiKey.DELETE_TOPICS,
        lambda version, ids: (
            {"topics": [{"name": SHUT}], "timeout_ms": 10_000}
            if version >= 6
            else {"topic_names": [SHUT], "timeout_ms": 10_000}
        ),
        (),
        lacking(On.TOPIC, Op.DESCRIBE, Op.ALTER, Op.WRITE, Op.READ, Op.CREATE),
        untried=(*grants(On.TOPIC, Op.DELETE, Op.ALL), *grants(On.CLUSTER, Op.DELETE, Op.ALL)),
    )
    yield Row(
        "DeleteTopics by id",
        ApiKey.DELETE_TOPICS,
        lambda version, ids: {
            "topics": [{"topic_id": ids[SHUT]}, {"topic_id": ids[GONE]}],
            "timeout_ms": 10_000,
        },
        (),
        lacking(On.TOPIC, *NOT_DESCRIBING),
        6,
        untried=(*grants(On.TOPIC, Op.DELETE, Op.ALL), *grants(On.CLUSTER, Op.DELETE, Op.ALL)),
    )
    yield Row(
        "CreatePartitions",
        ApiKey.CREATE_PARTITIONS,
        lambda version, ids: {
            "topics": by_topic(lambda name: {"name": name, "count": 2, "assignments": None}),
            "timeout_ms": 10_000,
            "validate_only": True,
        },
        grants(On.TOPIC, Op.ALTER, Op.ALL),
        lacking(On.TOPIC, Op.CREATE, Op.DESCRIBE, Op.WRITE),
    )

    def configured(**fields: Any) -> Fields:
        return lambda version, ids: {
            "resources": by_topic(lambda name: {"resource_type": 2, "resource_name": name, **fields})
        }

    yield Row(
        "DescribeConfigs",
        ApiKey.DESCRIBE_CONFIGS,
        configured(configuration_keys=["retention.ms"]),
        grants(On.TOPIC, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.ALL),
        lacking(On.TOPIC, Op.DESCRIBE, Op.READ, Op.ALTER),
    )
    for api in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        alter = configured(configs=[{"name": "retention.ms", "value": "5"}])
        yield Row(
            spelled(api),
            api,
            lambda version, ids, alter=alter: {**alter(version, ids), "validate_only": True},  # type: ignore[misc]
            grants(On.TOPIC, Op.ALTER_CONFIGS, Op.ALL),
            lacking(On.TOPIC, Op.DESCRIBE_CONFIGS, Op.ALTER),
        )
    yield Row(
        "AlterPartitionReassignments",
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        lambda version, ids: {
            "timeout_ms": 10_000,
            "topics": [{"name": OPEN, "partitions": [{"partition_index": 0, "replicas": None}]}],
        },
        grants(On.CLUSTER, Op.ALTER, Op.ALL),
        lacking(On.CLUSTER, Op.DESCRIBE, Op.CLUSTER_ACTION),
    )
    yield Row(
        "ElectLeaders",
        ApiKey.ELECT_LEADERS,
        lambda version, ids: {"timeout_ms": 10_000, "topic_partitions": [{"topic": OPEN, "partitions": [0]}]},
        grants(On.CLUSTER, Op.ALTER, Op.ALL),
        lacking(On.CLUSTER, Op.DESCRIBE, Op.CLUSTER_ACTION),
    )


def cluster() -> Iterator[Row]:
    describe = grants(On.CLUSTER, Op.DESCRIBE, Op.ALTER, Op.ALL)
    no_describe = lacking(On.CLUSTER, Op.CREATE, Op.CLUSTER_ACTION, Op.DESCRIBE_CONFIGS)
    alter = grants(On.CLUSTER, Op.ALTER, Op.ALL)
    no_alter = lacking(On.CLUSTER, Op.DESCRIBE, Op.CLUSTER_ACTION, Op.ALTER_CONFIGS)
    any_acl = {"resource_type_filter": 2, "pattern_type_filter": 3, "operation": 1, "permission_type": 1}
    none = {**any_acl, "resource_name_filter": "no-such-topic"}
    acl = {"resource_type": 2, "resource_name": "", "principal": "User:a", "host": "*"}
    numbers = {"operation": 3, "permission_type": 3}
    settings = grants(On.CLUSTER, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.ALL)
    no_settings = lacking(On.CLUSTER, Op.DESCRIBE, Op.ALTER)
    for name, api, fields, enough, too_little in (
        ("DescribeAcls", ApiKey.DESCRIBE_ACLS, none, describe, no_describe),
        ("CreateAcls", ApiKey.CREATE_ACLS, {"creations": [{**acl, **numbers}]}, alter, no_alter),
        ("DeleteAcls", ApiKey.DELETE_ACLS, {"filters": [none]}, alter, no_alter),
        ("ListPartitionReassignments", ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None}, describe, no_describe),
        ("DescribeLogDirs", ApiKey.DESCRIBE_LOG_DIRS, {"topics": []}, describe, no_describe),
        ("DescribeCluster", ApiKey.DESCRIBE_CLUSTER, {}, describe, no_describe),
        ("DescribeQuorum", ApiKey.DESCRIBE_QUORUM, {"topics": []}, describe, no_describe),
        ("DescribeUserScramCredentials", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {}, describe, no_describe),
        (
            "AlterUserScramCredentials",
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            {"deletions": [{"name": "nobody", "mechanism": 1}]},
            alter,
            no_alter,
        ),
        ("DescribeClientQuotas", ApiKey.DESCRIBE_CLIENT_QUOTAS, {}, settings, no_settings),
        (
            "AlterClientQuotas",
            ApiKey.ALTER_CLIENT_QUOTAS,
            {"entries": [{"entity": [{"entity_type": "user", "entity_name": "nobody"}], "ops": []}]},
            grants(On.CLUSTER, Op.ALTER_CONFIGS, Op.ALL),
            lacking(On.CLUSTER, Op.ALTER, Op.DESCRIBE_CONFIGS),
        ),
        ("ListConfigResources", ApiKey.LIST_CONFIG_RESOURCES, {}, settings, no_settings),
        (
            "DescribeConfigs of a broker",
            ApiKey.DESCRIBE_CONFIGS,
            {"resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": ["node.id"]}]},
            settings,
            no_settings,
        ),
        (
            "DescribeConfigs of a logger",
            ApiKey.DESCRIBE_CONFIGS,
            {"resources": [{"resource_type": 8, "resource_name": "1", "configuration_keys": ["none"]}]},
            settings,
            no_settings,
        ),
        (
            "IncrementalAlterConfigs of a broker",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            {
                "resources": [
                    {
                        "resource_type": 4,
                        "resource_name": "1",
                        "configs": [{"name": "message.max.bytes", "value": "2000000"}],
                    }
                ],
                "validate_only": True,
            },
            grants(On.CLUSTER, Op.ALTER_CONFIGS, Op.ALL),
            lacking(On.CLUSTER, Op.DESCRIBE_CONFIGS, Op.ALTER),
        ),
        (
            "DescribeConfigs of client metrics",
            ApiKey.DESCRIBE_CONFIGS,
            {"resources": [{"resource_type": 16, "resource_name": "all", "configuration_keys": ["match"]}]},
            settings,
            no_settings,
        ),
        (
            "IncrementalAlterConfigs of client metrics",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            {
                "resources": [
                    {"resource_type": 16, "resource_name": "all", "configs": [{"name": "metrics", "value": "*"}]}
                ],
                "validate_only": True,
            },
            grants(On.CLUSTER, Op.ALTER_CONFIGS, Op.ALL),
            lacking(On.CLUSTER, Op.DESCRIBE_CONFIGS, Op.ALTER),
        ),
        (
            "DescribeConfigs of a group",
            ApiKey.DESCRIBE_CONFIGS,
            {"resources": [{"resource_type": 32, "resource_name": SHUT, "configuration_keys": ["none"]}]},
            grants(On.GROUP, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.ALL),
            (*lacking(On.GROUP, Op.DESCRIBE, Op.READ), *no_settings, *lacking(On.CLUSTER, Op.DESCRIBE_CONFIGS)),
        ),
        (
            "IncrementalAlterConfigs of a group",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            {
                "resources": [
                    {
                        "resource_type": 32,
                        "resource_name": SHUT,
                        "configs": [{"name": "consumer.session.timeout.ms", "value": "50000"}],
                    }
                ],
                "validate_only": True,
            },
            grants(On.GROUP, Op.ALTER_CONFIGS, Op.ALL),
            (*lacking(On.GROUP, Op.DESCRIBE_CONFIGS, Op.READ, Op.DELETE), *lacking(On.CLUSTER, Op.ALTER_CONFIGS)),
        ),
        ("GetTelemetrySubscriptions", ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, {}, (), ()),
        ("PushTelemetry without an id", ApiKey.PUSH_TELEMETRY, {}, (), ()),
    ):
        yield Row(
            name,
            api,
            lambda version, ids, fields=fields: fields,  # type: ignore[misc]
            enough,
            too_little,
        )
    for api in (
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ):  # this client has no login, and no permission replaces it. tests/clients/test_delegation_tokens.py has logins.
        yield Row(
            f"{spelled(api)} without a login",
            api,
            lambda version, ids, api=api: {"owners": None} if api == ApiKey.DESCRIBE_DELEGATION_TOKEN else {},  # type: ignore[misc]
            (),
            (
                *lacking(On.USER, Op.CREATE_TOKENS, Op.DESCRIBE_TOKENS, Op.ALL, name="User:ANONYMOUS"),
                *lacking(On.DELEGATION_TOKEN, Op.DESCRIBE, Op.ALL, name="*"),
                *lacking(On.CLUSTER, Op.ALTER),
            ),
        )
    level = {"feature": "transaction.version", "max_version_level": 2}
    yield Row(
        "UpdateFeatures",
        ApiKey.UPDATE_FEATURES,
        lambda version, ids: {
            "timeout_ms": 10_000,
            **({"validate_only": True} if version else {}),
            "feature_updates": [{**level, **({"upgrade_type": 1} if version else {})}],
        },
        alter,
        no_alter,
    )
    yield Row(
        "ApiVersions",
        ApiKey.API_VERSIONS,
        lambda version, ids: {"client_software_name": "wire", "client_software_version": "1"} if version >= 3 else {},
        (),
        (),
    )
