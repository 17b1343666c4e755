"""The results of `metrics()`: frozen values, with the names and groups of Kafka's metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from oncelog.client.notebooks import in_notebooks
from oncelog.protocol.topics import TopicPartition

FETCH = "consumer-fetch-manager-metrics"
COORDINATOR = "consumer-coordinator-metrics"


class MetricName(NamedTuple):
    """Kafka's name of a metric. `tags` are pairs (name, value), such as ("client-id", "etl")."""

    group: str
    name: str
    tags: tuple[tuple[str, str], ...]


def _value(doc: str, group: str = "") -> Any:
    """Return a field with its description for the reference, and Kafka's group if it is not the class's."""
    return field(metadata={"doc": doc, "group": group})


def _plain(doc: str) -> Any:
    """Return a field that `by_kafka_name` omits, with its description."""
    return field(metadata={"doc": doc})


def _each(tags: str, group: str, doc: str) -> Any:
    """Return a field that maps keys to more metrics. `tags` names the parts of a key."""
    return field(metadata={"doc": doc, "tags": tags.split(), "group": group})


@in_notebooks()
@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """The requests to one broker."""

    connection_count: int = _value("Open connections.")
    requests_in_flight: int = _value("Requests that wait for a response.")
    request_total: int = _value("Requests sent.")
    request_rate: float = _value("Requests per second.")
    response_total: int = _value("Responses received.")
    response_rate: float = _value("Responses per second.")
    request_size_avg: float | None = _value("Average size of a request in bytes.")
    request_size_max: float | None = _value("Largest request in bytes.")
    outgoing_byte_total: int = _value("Bytes of requests.")
    outgoing_byte_rate: float = _value("Bytes of requests per second.")
    incoming_byte_total: int = _value("Bytes of responses.")
    incoming_byte_rate: float = _value("Bytes of responses per second.")
    request_latency_avg: float | None = _value("Average time from a request to its response in ms.")
    request_latency_max: float | None = _value("Longest time from a request to its response in ms.")


@in_notebooks()
@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """The requests of one API."""

    request_total: int = _value("Requests that were answered.")
    request_latency_avg: float | None = _value("Average time from a request to its response in ms.")
    request_latency_max: float | None = _value("Longest time from a request to its response in ms.")
    latency_histogram: Mapping[float, int] = _plain(
        "Number of requests since the start by latency: upper bound in ms -> requests up to it and above the next "
        "lower bound. The last bound is infinity."
    )


@in_notebooks()
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetrics:
    """The metrics of all clients, and all metrics of an Admin.

    Totals count since the client was created. Rates, averages and maxima cover the last 30 to 60 seconds. An average or
    maximum without a value is None. Requests of a connection count only after its login.
    """

    KIND: ClassVar[str] = "admin-client"

    client_id: str = _plain("The option `client_id`.")
    connection_count: int = _value("Open connections.")
    connection_creation_total: int = _value("Connections opened.")
    connection_close_total: int = _value("Connections that have ended.")
    connection_failure_total: int = _value("Attempts to connect that failed. Not in Kafka.")
    failed_authentication_total: int = _value(
        "Attempts to connect that ended at an untrusted certificate or a rejected login. A failed renewal of a session "
        "is not counted."
    )
    requests_in_flight: int = _value("Requests that wait for a response.")
    request_total: int = _value("Requests sent.")
    request_rate: float = _value("Requests per second.")
    response_total: int = _value("Responses received.")
    response_rate: float = _value("Responses per second.")
    request_lost_total: int = _value(
        "Requests without a response, because the connection ended or the request timed out. Not in Kafka."
    )
    request_size_avg: float | None = _value("Average size of a request in bytes.")
    request_size_max: float | None = _value("Largest request in bytes.")
    outgoing_byte_total: int = _value("Bytes of requests.")
    outgoing_byte_rate: float = _value("Bytes of requests per second.")
    incoming_byte_total: int = _value("Bytes of responses.")
    incoming_byte_rate: float = _value("Bytes of responses per second.")
    nodes: Mapping[int, NodeMetrics] = _each(
        "node-id", "{kind}-node-metrics", "Node id -> its metrics. -1: connections to a bootstrap address."
    )
    requests: Mapping[str, RequestMetrics] = _each(
        "api", "{kind}-request-metrics", "Name of an API, such as `PRODUCE` -> its metrics. Not in Kafka."
    )

    def by_kafka_name(self) -> dict[MetricName, float]:
        """Return Kafka's name (group, name, tags) -> value, for exporters. Metrics whose value is None are omitted."""
        return dict(_flat(self, f"{self.KIND}-metrics", self.KIND, (("client-id", self.client_id),)))


