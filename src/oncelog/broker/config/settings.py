"""A broker's configuration: Kafka's keys, typed, checked, frozen.

Every field of `BrokerConfig` that is not derived is a key of `server.properties`. Its name has `_` instead of `.`.
Each source of a value overrides the ones before it: the default, a properties file, the environment (`KAFKA_*`), the
command line. Defaults are Apache Kafka's, unless a docstring says why not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from sys import float_info
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from oncelog.broker.config.authorizers import check_authorizer
from oncelog.broker.config.connection_limits import check_limits, limits_a_listener
from oncelog.broker.config.consumer_group_settings import ConsumerGroupSettings, check_consumer_groups
from oncelog.broker.config.ignored_configs import UNUSED, WITHOUT_EFFECT
from oncelog.broker.config.listener_keys import JAAS, listener_key
from oncelog.broker.config.listener_security import ListenerSecurity, listener_security
from oncelog.broker.config.listeners import DEFAULT_LISTENERS, ListenerConfig, broker_listener, parse_listeners
from oncelog.broker.config.security_settings import SecuritySettings
from oncelog.broker.config.setting_types import (
    INT_MAX,
    LONG_MAX,
    NO_SECRET,
    CleanupPolicies,
    Compression,
    Int,
    Int0,
    Int1,
    Key,
    Long,
    Long0,
    Long1,
    LongOrNever,
    Ratio,
    RecordValidation,
    ReplicaSelector,
    SegmentBytes,
    Short1,
    TextList,
    TimestampType,
    check_value,
    whole_number,
    within,
)
from oncelog.net.credentials import Secret
from oncelog.net.server_options import PLAINTEXT

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


class BrokerConfig(ConsumerGroupSettings, frozen=True, kw_only=True):
    """The settings of one broker. Times are ms and sizes are bytes, unless the name says otherwise."""

    # identity and listeners
    node_id: Int0 = 1
    """Id of this broker. Kafka requires a value."""
    broker_rack: str = ""
    """Rack or zone of this broker. The replicas of a partition are placed in different racks."""
    replica_selector_class: ReplicaSelector = ""
    """With this class, consumers with a `client.rack` read from an in-sync replica in their rack. Default: from the
    leader."""
    broker_session_timeout_ms: Int1 = 9_000
    """A broker that is paused for this time loses its partitions to others. A broker that dies loses them at once."""
    broker_heartbeat_interval_ms: Int1 = 2_000
    """Time between two renewals of the broker's session."""
    controlled_shutdown_enable: bool = True
    """Whether a broker that stops first waits until others lead its partitions."""
    listeners: TextList = DEFAULT_LISTENERS
    """Addresses that the broker binds, as `NAME://HOST:PORT` with commas between them."""
    advertised_listeners: TextList = ""
    """Addresses that clients get from the broker, by the names in `listeners`. Default: the value of `listeners`."""
    listener_security_protocol_map: str = ""
    """Protocols of listeners with a name of their own, as `NAME:PROTOCOL`: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL."""
    controller_listener_names: TextList = ""
    """Names in `listeners` that are not for clients. The broker does not bind them."""
    inter_broker_listener_name: str = ""
    """The listener, one of `listeners`, to which other brokers connect. Default: the one with the name PLAINTEXT."""
    security_inter_broker_protocol: str = ""
    """The protocol, and name, of that listener, if it is not given by `inter.broker.listener.name`."""
    log_dirs: tuple[str, ...] = (".oncelog/broker-1",)
    """Log directories: the directories that hold the partitions, with commas between them. Kafka's default is in /tmp,
    which the system may clean up."""
    log_dir: TextList = ""
    """Log directories, if `log.dirs` is not given."""
    lost_log_dirs: tuple[str, ...] = ()
    """oncelog only: log directories that are lost for good. The broker copies their partitions from other replicas;
    partitions without another replica start empty. A path takes effect once, until a start without it. The broker does
    not start if no broker has or had a path in `log.dirs`."""
    restore_metadata: bool = False
    """oncelog only: if the metadata is lost, restore it from the log directories as far as possible."""

    # connections
    max_connections: Int0 = INT_MAX
    """Maximum number of connections at a time, of the broker or of a listener (`listener.name.NAME.max.connections`).
    Further ones wait. Those of the listener for other brokers replace idle ones of other listeners instead."""
    max_connections_per_ip: Int0 = INT_MAX
    """Maximum number of connections of one IP address. The broker closes further ones."""
    max_connections_per_ip_overrides: str = ""
    """Other numbers for some addresses or host names, as `HOST:COUNT` with commas between them."""
    max_connection_creation_rate: Int0 = INT_MAX
    """Maximum number of new connections per second, of the broker or of a listener. Further ones wait."""
    connections_max_idle_ms: Long = 600_000
    """Close connections that have sent no request for this time."""
    socket_request_max_bytes: Int1 = 100 * 1024 * 1024
    """Largest request that the broker reads. If a request is larger, the broker closes the connection."""
    queued_max_response_bytes: LongOrNever = 64 * 1024 * 1024
    """oncelog only: memory for responses that clients have not read yet, of all connections together. -1 is no limit.

    Above the limit, a Fetch returns less data, but always some. If other responses exceed twice the limit, the broker
    closes the connections that have left more than 1 MiB unread for the longest time. Pages of log files that are sent
    unchanged do not count."""
    socket_listen_backlog_size: Int1 = 1024
    """Connections that the system accepts before the broker does. Kafka's default is 50, with which clients have to
    resend their SYN if many of them start at once."""
    loop_stall_log_ms: Int0 = 0
    """oncelog only: log each request or task that blocks the event loop longer than this. 0 turns it off."""

    # metrics
    metrics_port: Annotated[int, Meta(ge=-1, le=65535)] = -1
    """oncelog only: port of the HTTP server with `/metrics` (for Prometheus), `/live` and `/ready`. 0 is any free
    port, -1 is none."""
    metrics_host: str = "127.0.0.1"
    """oncelog only: address of that server. It has neither a login nor TLS."""

    telemetry_max_bytes: Int1 = 1024 * 1024
    """Largest push of a client's metrics, before and after decompression. Clients push only if `metrics.port` is
    set."""

    # permissions
    authorizer_class_name: str = ""
    """The authorizer, `org.apache.kafka.metadata.authorizer.StandardAuthorizer`, which decides by ACLs. Default: every
    client may do everything."""
    super_users: str = ""
    """Principals that may do everything, as `TYPE:NAME` with semicolons between them, for example `User:admin`."""
    allow_everyone_if_no_acl_found: bool = False
    """Whether every client may use a resource that no ACL selects."""

    delegation_token_secret_key: Secret = NO_SECRET
    """The key of the passwords of delegation tokens, the same for all brokers. Without it, there are no tokens."""
    delegation_token_max_lifetime_ms: Long1 = 7 * _DAY_MS
    """A delegation token cannot be renewed for longer than this after its creation."""
    delegation_token_expiry_time_ms: Long1 = _DAY_MS
    """A delegation token expires after this time, unless it is renewed."""
    delegation_token_expiry_check_interval_ms: Long1 = _HOUR_MS
    """Time between two removals of expired delegation tokens. An expired token is not accepted in any case."""

    # topics
    num_partitions: Int1 = 1
    """Partitions of a topic that is created without a number of partitions."""
    default_replication_factor: Int1 = 1
    """Replicas of a topic that is created without a replication factor."""
    auto_create_topics_enable: bool = True
    """Create a missing topic if a client requests its metadata and allows the creation."""
    delete_topic_enable: bool = True
    """Whether topics can be deleted."""
    min_insync_replicas: Int1 = 1
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    """Whether the controller elects preferred leaders periodically, for example after a broker has restarted."""
    leader_imbalance_check_interval_seconds: Long1 = 300
    """Seconds between two checks for preferred leaders."""
    leader_imbalance_per_broker_percentage: Int0 = 10
    """If other brokers lead more than this percentage of a broker's preferred partitions, the controller elects the
    broker for them."""
    replica_lag_time_max_ms: Long = 30_000
    """The leader removes a follower from the in-sync replicas if it was not caught up for this time."""
    replica_high_watermark_checkpoint_interval_ms: Int1 = 5_000
    """Time between two checkpoints of the high watermarks. After a restart, the broker begins with the last ones."""
    replica_fetch_max_bytes: Int0 = 1024 * 1024
    """Largest part of a partition that a follower fetches at once. A larger batch is fetched anyway."""
    replica_fetch_response_max_bytes: Int0 = 10 * 1024 * 1024
    """Largest response that a follower fetches. A larger first batch is fetched anyway."""
    replica_fetch_min_bytes: Int = 1
    """The leader waits for this many bytes before it answers a follower."""
    replica_fetch_wait_max_ms: Int = 500
    """The leader waits at most this time."""
    replica_fetch_backoff_ms: Int0 = 1000
    """Longest pause of a follower after an error. The first pause is shorter."""
    replica_socket_timeout_ms: Int = 30_000
    """Time that a follower waits for an answer, in addition to `replica.fetch.wait.max.ms`."""
    max_request_partition_size_limit: Int1 = 2000
    """The maximum number of partitions in one response to DescribeTopicPartitions."""

    # logs; most are the default of a topic's setting, see `TOPIC_KEYS` in `broker.config.topics`
    message_max_bytes: Int0 = 1_048_588
    compression_type: Compression = "producer"
    compression_gzip_level: Annotated[int, Meta(ge=-1, le=9)] = -1
    compression_lz4_level: Annotated[int, Meta(ge=1, le=17)] = 9
    compression_zstd_level: Annotated[int, Meta(ge=-131_072, le=22)] = 3
    log_segment_bytes: SegmentBytes = 1024 * 1024 * 1024
    log_roll_ms: Long1 = 7 * _DAY_MS
    log_roll_jitter_ms: Long0 = 0
    log_index_size_max_bytes: Annotated[int, Meta(ge=4, le=INT_MAX)] = 10 * 1024 * 1024
    log_index_interval_bytes: Int0 = 4096
    log_flush_interval_messages: Long1 = LONG_MAX
    log_flush_interval_ms: Long0 = LONG_MAX
    log_retention_ms: LongOrNever = 7 * _DAY_MS
    log_retention_bytes: Long = -1
    log_cleanup_policy: CleanupPolicies = "delete"
    log_segment_delete_delay_ms: Long0 = 60_000
    log_preallocate: bool = False
    log_message_timestamp_type: TimestampType = "CreateTime"
    log_message_timestamp_before_max_ms: Long0 = LONG_MAX
    log_message_timestamp_after_max_ms: Long0 = _HOUR_MS
    log_cleaner_enable: bool = True
    """Whether compaction runs."""
    log_cleaner_backoff_ms: Long0 = 15_000
    """Pause of the log cleaner if there is nothing to compact."""
    log_cleaner_dedupe_buffer_size: Long1 = 128 * 1024 * 1024
    """Memory for the keys that the log cleaner compares in one pass."""
    log_cleaner_io_buffer_load_factor: Ratio = 0.9
    """Part of `log.cleaner.dedupe.buffer.size` that is used for keys."""
    log_cleaner_io_max_bytes_per_second: float = float_info.max
    """Maximum number of bytes that the log cleaner reads and writes per second."""
    log_cleaner_delete_retention_ms: Long0 = _DAY_MS
    log_cleaner_min_compaction_lag_ms: Long0 = 0
    log_cleaner_max_compaction_lag_ms: Long1 = LONG_MAX
    log_cleaner_min_cleanable_ratio: Ratio = 0.5
    log_retention_check_interval_ms: Long1 = 300_000
    """Time between two checks for segments that retention deletes."""
    log_flush_offset_checkpoint_interval_ms: Int0 = 60_000
    """Time between two checkpoints of the offsets up to which logs are on the device. Recovery after a crash begins
    there."""
    log_flush_start_offset_checkpoint_interval_ms: Int0 = 60_000
    """No effect: start offsets are written with the other checkpoints."""
    record_validation: RecordValidation = "header"
    """oncelog only: `full` checks every record of a produced batch, `header` checks its CRC and header."""

    # fetch
    fetch_max_bytes: Annotated[int, Meta(ge=1024, le=INT_MAX)] = 55 * 1024 * 1024
    """Largest response to a fetch, even if the client requests more. A single larger batch is returned anyway."""
    max_incremental_fetch_session_cache_slots: Int0 = 1000
    """Maximum number of fetch sessions (KIP-227)."""

    # producer ids and transactions
    producer_id_expiration_ms: Int1 = _DAY_MS
    """Forget a producer without a transaction that has written nothing for this time."""
    transactional_id_expiration_ms: Int1 = 7 * _DAY_MS
    """Forget a transactional id that was not used for this time."""
    transaction_max_timeout_ms: Int1 = 900_000
    """Largest transaction timeout that a producer may request."""
    transaction_partition_verification_enable: bool = True
    """Whether a partition verifies a transaction with its coordinator before it appends the first batch of the
    transaction (KIP-890)."""
    transaction_two_phase_commit_enable: bool = False
    """Whether a producer may begin transactions without a timeout (KIP-939). It needs the permission TWO_PHASE_COMMIT
    on its transactional id."""
    initial_transaction_version: Annotated[int, Meta(ge=0, le=2)] = 2
    """oncelog only: the level of `transaction.version` in a new cluster (Kafka: `kafka-storage format --feature`)."""
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Int1 = 10_000
    """No effect: each transaction is aborted when its timeout ends."""
    transaction_remove_expired_transaction_cleanup_interval_ms: Int1 = _HOUR_MS
    """No effect: each transactional id is removed when it expires."""
    transaction_state_log_num_partitions: Int1 = 50
    """Partitions of `__transaction_state`, when it is created."""
    transaction_state_log_replication_factor: Short1 = 3
    """Replicas of `__transaction_state`, when it is created. At most the number of brokers that have ever been
    registered. While fewer are running, the topic is not created, and transactions wait."""
    transaction_state_log_min_isr: Int1 = 2
    """`min.insync.replicas` of `__transaction_state`, at most the number of its replicas."""
    transaction_state_log_segment_bytes: Int1 = 100 * 1024 * 1024
    """Segment size of `__transaction_state`."""
    producer_id_expiration_check_interval_ms: Int1 = 600_000
    """Time between two checks for expired producers."""

    # groups
    group_min_session_timeout_ms: Int = 6_000
    """Smallest session timeout that a group member may request."""
    group_max_session_timeout_ms: Int = 1_800_000
    """Largest session timeout that a group member may request."""
    group_initial_rebalance_delay_ms: Int = 0
    """How long a new group waits for more members before its first rebalance. Kafka waits 3 s, which is too long on a
    laptop."""
    group_max_size: Int1 = INT_MAX
    """Maximum number of members of a group."""
    offset_metadata_max_bytes: Int = 4096
    """Longest metadata of a committed offset."""
    offsets_retention_minutes: Int1 = 7 * 24 * 60
    """Delete the offsets of a group that has had no members for this time."""
    offsets_retention_check_interval_ms: Long1 = 600_000
    """Time between two checks for expired offsets."""
    offsets_commit_timeout_ms: Int1 = 5_000
    """Maximum time until the records of a request to a group are committed."""
    offsets_topic_num_partitions: Int1 = 50
    """Partitions of `__consumer_offsets`, when it is created."""
    offsets_topic_replication_factor: Short1 = 3
    """Replicas of `__consumer_offsets`, when it is created. At most the number of brokers that have ever been
    registered. While fewer are running, the topic is not created, and groups wait."""
    offsets_topic_segment_bytes: Int1 = 100 * 1024 * 1024
    """Segment size of `__consumer_offsets`."""

    # derived from the above
    client_listeners: tuple[ListenerConfig, ...] = (ListenerConfig(),)
    """The listeners for clients, at least one."""
    broker_listener: str = PLAINTEXT
    """The listener to which other brokers connect. Empty: there is none."""
    security: Mapping[str, ListenerSecurity] = {}
    """What the listeners that are not PLAINTEXT require of their clients, by name."""
    given: Mapping[str, str] = {}
    """The settings that were given, by Kafka's names, as they were written. It has no secrets."""
    warnings: tuple[str, ...] = ()
    """Warnings about given settings that are unknown or have no effect."""


