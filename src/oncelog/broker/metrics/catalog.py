"""All metrics of a broker: one table, from which the scrape and the reference (`docs_site/broker_metrics.py`) are made.

Each metric has its name, type, labels, and the sentence that `# HELP` and the reference show. `catalog()` returns all.

The names that begin with `kafka_server`, `kafka_cluster`, `kafka_controller`, `kafka_coordinator`, `kafka_network` and
`kafka_log` are those that jmx_exporter makes from Apache Kafka's MBeans. `kafka_broker...`, `kafka_topic_...` and
`kafka_consumergroup_...` are those of kafka_exporter. So boards that exist find their series. The names of oncelog's
own metrics begin with `oncelog`.
"""

from __future__ import annotations

from oncelog.broker.metrics.exposition import Kind, Metric, metric

COUNTER, GAUGE = Kind.COUNTER, Kind.GAUGE

# -- traffic: a series for each topic, and one of all topics, without a label ------------------------------------------

_TRAFFIC = "kafka_server_brokertopicmetrics"
TRAFFIC: dict[str, Metric] = {
    attribute: metric(f"{_TRAFFIC}_{name}_total", COUNTER, text, "topic")
    for attribute, name, text in (
        ("messages_in", "messagesin", "Records that this broker appended as leader."),
        ("bytes_in", "bytesin", "Bytes of record batches that this broker appended as leader."),
        ("bytes_out", "bytesout", "Bytes of record batches that consumers were sent."),
        ("produce_requests", "totalproducerequests", "Appends that clients requested, one for each partition."),
        ("failed_produce_requests", "failedproducerequests", "Appends of clients that the log rejected."),
        ("fetch_requests", "totalfetchrequests", "Partitions that consumers' Fetch requests were answered for."),
        ("failed_fetch_requests", "failedfetchrequests", "Partitions of Fetch requests answered with an error."),
        ("replication_bytes_in", "replicationbytesin", "Bytes that this broker appended as follower."),
        ("replication_bytes_out", "replicationbytesout", "Bytes that followers were sent."),
    )
}

# -- the broker ------------------------------------------------------------------------------------------------------

_REPLICAS = "kafka_server_replicamanager"
LEADERS = metric(f"{_REPLICAS}_leadercount", GAUGE, "Partitions that this broker leads.")
REPLICAS = metric(f"{_REPLICAS}_partitioncount", GAUGE, "Partitions of which this broker has a replica.")
UNDER_REPLICATED = metric(
    f"{_REPLICAS}_underreplicatedpartitions", GAUGE, "Partitions that this broker leads and whose ISR lacks a replica."
)
UNDER_MIN_ISR = metric(
    f"{_REPLICAS}_underminisrpartitioncount", GAUGE, "Partitions that this broker leads with fewer ISR than required."
)
AT_MIN_ISR = metric(
    f"{_REPLICAS}_atminisrpartitioncount", GAUGE, "Partitions that this broker leads with just as many ISR as required."
)
OFFLINE_REPLICAS = metric(f"{_REPLICAS}_offlinereplicacount", GAUGE, "Replicas of this broker that are offline.")
LATE_TRANSACTIONS = metric(
    f"{_REPLICAS}_partitionswithlatetransactionscount",
    GAUGE,
    "Partitions of this broker with a transaction that is open for longer than transaction.max.timeout.ms + 5 min.",
)
ISR_SHRINKS = metric(
    f"{_REPLICAS}_isrshrinks_total", COUNTER, "Times that this broker as leader removed a broker from an ISR."
)
ISR_EXPANDS = metric(
    f"{_REPLICAS}_isrexpands_total", COUNTER, "Times that this broker as leader added a broker to an ISR."
)
OFFLINE_DIRECTORIES = metric(
    "kafka_log_logmanager_offlinelogdirectorycount", GAUGE, "Log directories that have failed."
)
CONNECTIONS = metric(
    "kafka_server_socket_server_metrics_connection_count", GAUGE, "Open connections of clients and brokers.", "listener"
)
LOOP_IDLE = metric(
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    GAUGE,
    "Part of the last minute, from 0 to 1, in which the event loop had nothing to do.",
)
HANDLER_IDLE = metric(
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    GAUGE,
    "The same: network and requests share one event loop.",
)
LOOP_DELAY = metric(
    "oncelog_event_loop_delay_seconds", GAUGE, "Longest delay of a timer of the event loop in the last minute."
)

# -- partitions ------------------------------------------------------------------------------------------------------

