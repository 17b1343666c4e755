"""Generate the reference of the clients' metrics from the classes that `metrics()` returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from docs_site.markdown import anchor, code, docstring, table, text
from oncelog import metrics

KINDS = (
    metrics.ProducerMetrics,
    metrics.ConsumerMetrics,
    metrics.ClientMetrics,
    metrics.ProducerTopicMetrics,
    metrics.ConsumerTopicMetrics,
    metrics.PartitionMetrics,
    metrics.NodeMetrics,
    metrics.RequestMetrics,
)


def page() -> str:
    """Return the page."""
    parts = [
        "# Metrics\n",
        docstring(metrics) + "\n",
        "The [guide](../python-client.md#metrics) shows them in use. `by_kafka_name()` returns them with Kafka's "
        "groups, names and tags.\n",
    ]
    for kind in KINDS:
        parts += _class(kind)
    return "\n".join(parts)


def _class(kind: Any) -> Iterator[str]:
    yield f"## {kind.__name__} {{ #{kind.__name__} }}\n"
    yield docstring(kind) + "\n"
    known = {each.name for base in kind.__mro__[1:-1] for each in fields(base)}
    rows = []
    for each in fields(kind):
        if each.name not in known:
            target = anchor(f"{kind.__name__}.{each.name}")
            rows.append((target + code(each.name), code(str(each.type)), text(each.metadata["doc"])))
    yield table(("field", "type", "what it is"), rows)
