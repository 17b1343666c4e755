"""Show partitions that are offline, under min ISR or under-replicated, and brokers that are down or hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import show
from oncelog.cluster.topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from oncelog.client.admin.replication import PartitionReplication

OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED = "offline", "under-min-isr", "under-replicated"
PROBLEMS = (OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED)
"""The problems that a partition may have, worst first."""
COLUMNS = ("topic", "partition", "leader", "replicas", "isr", "min_isr", "problems")
MOST_SHOWN = 20
"""The maximum number of partitions that `cluster describe` lists."""


def replication_row(item: PartitionReplication) -> dict[str, Any]:
    """Return a partition with its problems, as a row of `COLUMNS`."""
    has = (item.offline, item.under_min_isr, item.under_replicated)
    return {
        "topic": item.topic,
        "partition": item.partition,
        "leader": item.leader,
        "replicas": list(item.replicas),
        "isr": list(item.isr),
        "min_isr": item.min_isr,
        "problems": [name for name, is_so in zip(PROBLEMS, has, strict=True) if is_so],
    }


def summarize(partitions: Sequence[PartitionReplication], running: Iterable[int]) -> dict[str, Any]:
    """Count the partitions and their problems, and list the worst `MOST_SHOWN`.

    Of partitions with the same problem, list those of internal topics last.
    Also list the missing brokers: those that have replicas and are not in `running`.
    """
    rows = [row for row in map(replication_row, partitions) if row["problems"]]
    rows.sort(
        key=lambda row: (
            PROBLEMS.index(row["problems"][0]),
            row["topic"] in INTERNAL_TOPICS,  # "_" sorts before "a", and they have 50 partitions
            row["topic"],
            row["partition"],
        )
    )
    counts = Counter(problem for row in rows for problem in row["problems"])
    replicas = Counter(broker for item in partitions for broker in item.replicas)
    return {
        "partitions": {
            "total": len(partitions),
            "offline": counts[OFFLINE],
            "under_min_isr": counts[UNDER_MIN_ISR],
            "under_replicated": counts[UNDER_REPLICATED],
            "with_problems": len(rows),
        },
        "problems": rows[:MOST_SHOWN],
        "missing_brokers": [
            {"id": broker, "replicas": replicas[broker]} for broker in sorted(replicas.keys() - set(running))
        ],
    }


def show_summary(found: dict[str, Any]) -> None:
    """Print the result of `summarize`."""
    for broker in found["missing_brokers"]:
        click.echo(f"broker {broker['id']} is down or hangs; it has {broker['replicas']} replicas")
    counts, shown = found["partitions"], found["problems"]
    click.echo(
        f"\npartitions {counts['total']}  offline {counts['offline']}  under-min-isr {counts['under_min_isr']}  "
        f"under-replicated {counts['under_replicated']}"
    )
    if shown:
        show(shown, "text", COLUMNS)
    if len(shown) < counts["with_problems"]:
        rest = counts["with_problems"] - len(shown)
        click.echo(f"and {rest} more; `oncelog topic describe --under-min-isr --under-replicated` lists all")
