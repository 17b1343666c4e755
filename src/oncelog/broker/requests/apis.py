"""The APIs that this broker serves, with their versions and handlers.

The ranges are those of Apache Kafka 4.3. `tests/clients` compares them with the ranges that a running Kafka reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.protocol.apis import ApiKey


@dataclass(frozen=True, slots=True)
class Served:
    """One API, with inclusive versions.

    `handler` is a module in `oncelog.broker.handlers`, with a function `bind(services)` that returns the handler. If
    the module has the handlers of several APIs, `handler` is `module.name`, and the function is `bind_name`.
    """

    min_version: int
    max_version: int
    handler: str
    refers_to_frame: bool = False
    """Whether a decoded request refers to its frame, as the records of a Produce do."""
    most_large: int | None = None
    """The number of large requests that the broker handles at the same time. Waiting ones do not count."""


SERVED: dict[int, Served] = {
    ApiKey.PRODUCE: Served(3, 13, "produce", refers_to_frame=True),
    ApiKey.FETCH: Served(4, 18, "fetch", most_large=4),
    ApiKey.LIST_OFFSETS: Served(1, 11, "list_offsets"),
    ApiKey.METADATA: Served(0, 13, "metadata"),
    ApiKey.OFFSET_COMMIT: Served(2, 10, "offset_commit"),
    ApiKey.OFFSET_FETCH: Served(1, 10, "offset_fetch"),
    ApiKey.FIND_COORDINATOR: Served(0, 6, "find_coordinator"),
    ApiKey.JOIN_GROUP: Served(0, 9, "groups.join"),
    ApiKey.HEARTBEAT: Served(0, 4, "groups.heartbeat"),
    ApiKey.LEAVE_GROUP: Served(0, 5, "groups.leave"),
    ApiKey.SYNC_GROUP: Served(0, 5, "groups.sync"),
    ApiKey.DESCRIBE_GROUPS: Served(0, 6, "groups.describe"),
    ApiKey.LIST_GROUPS: Served(0, 5, "groups.list"),
    ApiKey.SASL_HANDSHAKE: Served(0, 1, "logins.handshake"),
    ApiKey.API_VERSIONS: Served(0, 4, "api_versions"),
    ApiKey.CREATE_TOPICS: Served(2, 7, "create_topics"),
    ApiKey.DELETE_TOPICS: Served(1, 6, "delete_topics"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(2, 4, "offset_for_leader_epoch"),
    ApiKey.DELETE_RECORDS: Served(0, 2, "delete_records"),
    ApiKey.INIT_PRODUCER_ID: Served(0, 6, "transactions.init_producer_id"),
    ApiKey.ADD_PARTITIONS_TO_TXN: Served(0, 5, "add_partitions_to_txn"),
    ApiKey.ADD_OFFSETS_TO_TXN: Served(0, 4, "transactions.add_offsets"),
    ApiKey.END_TXN: Served(0, 5, "transactions.end"),
    ApiKey.WRITE_TXN_MARKERS: Served(1, 2, "write_txn_markers"),
    ApiKey.TXN_OFFSET_COMMIT: Served(0, 5, "txn_offset_commit"),
    ApiKey.DESCRIBE_ACLS: Served(1, 3, "acls.describe"),
    ApiKey.CREATE_ACLS: Served(1, 3, "acls.create"),
    ApiKey.DELETE_ACLS: Served(1, 3, "acls.delete"),
    ApiKey.DESCRIBE_CONFIGS: Served(1, 4, "describe_configs"),
    ApiKey.ALTER_CONFIGS: Served(0, 2, "alter_configs.replace"),
    ApiKey.SASL_AUTHENTICATE: Served(0, 2, "logins.authenticate"),
    ApiKey.CREATE_PARTITIONS: Served(0, 3, "create_partitions"),
    ApiKey.CREATE_DELEGATION_TOKEN: Served(1, 3, "delegation_tokens.create"),
    ApiKey.RENEW_DELEGATION_TOKEN: Served(1, 2, "delegation_tokens.renew"),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Served(1, 2, "delegation_tokens.expire"),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Served(1, 3, "delegation_tokens.describe"),
    ApiKey.ELECT_LEADERS: Served(0, 2, "elect_leaders"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(0, 1, "alter_configs.incremental"),
    ApiKey.DELETE_GROUPS: Served(0, 2, "groups.delete"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Served(0, 1, "alter_partition_reassignments"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Served(0, 0, "list_partition_reassignments"),
    ApiKey.OFFSET_DELETE: Served(0, 0, "offset_delete"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Served(0, 1, "client_quotas.describe"),
    ApiKey.ALTER_CLIENT_QUOTAS: Served(0, 1, "client_quotas.alter"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Served(0, 0, "scram_credentials.describe"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Served(0, 0, "scram_credentials.alter"),
    ApiKey.DESCRIBE_QUORUM: Served(0, 2, "describe_quorum"),
    ApiKey.UPDATE_FEATURES: Served(0, 2, "update_features"),
    ApiKey.DESCRIBE_LOG_DIRS: Served(1, 5, "describe_log_dirs"),
    ApiKey.DESCRIBE_CLUSTER: Served(0, 2, "describe_cluster"),
    ApiKey.DESCRIBE_PRODUCERS: Served(0, 0, "describe_producers"),
    ApiKey.DESCRIBE_TRANSACTIONS: Served(0, 0, "transactions.describe"),
    ApiKey.LIST_TRANSACTIONS: Served(0, 2, "transactions.list"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Served(0, 1, "consumer_groups.heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Served(0, 1, "consumer_groups.describe"),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Served(0, 0, "telemetry.subscriptions"),
    ApiKey.PUSH_TELEMETRY: Served(0, 0, "telemetry.push"),
    ApiKey.LIST_CONFIG_RESOURCES: Served(0, 1, "list_config_resources"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(0, 0, "describe_topic_partitions"),
}

FOR_METRICS_OF_CLIENTS = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})
"""ApiVersions reports these only if somebody can read the metrics of clients, as Kafka's does (KIP-714)."""

PRODUCE_ADVERTISED_MIN = 0
"""ApiVersions reports Produce from version 0 on, as Kafka 4 does for old librdkafka (KAFKA-18659).

A request of version 0, 1 or 2 is rejected nevertheless."""