_OF_PARTITION = ("topic", "partition")
LOG_SIZE = metric("kafka_log_log_size", GAUGE, "Bytes of a replica's segments.", *_OF_PARTITION)
LOG_START = metric("kafka_log_log_logstartoffset", GAUGE, "Log start offset of a replica.", *_OF_PARTITION)
LOG_END = metric("kafka_log_log_logendoffset", GAUGE, "Log end offset of a replica.", *_OF_PARTITION)
PARTITION_UNDER_MIN_ISR = metric(
    "kafka_cluster_partition_underminisr", GAUGE, "1 if the ISR is smaller than min.insync.replicas.", *_OF_PARTITION
)
PARTITION_AT_MIN_ISR = metric(
    "kafka_cluster_partition_atminisr", GAUGE, "1 if the ISR has just min.insync.replicas.", *_OF_PARTITION
)
PARTITION_REPLICAS = metric("kafka_cluster_partition_replicascount", GAUGE, "Number of replicas.", *_OF_PARTITION)
PARTITION_IN_SYNC = metric(
    "kafka_cluster_partition_insyncreplicascount", GAUGE, "Number of in-sync replicas.", *_OF_PARTITION
)
END = metric("kafka_topic_partition_current_offset", GAUGE, "High watermark, known to the leader.", *_OF_PARTITION)
START = metric("kafka_topic_partition_oldest_offset", GAUGE, "Log start offset, known to the leader.", *_OF_PARTITION)
LEADER = metric("kafka_topic_partition_leader", GAUGE, "Id of the leader, -1 if there is none.", *_OF_PARTITION)
PREFERRED = metric("kafka_topic_partition_leader_is_preferred", GAUGE, "1 if the first replica leads.", *_OF_PARTITION)
TOPIC_REPLICAS = metric("kafka_topic_partition_replicas", GAUGE, "Number of replicas.", *_OF_PARTITION)
TOPIC_IN_SYNC = metric("kafka_topic_partition_in_sync_replica", GAUGE, "Number of in-sync replicas.", *_OF_PARTITION)
TOPIC_UNDER_REPLICATED = metric(
    "kafka_topic_partition_under_replicated_partition", GAUGE, "1 if a replica is not in sync.", *_OF_PARTITION
)
STABLE_DISTANCE = metric(
    "oncelog_partition_unstable_offsets",
    GAUGE,
    "High watermark minus last stable offset, on the leader.",
    *_OF_PARTITION,
)
PRODUCERS = metric("oncelog_partition_producers", GAUGE, "Producer ids that the partition remembers.", *_OF_PARTITION)
DUPLICATES = metric(
    "oncelog_duplicate_batches_total",
    COUNTER,
    "Batches that the log had already, so that it appended none.",
    *_OF_PARTITION,
)
GAPS = metric(
    "oncelog_sequence_gaps_total", COUNTER, "Batches rejected because earlier ones are missing.", *_OF_PARTITION
)
FENCED = metric(
    "oncelog_fenced_batches_total",
    COUNTER,
    "Batches and markers rejected because a later epoch of their producer is known.",
    *_OF_PARTITION,
)
STALE = metric("oncelog_stale_sequences_total", COUNTER, "Batches rejected because of an old sequence.", *_OF_PARTITION)

# -- the cluster -----------------------------------------------------------------------------------------------------

TOPIC_PARTITIONS = metric("kafka_topic_partitions", GAUGE, "Number of partitions.", "topic")
BROKERS = metric("kafka_brokers", GAUGE, "Registered brokers.")
BROKER_INFO = metric("kafka_broker_info", GAUGE, "1 for each registered broker.", "id", "address")
_CONTROLLER = "kafka_controller_kafkacontroller"
ACTIVE_CONTROLLER = metric(f"{_CONTROLLER}_activecontrollercount", GAUGE, "1 if this broker is the controller.")
OFFLINE_PARTITIONS = metric(f"{_CONTROLLER}_offlinepartitionscount", GAUGE, "Partitions without a leader.")
TOPICS = metric(f"{_CONTROLLER}_globaltopiccount", GAUGE, "Topics.")
PARTITIONS = metric(f"{_CONTROLLER}_globalpartitioncount", GAUGE, "Partitions.")

UNCLEAN_ELECTIONS = metric(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    COUNTER,
    "Partitions for which this controller elected a leader that was not in sync.",
)

# -- requests --------------------------------------------------------------------------------------------------------

