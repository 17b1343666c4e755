"""What `metrics()` of a client returns: `ProducerMetrics`, `ConsumerMetrics`, or `ClientMetrics` of an Admin.

The fields have the names of Kafka's metrics, with `_` for `-`. Totals count since the client was created. Rates are per
second. Rates, averages and maxima cover the last 30 to 60 seconds; an average or maximum without a value is None.
Sizes are in bytes. Times are in milliseconds, except those whose names end with `seconds_ago`.
"""

from __future__ import annotations

from oncelog.client.metrics.results import (
    ClientMetrics,
    ConsumerMetrics,
    ConsumerTopicMetrics,
    MetricName,
    NodeMetrics,
    PartitionMetrics,
    ProducerMetrics,
    ProducerTopicMetrics,
    RequestMetrics,
)

__all__ = [
    "ClientMetrics",
    "ConsumerMetrics",
    "ConsumerTopicMetrics",
    "MetricName",
    "NodeMetrics",
    "PartitionMetrics",
    "ProducerMetrics",
    "ProducerTopicMetrics",
    "RequestMetrics",
]