def client_fields(client: ClientMetrics) -> dict[str, Any]:
    """Return the fields of `ClientMetrics`, as arguments for the metrics of a producer or consumer."""
    return {each.name: getattr(client, each.name) for each in fields(ClientMetrics)}


@in_notebooks()
@dataclass(frozen=True, slots=True)
class ProducerTopicMetrics:
    """The records that a producer sends to one topic."""

    record_send_total: int = _value("Records sent. A record that is sent again counts again.")
    record_send_rate: float = _value("Records sent per second.")
    byte_total: int = _value("Bytes of batches sent, compressed.")
    byte_rate: float = _value("Bytes of batches sent per second.")
    record_retry_total: int = _value("Records that had to be sent again.")
    record_retry_rate: float = _value("Records per second that had to be sent again.")
    record_error_total: int = _value("Records that failed.")
    record_error_rate: float = _value("Records per second that failed.")


@in_notebooks()
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics(ClientMetrics):
    """The metrics of a producer, and those of all clients."""

    KIND: ClassVar[str] = "producer"

    record_send_total: int = _value("Records sent. A record that is sent again counts again.")
    record_send_rate: float = _value("Records sent per second.")
    records_per_request_avg: float | None = _value("Average number of records in a Produce request.")
    record_retry_total: int = _value("Records that had to be sent again.")
    record_retry_rate: float = _value("Records per second that had to be sent again.")
    record_error_total: int = _value("Records that failed.")
    record_error_rate: float = _value("Records per second that failed.")
    record_queue_time_avg: float | None = _value("Average time of a batch in the buffer in ms, until it is sent.")
    record_queue_time_max: float | None = _value("Longest time of a batch in the buffer in ms, until it is sent.")
    batch_size_avg: float | None = _value("Average size of a batch in bytes, compressed.")
    batch_size_max: float | None = _value("Largest batch in bytes, compressed.")
    batch_split_total: int = _value("Batches that were divided, because a broker rejected them as too large.")
    sequence_gap_total: int = _value(
        "Batches that a broker rejected, because an earlier batch had not arrived. Most are sent again. Not in Kafka."
    )
    stale_sequence_total: int = _value(
        "Batches that a broker rejected, because the log has later records of the producer. Not in Kafka."
    )
    request_latency_avg: float | None = _value("Average time from a Produce request to its response in ms.")
    request_latency_max: float | None = _value("Longest time from a Produce request to its response in ms.")
    produce_throttle_time_avg: float | None = _value("Average time in ms that a broker delayed a Produce request.")
    produce_throttle_time_max: float | None = _value("Longest time in ms that a broker delayed a Produce request.")
    buffer_total_bytes: int = _value("The option `buffer_memory`.")
    buffer_available_bytes: int = _value("Bytes of the buffer that are free.")
    buffered_records: int = _value("Records without an acknowledgement. Not in Kafka.")
    buffer_exhausted_total: int = _value("Records that `send` has rejected, because the buffer stayed full.")
    waiting_threads: int = _value("Threads that wait for buffer memory.")
    topics: Mapping[str, ProducerTopicMetrics] = _each(
        "topic", "producer-topic-metrics", "Topic -> its metrics, until `metadata_max_idle_ms` after its last record."
    )