_REQUESTS = "kafka_network_requestmetrics"
REQUESTS = metric(f"{_REQUESTS}_requests_total", COUNTER, "Requests that were handled.", "request")
TIMES: dict[str, Metric] = {
    name: metric(f"{_REQUESTS}_{name}", GAUGE, text, "request", "quantile")
    for name, text in (
        ("totaltimems", "Milliseconds from the first look at a request to its response, in the last two minutes."),
        ("localtimems", "The part that the event loop worked before the first wait."),
        ("remotetimems", "The part that the response waited, for example for followers or records."),
        ("requestqueuetimems", "0: a request is handled when it is read."),
        ("responsequeuetimems", "0: a response is written when it is ready."),
        ("responsesendtimems", "0: the system sends while other requests are handled."),
    )
}

# -- consumer groups: only the coordinator of a group has its series ---------------------------------------------------

_GROUP = "kafka_consumergroup"
_OF_OFFSET = ("consumergroup", "topic", "partition")
MEMBERS = metric(f"{_GROUP}_members", GAUGE, "Members of a group.", "consumergroup")
COMMITTED = metric(f"{_GROUP}_current_offset", GAUGE, "Committed offset of a group.", *_OF_OFFSET)
COMMITTED_SUM = metric(
    f"{_GROUP}_current_offset_sum", GAUGE, "Sum of a group's committed offsets of a topic.", *_OF_OFFSET[:2]
)
LAG = metric(
    f"{_GROUP}_lag", GAUGE, "Distance from the committed offset to the end of what the group can read.", *_OF_OFFSET
)
LAG_SUM = metric(f"{_GROUP}_lag_sum", GAUGE, "Sum of a group's lag of a topic.", *_OF_OFFSET[:2])
OMITTED_GROUPS = metric(
    "oncelog_omitted_groups", GAUGE, "Groups without series here, because there would be more than 100,000."
)

# -- coordinators ----------------------------------------------------------------------------------------------------

_GROUPS = "kafka_server_group_coordinator_metrics"
GROUPS = metric(f"{_GROUPS}_group_count", GAUGE, "Groups that this broker coordinates.", "protocol")
CONSUMER_GROUPS = metric(f"{_GROUPS}_consumer_group_count", GAUGE, "Groups of the consumer protocol by state.", "state")
GROUP_PARTITIONS = metric(f"{_GROUPS}_num_partitions", GAUGE, "Partitions of __consumer_offsets by state.", "state")
_SINCE_START = "since the start of this broker"
GROUP_COUNTS: dict[str, Metric] = {
    attribute: metric(f"{_GROUPS}_{name}", GAUGE, text)
    for attribute, name, text in (
        ("offset_commits", "offset_commit_count", f"Offsets that were committed {_SINCE_START}."),
        ("expired_offsets", "offset_expiration_count", f"Offsets that have expired {_SINCE_START}."),
        ("deleted_offsets", "offset_deletion_count", f"Offsets that OffsetDelete has deleted {_SINCE_START}."),
        (
            "completed_rebalances",
            "group_completed_rebalance_count",
            f"Rebalances of classic groups that have ended {_SINCE_START}.",
        ),
        (
            "consumer_rebalances",
            "consumer_group_rebalance_count",
            f"Epochs of groups of the consumer protocol that have begun {_SINCE_START}.",
        ),
    )
}
_LOADED = "time in ms to load a partition, of those loaded in the last 30 s; NaN if there was none."
GROUP_LOADS = (
    metric(f"{_GROUPS}_partition_load_time_avg", GAUGE, f"Average {_LOADED}"),
    metric(f"{_GROUPS}_partition_load_time_max", GAUGE, f"Longest {_LOADED}"),
)
_MANAGER = "kafka_coordinator_group_groupmetadatamanager"
OFFSETS = metric(f"{_MANAGER}_numoffsets", GAUGE, "Offsets that this broker's groups have committed.")
CLASSIC_GROUPS = metric(f"{_MANAGER}_numgroups", GAUGE, "Groups of the classic protocol.")
CLASSIC_GROUPS_BY_STATE: dict[str, Metric] = {
    state: metric(f"{_MANAGER}_numgroups{state.lower()}", GAUGE, f"Groups of the classic protocol in state {state}.")
    for state in ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
}
GROUPS_BY_STATE = metric("oncelog_classic_groups", GAUGE, "The same groups by state.", "state")
_TRANSACTIONS = "kafka_server_transaction_coordinator_metrics"
TRANSACTION_LOADS = (
    metric(f"{_TRANSACTIONS}_partition_load_time_avg", GAUGE, f"Average {_LOADED}"),
    metric(f"{_TRANSACTIONS}_partition_load_time_max", GAUGE, f"Longest {_LOADED}"),
)
TRANSACTION_PARTITIONS = metric(
    "oncelog_transaction_partitions",
    GAUGE,
    "Partitions of __transaction_state by state.",
    "state",
)
TRANSACTIONS = metric(
    "oncelog_transactions",
    GAUGE,
    "Transactional ids that this broker coordinates by state of the transaction.",
    "state",
)
OLDEST_TRANSACTION = metric(
    "oncelog_oldest_open_transaction_seconds", GAUGE, "Age of the oldest open transaction of this broker, 0 if none."
)

