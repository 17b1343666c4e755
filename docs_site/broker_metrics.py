"""Generate the reference of a broker's metrics from the catalog that the scrape is made from."""

from __future__ import annotations

from docs_site.markdown import anchor, code, table, text
from oncelog.broker.metrics.catalog import catalog
from oncelog.broker.metrics.exposition import Metric

ORIGINS = (
    ("process_", "Prometheus's clients"),
    ("oncelog_", "oncelog"),
    ("kafka_brokers", "kafka_exporter"),
    ("kafka_broker_info", "kafka_exporter"),
    ("kafka_topic_", "kafka_exporter"),
    ("kafka_consumergroup_", "kafka_exporter"),
    ("kafka_", "Apache Kafka"),
)
"""How names begin, and whose they are. The first match counts."""
HEAD = ("metric", "type", "labels", "meaning")


def page() -> str:
    """Return the page."""
    parts = [
        "# Broker metrics\n",
        "A broker serves these metrics at `/metrics` if `metrics.port` is set: see [metrics for "
        "Prometheus](../operations/monitoring.md#metrics-for-prometheus). The names of Apache Kafka's are those that "
        "jmx_exporter makes from its MBeans, in lower case.\n",
    ]
    for origin in dict.fromkeys(origin for _, origin in ORIGINS):
        parts.append(f"## Names of {origin}\n")
        parts.append(table(HEAD, (_row(each) for each in catalog() if origin_of(each) == origin)))
    return "\n".join(parts)


def origin_of(metric: Metric) -> str:
    """Return who has introduced the name of a metric."""
    return next(origin for start, origin in ORIGINS if metric.name.startswith(start))


def _row(metric: Metric) -> tuple[str, str, str, str]:
    labels = ", ".join(code(label) for label in metric.labels) or "-"
    return anchor(metric.name) + code(metric.name), metric.kind.value, labels, text(metric.help)
