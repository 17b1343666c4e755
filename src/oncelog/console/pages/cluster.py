"""The page of the cluster: brokers, controller, racks, and partitions with problems."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from oncelog.client.discovery.topology import Topic
from oncelog.console.formats import address
from oncelog.console.model import Page, View
from oncelog.console.tables import Column, Row, Table
from oncelog.watch import requests
from oncelog.watch.asking import Asker
from oncelog.watch.reader import Reader
from oncelog.watch.rows import Traffic, replica_counts, traffic_of

BROKERS = (
    Column("broker", "Broker", "number"),
    Column("address", "Address", "id"),
    Column("rack", "Rack"),
    Column("controller", "Controller"),
    Column("leaders", "Leads", "number", "Partitions that this broker leads"),
    Column("replicas", "Replicas", "number"),
    Column("records_per_s", "Records/s", "number", "New offsets per second in the partitions that it leads"),
    Column("bytes_per_s", "Bytes/s", "bytes", "Growth of their logs per second"),
    Column("latency_ms", "Latency", "ms", "From a request of this console to the response, on average"),
    Column("lagging", "Out of sync", "number", "Replicas here that are not in sync"),
    Column("size", "Size", "bytes", "Bytes of all segments on this broker"),
    Column("directories", "Log directories"),
)
PROBLEMS = (
    Column("topic", "Topic", "id"),
    Column("partition", "Partition", "number"),
    Column("problem", "Problem", "state"),
    Column("leader", "Leader", "number"),
    Column("isr", "In sync", "list"),
    Column("replicas", "Replicas", "list"),
)
DISKS_EVERY_MS = 5_000
TRAFFIC_EVERY_MS = 2_000


async def load(view: View) -> Page:
    """Load the page of the cluster."""
    reader = view.memory.setdefault("reader", Reader(view.admin.cluster, subjects=("brokers",)))
    found, topics, disks, traffic = await asyncio.gather(
        view.admin.describe_cluster(),
        view.admin.cluster.topics(internal=True),
        view.every(DISKS_EVERY_MS, "disks", partial(_disks, view)),
        view.every(TRAFFIC_EVERY_MS, "traffic", partial(_traffic, reader)),
    )
    latencies = {node: each.request_latency_avg for node, each in view.admin.metrics().nodes.items()}
    brokers = Table("brokers", "Brokers", BROKERS, view.query)
    counts = replica_counts(topics)
    brokers.fill(
        {
            "broker": item.node_id,
            "address": f"{item.host}:{item.port}",
            "rack": item.rack,
            "controller": True if item.node_id == found.controller_id else None,
            "leaders": counts.leaders[item.node_id],
            "replicas": counts.replicas[item.node_id],
            "lagging": counts.out_of_sync[item.node_id],
            "records_per_s": _rounded(traffic[item.node_id].records_per_s),
            "bytes_per_s": _rounded(traffic[item.node_id].bytes_per_s),
            "latency_ms": _rounded(latencies.get(item.node_id)),
            "size": disks.get(item.node_id, (None, None))[0],
            "directories": disks.get(item.node_id, (None, None))[1],
        }
        for item in found.brokers
    )
    problems = Table(
        "problems",
        "Partitions with problems",
        PROBLEMS,
        view.query,
        links={"topic": "_topic"},
        main=False,
        empty="Every partition has a leader, and all its replicas are in sync.",
    ).fill(_problems(topics))
    missing = sorted(set(counts.replicas) - {item.node_id for item in found.brokers})
    facts = {
        "cluster_id": found.cluster_id,
        "controller": found.controller_id,
        "topics": sum(not topic.internal for topic in topics.values()),
        "partitions": sum(len(topic.partitions) for topic in topics.values()),
        "under_replicated": counts.under_replicated.total(),
        "offline": sum(p.leader < 0 for t in topics.values() for p in t.partitions.values()),
        "missing_brokers": missing,
        "features": found.features,
    }
    return Page("Cluster", "cluster.html", facts, [brokers, problems])


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _problems(topics: dict[str, Topic]) -> list[Row]:
    found: list[Row] = []
    for name, topic in sorted(topics.items()):
        for index, each in sorted(topic.partitions.items()):
            if each.leader < 0 or len(each.isr) < len(each.replicas):
                problem = "no leader" if each.leader < 0 else "under-replicated"
                found.append(
                    {
                        "topic": name,
                        "partition": index,
                        "problem": problem,
                        "leader": each.leader if each.leader >= 0 else None,
                        "isr": list(each.isr),
                        "replicas": list(each.replicas),
                        "_topic": address("topics", name, index),
                    }
                )
    return found


async def _traffic(reader: Reader, asker: Asker) -> Mapping[int, Traffic]:
    picture = await reader.turn()
    asker.troubles += picture.troubles
    return traffic_of(picture)


async def _disks(view: View, asker: Asker) -> dict[int, tuple[int, str]]:
    """Return the bytes on each broker that answers, and a text about its log directories."""
    nodes = await view.admin.cluster.brokers()
    found = await asker.each("log directories", nodes, requests.directories, alone=True)
    return {
        node: (
            sum(size for each in mine for size in each.sizes.values()),
            f"{offline} of {len(mine)} offline"
            if (offline := sum(not each.online for each in mine))
            else f"{len(mine)} online",
        )
        for node, mine in found.items()
    }