@in_notebooks()
@dataclass(frozen=True, slots=True)
class ConsumerTopicMetrics:
    """The records that a consumer reads from one topic."""

    records_consumed_total: int = _value("Records that the program has received.")
    records_consumed_rate: float = _value("Records received per second.")
    bytes_consumed_total: int = _value("Bytes of fetched batches, compressed.")
    bytes_consumed_rate: float = _value("Bytes of fetched batches per second.")
    fetch_size_avg: float | None = _value("Average bytes of the topic's batches in a response.")
    fetch_size_max: float | None = _value("Largest number of bytes of the topic's batches in a response.")


@in_notebooks()
@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    """How far a consumer has read one partition."""

    records_lag: int = _value("Offsets from the position to the end in the last response, as in `cached_lag`.")


@in_notebooks()
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMetrics(ClientMetrics):
    """The metrics of a consumer, and those of all clients."""

    KIND: ClassVar[str] = "consumer"

    records_consumed_total: int = _value("Records that the program has received.", FETCH)
    records_consumed_rate: float = _value("Records received per second.", FETCH)
    bytes_consumed_total: int = _value("Bytes of fetched batches, compressed.", FETCH)
    bytes_consumed_rate: float = _value("Bytes of fetched batches per second.", FETCH)
    fetch_total: int = _value("Fetch requests that were answered.", FETCH)
    fetch_rate: float = _value("Fetch requests per second.", FETCH)
    fetch_size_avg: float | None = _value("Average bytes of batches in a response that has records.", FETCH)
    fetch_size_max: float | None = _value("Largest number of bytes of batches in a response.", FETCH)
    fetch_latency_avg: float | None = _value(
        "Average time from a Fetch request to its response in ms. It includes the wait for new records.", FETCH
    )
    fetch_latency_max: float | None = _value("Longest time from a Fetch request to its response in ms.", FETCH)
    fetch_throttle_time_avg: float | None = _value("Average time in ms that a broker delayed a Fetch request.", FETCH)
    fetch_throttle_time_max: float | None = _value("Longest time in ms that a broker delayed a Fetch request.", FETCH)
    records_lag_max: int | None = _value("Largest current `records_lag` of an assigned partition.", FETCH)
    assigned_partitions: int = _value("Assigned partitions.", COORDINATOR)
    rebalance_total: int = _value("Assignments that the group has given this consumer.", COORDINATOR)
    rebalance_rate_per_hour: float = _value("Assignments per hour.", COORDINATOR)
    last_rebalance_seconds_ago: float | None = _value("Seconds since the last assignment.", COORDINATOR)
    heartbeat_total: int = _value("Heartbeats that were answered.", COORDINATOR)
    heartbeat_response_time_max: float | None = _value("Longest time of a heartbeat in ms.", COORDINATOR)
    commit_total: int = _value("Commits of offsets that were answered.", COORDINATOR)
    commit_latency_avg: float | None = _value("Average time of a commit in ms.", COORDINATOR)
    commit_latency_max: float | None = _value("Longest time of a commit in ms.", COORDINATOR)
    topics: Mapping[str, ConsumerTopicMetrics] = _each("topic", FETCH, "Assigned topic -> its metrics.")
    partitions: Mapping[TopicPartition, PartitionMetrics] = _each(
        "topic partition", FETCH, "(topic, partition) -> its metrics, for assigned partitions with a known end."
    )


def _flat(of: Any, group: str, kind: str, tags: tuple[tuple[str, str], ...]) -> Iterator[tuple[MetricName, float]]:
    for each in fields(of):
        value = getattr(of, each.name)
        if "tags" in each.metadata:
            names = each.metadata["tags"]
            for key, item in value.items():
                parts = key if isinstance(key, tuple) else (f"node-{key}",) if names == ["node-id"] else (key,)
                own = tuple(zip(names, map(str, parts), strict=True))
                yield from _flat(item, each.metadata["group"].format(kind=kind), kind, tags + own)
        elif "group" in each.metadata and value is not None:
            yield MetricName(each.metadata["group"] or group, each.name.replace("_", "-"), tags), value
