"""What the boards of others query: the names of metrics, and the labels that a query selects or groups by.

These are facts about two boards, which were read on 2026-11-28: Grafana's board 7589, which belongs to kafka_exporter,
and `strimzi-kafka.json` of Strimzi's examples. Neither can be fetched where the tests run.
"""

from __future__ import annotations

from typing import NamedTuple

_STRIMZI = ("namespace", "strimzi_io_cluster")
_POD = (*_STRIMZI, "kubernetes_pod_name")
_TOPIC = (*_POD, "topic")

STRIMZI_LABELS = {
    "namespace": "kafka",
    "strimzi_io_cluster": "mine",
    "strimzi_io_name": "mine-kafka",
    "kubernetes_pod_name": "mine-kafka-{number}",
    "container": "kafka",
}
"""Labels that the Prometheus of a Strimzi cluster adds to each series of a broker. They do not come from the broker."""


class Query(NamedTuple):
    """A metric of a board, with the labels that its series must have, and whether the board takes its rate."""

    metric: str
    labels: tuple[str, ...]
    rate: bool = False


EXPORTER: tuple[Query, ...] = (
    Query("kafka_topic_partition_current_offset", ("job", "instance", "topic"), rate=True),
    Query("kafka_topic_partitions", ("instance", "topic")),
    Query("kafka_consumergroup_lag", ("instance", "topic", "consumergroup")),
    Query("kafka_consumergroup_current_offset", ("job", "instance", "topic", "consumergroup"), rate=True),
)

_BROKER = "kafka_server_brokertopicmetrics"
_COUNTED = (
    *("bytesin", "bytesout", "messagesin", "totalproducerequests"),
    *("failedproducerequests", "totalfetchrequests", "failedfetchrequests"),
)

STRIMZI: tuple[Query, ...] = (
    *(
        Query(f"kafka_server_replicamanager_{name}", _STRIMZI)
        for name in ("leadercount", "partitioncount", "underreplicatedpartitions")
    ),
    Query("kafka_controller_kafkacontroller_activecontrollercount", _STRIMZI),
    Query("kafka_controller_kafkacontroller_offlinepartitionscount", _STRIMZI),
    Query("kafka_controller_controllerstats_uncleanleaderelections_total", _STRIMZI, rate=True),
    Query("kafka_cluster_partition_atminisr", _STRIMZI),
    Query("kafka_cluster_partition_underminisr", _STRIMZI),
    Query("kafka_cluster_partition_replicascount", (*_POD, "topic")),
    *(Query(f"{_BROKER}_{name}_total", _TOPIC, rate=True) for name in _COUNTED),
    Query("kafka_network_socketserver_networkprocessoravgidle_percent", _POD),
    Query("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", _POD),
    Query("kafka_server_socket_server_metrics_connection_count", (*_POD, "listener")),
    Query("kafka_log_log_size", (*_POD, "topic", "partition")),
    Query("kafka_server_kafkaserver_linux_disk_write_bytes", _POD, rate=True),
    Query("kafka_server_kafkaserver_linux_disk_read_bytes", _POD, rate=True),
    Query("process_open_fds", ("namespace", "kubernetes_pod_name", "container")),
    Query("jvm_memory_used_bytes", (*_POD[::2], "strimzi_io_name")),
    Query("jvm_gc_collection_seconds_sum", (*_POD[::2], "strimzi_io_name"), rate=True),
    Query("jvm_gc_collection_seconds_count", (*_POD[::2], "strimzi_io_name"), rate=True),
    Query("jvm_threads_current", (*_POD[::2], "strimzi_io_name")),
    Query("container_memory_usage_bytes", ("namespace", "pod", "container")),
    Query("container_cpu_usage_seconds_total", ("namespace", "pod", "container"), rate=True),
    Query("kubelet_volume_stats_available_bytes", ("namespace", "persistentvolumeclaim")),
)

_JAVA = "the broker has no Java virtual machine; process_resident_memory_bytes has its memory"
_KUBERNETES = "Kubernetes serves it, not the broker"

ABSENT: dict[str, str] = {
    "jvm_memory_used_bytes": _JAVA,
    "jvm_gc_collection_seconds_sum": _JAVA,
    "jvm_gc_collection_seconds_count": _JAVA,
    "jvm_threads_current": _JAVA,
    "container_memory_usage_bytes": _KUBERNETES,
    "container_cpu_usage_seconds_total": _KUBERNETES,
    "kubelet_volume_stats_available_bytes": _KUBERNETES,
}
"""The metrics that find no series, with the reason. It counts only for metrics that are not in the catalog."""
