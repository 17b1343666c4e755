"""Add up the counters of one broker, for reports of tests and of the simulation."""

from __future__ import annotations

from collections import Counter

from oncelog.broker.metrics import catalog as names
from oncelog.broker.metrics.collect import Collector
from oncelog.broker.metrics.exposition import Kind

COUNTED = frozenset(
    metric.name
    for metric in (*names.catalog(), *names.GROUP_COUNTS.values())
    if metric.kind is Kind.COUNTER or metric in names.GROUP_COUNTS.values()
) - {names.CPU.name, names.SYNC_SECONDS.name}
"""The metrics that count events. Those of time depend on the machine."""


def totals(collector: Collector) -> Counter[str]:
    """Return the counters that are not 0, by the names of their metrics. Those of all topics are added up."""
    sums: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for line in collector.own_lines():
        if not line or line.startswith("#"):
            continue
        series, _, value = line.rstrip().rpartition(" ")
        name, _, labels = series.partition("{")
        if name in COUNTED:
            (sums if labels else alone)[name] += int(value)
    return +(sums | alone)  # the series of all topics also counts deleted ones, so it is the larger one