OPEN_TRANSACTIONS = metric(
    "oncelog_open_transactions",
    GAUGE,
    "Open transactions that this broker coordinates and that began at least so many seconds ago.",
    "seconds",
)
SINK_PENDING = metric(
    "oncelog_sink_decision_pending",
    GAUGE,
    "1 if the last decision in the topic of a Spark sink is not settled, on the topic's leader.",
    "topic",
)

# -- disks -----------------------------------------------------------------------------------------------------------

SYNCS = metric("oncelog_syncs_total", COUNTER, "Rounds in which logs were synced (fsync).")
SYNC_SECONDS = metric("oncelog_sync_seconds_total", COUNTER, "Seconds that these rounds took.")
SLOWEST_SYNC = metric("oncelog_slowest_sync_seconds", GAUGE, "The longest round of the last minute, 0 if none.")

# -- the metrics of clients (KIP-714). Their own names begin with `kafka_client_` ------------------------------------

CLIENT_INSTANCES = metric(
    "kafka_server_client_metrics_instance_count", GAUGE, "Client instances that this broker knows (KIP-714)."
)
CLIENT_INFO = metric(
    "oncelog_client_info",
    GAUGE,
    "1 for each client that pushes metrics to this broker.",
    *("client_instance_id", "client_id", "client_software_name", "client_software_version", "client_source_address"),
    *("client_rack", "group_id", "group_instance_id", "group_member_id", "transactional_id"),
)
CLIENT_SERIES = metric("oncelog_client_series", GAUGE, "Series of clients that this broker exports.")
_TELEMETRY = "oncelog_client_telemetry"
CLIENT_THROTTLED = metric(
    f"{_TELEMETRY}_throttled_total", COUNTER, "Telemetry requests before the push interval passed."
)
CLIENT_UNKNOWN = metric(f"{_TELEMETRY}_unknown_subscription_total", COUNTER, "Pushes for a former subscription.")
CLIENT_INVALID = metric(f"{_TELEMETRY}_invalid_total", COUNTER, "Pushes that could not be decoded.")
CLIENT_TRUNCATED = metric(f"{_TELEMETRY}_truncated_total", COUNTER, "Pushes of which only the first part was read.")
CLIENT_DROPPED = metric(
    f"{_TELEMETRY}_dropped_points_total", COUNTER, "Points that are not exported: a limit, another type, not requested."
)

# -- the process -----------------------------------------------------------------------------------------------------

CPU = metric("process_cpu_seconds_total", COUNTER, "Seconds of user and system time.")
MEMORY = metric("process_resident_memory_bytes", GAUGE, "Resident memory in bytes.")
VIRTUAL_MEMORY = metric("process_virtual_memory_bytes", GAUGE, "Virtual memory in bytes.")
DISK_READ = metric("kafka_server_kafkaserver_linux_disk_read_bytes", GAUGE, "Bytes that this process read from disks.")
DISK_WRITTEN = metric("kafka_server_kafkaserver_linux_disk_write_bytes", GAUGE, "Bytes that it wrote to disks.")
OPEN_FILES = metric("process_open_fds", GAUGE, "Open file descriptors.")
MOST_FILES = metric("process_max_fds", GAUGE, "File descriptors that may be open.")
STARTED = metric("process_start_time_seconds", GAUGE, "When the process started, in seconds since 1970.")


def catalog() -> list[Metric]:
    """Return all metrics, in the order of this module."""
    found: list[Metric] = []
    for value in globals().values():
        if isinstance(value, Metric):
            found.append(value)
        elif isinstance(value, dict) and value is not globals():
            found.extend(each for each in value.values() if isinstance(each, Metric))
        elif isinstance(value, tuple):
            found.extend(each for each in value if isinstance(each, Metric))
    return found