_DERIVED = frozenset({"client_listeners", "broker_listener", "security", "given", "warnings"})

_SCALED: dict[str, tuple[str, int]] = {
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.retention.hours": ("log.retention.ms", _HOUR_MS),
    "log.roll.hours": ("log.roll.ms", _HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", _HOUR_MS),
    "log.flush.scheduler.interval.ms": ("log.flush.interval.ms", 1),
    "broker.id": ("node.id", 1),
}
"""Kafka's alternative names: (the main name, which wins; the factor to its unit). Earlier rows win."""


def names_of(name: str) -> tuple[str, ...]:
    """Return every name of a setting. If several of them are given, the first one wins."""
    if name == "log.dirs":
        return name, "log.dir"
    return name, *(other for other, (first, _) in _SCALED.items() if first == name)


@functools.cache
def keys() -> Mapping[str, Key]:
    """Return every key of `BrokerConfig`, by Kafka's name."""
    hints = get_type_hints(BrokerConfig, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(BrokerConfig):
        if field.name in _DERIVED:
            continue
        hint = hints[field.name]
        annotated = get_args(hint) if hasattr(hint, "__metadata__") else (hint, None)
        plain = tuple if annotated[0] == tuple[str, ...] else annotated[0]
        found[field.name.replace("_", ".")] = Key(field.name, plain, annotated[1], field.default)
    return found


def load(settings: Mapping[str, str]) -> BrokerConfig:
    """Return the configuration for settings (Kafka's dotted names -> text). Raises ConfigError for an invalid setting.

    Unknown keys are not an error, as in Kafka. `warnings` names each of them, with a similar known key if there is one.
    """
    table = keys()
    values: dict[str, Any] = {}
    warnings = []
    for name, text in settings.items():
        if name in table:
            values[table[name].attribute] = check_value(name, text, table[name])
        found = listener_key(name)
        if limits_a_listener(found):
            check_value(name, text, table[found.key])
        if name in UNUSED or not (name in table or name in _SCALED or found is not None):
            warnings.append(_warning(name, table))
    for name, (first, factor) in _SCALED.items():
        if name in settings and table[first].attribute not in values:
            key = table[first]
            number = whole_number(name, settings[name], Meta(le=key.meta.le if key.meta else None))
            scaled = max(number * factor, -1) if factor > 1 else number
            values[key.attribute] = within(name, str(scaled), scaled, key.meta)
    if values.get("log_dir") and "log_dirs" not in values:
        values["log_dirs"] = check_value("log.dir", values["log_dir"], table["log.dirs"])
    values["client_listeners"] = parse_listeners(
        values.get("listeners") or DEFAULT_LISTENERS,
        values.get("advertised_listeners", ""),
        values.get("listener_security_protocol_map", ""),
        values.get("controller_listener_names", ""),
    )
    names = [each.name for each in values["client_listeners"]]
    named, protocol = values.get("inter_broker_listener_name", ""), values.get("security_inter_broker_protocol", "")
    values["broker_listener"] = broker_listener(named, protocol, names)
    if named or protocol:
        values["inter_broker_listener_name"] = values["broker_listener"]
    values["security"] = {
        each.name: _security(each, settings, values, table)
        for each in values["client_listeners"]
        if each.protocol != PLAINTEXT
    }
    check_limits(values.get("max_connections_per_ip", INT_MAX), values.get("max_connections_per_ip_overrides", ""))
    check_authorizer(values.get("authorizer_class_name", ""), values.get("super_users", ""))
    given = {name: text for name, text in settings.items() if _is_shown(name, table)}
    config = BrokerConfig(**values, given=given, warnings=tuple(warnings))
    check_consumer_groups(config)
    return config


def _is_shown(name: str, table: Mapping[str, Key]) -> bool:
    """Return whether the value of a setting may be shown. As in Kafka, an unknown one may be a misspelled password."""
    known = name in table or name in _SCALED or listener_key(name) is not None
    return known and not is_secret(name, table)


def _of_login(name: str) -> bool:
    """Return whether it is a setting of one listener, or the line of a login module."""
    found = listener_key(name)
    return found is not None and (found.key == JAAS or found.key in keys())


def is_secret(name: str, table: Mapping[str, Key]) -> bool:
    """Return whether the value of a setting must not be shown."""
    found = listener_key(name)
    key = table.get(found.key if found else name)
    return name.endswith(JAAS) or (key is not None and key.type is Secret)


def _security(
    listener: ListenerConfig, settings: Mapping[str, str], values: Mapping[str, Any], table: Mapping[str, Key]
) -> ListenerSecurity:
    """Return what a listener requires: its own settings (`listener.name.NAME.KEY`), then those of the broker."""
    own: dict[str, Any] = {}
    of_mechanisms: dict[str, dict[str, Any]] = {}
    jaas: dict[str, Secret] = {}
    for name, text in settings.items():
        found = listener_key(name)
        if found is None or found.listener not in (None, listener.name.lower()):
            continue
        if found.mechanism is not None and found.key == JAAS:
            if found.listener is not None or found.mechanism not in jaas:
                jaas[found.mechanism] = Secret(text)
        elif found.key in table:
            layer = own if found.mechanism is None else of_mechanisms.setdefault(found.mechanism, {})
            layer[table[found.key].attribute] = check_value(name, text, table[found.key])
    defaults = {field.name: field.default for field in msgspec.structs.fields(SecuritySettings)}
    of_brokers = listener.name == values["broker_listener"]
    merged = {**defaults, **values, **own}
    layers = {mechanism: {**merged, **layer} for mechanism, layer in of_mechanisms.items()}
    return listener_security(listener.name, listener.protocol, merged, jaas, layers, of_brokers=of_brokers)


def _warning(name: str, table: Mapping[str, Key]) -> str:
    if name in WITHOUT_EFFECT or name in UNUSED:
        return f"{name} has no effect in oncelog"
    near = _nearest(name, 0.6)
    return f"unknown setting {name}" + (f", did you mean {near}?" if near else "")


def _nearest(name: str, cutoff: float) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, [*keys(), *_SCALED, *WITHOUT_EFFECT], n=1, cutoff=cutoff)), None)


def misspelled(name: str) -> str | None:
    """Return the setting that was probably meant by a name that is no setting of Kafka. None for others."""
    known = name in keys() or name in _SCALED or name in WITHOUT_EFFECT or name in UNUSED
    return None if known or _of_login(name) else _nearest(name, 0.85)
