"""The page of all topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oncelog.client.discovery.cluster import ClusterClient
from oncelog.console.formats import address
from oncelog.console.model import Page, View
from oncelog.console.tables import Column, Table
from oncelog.protocol.topics import TopicPartition
from oncelog.watch import requests
from oncelog.watch.asking import Asker

COLUMNS = (
    Column("name", "Topic", "id"),
    Column("partitions", "Partitions", "number"),
    Column("replication_factor", "Replicas", "number"),
    Column("under_replicated", "Under-replicated", "number", "Partitions with a replica that is not in sync"),
    Column("offline", "Offline", "number", "Partitions without a leader"),
    Column("size", "Size", "bytes", "Bytes of all replicas", late=True),
    Column("internal", "Internal"),
)


async def load(view: View) -> Page:
    """Load the list of topics. Sizes are asked only for the topics that are shown."""
    topics = await view.admin.cluster.topics(internal=True)
    table = Table("topics", "Topics", COLUMNS, view.query, links={"name": "_name"}, empty="There is no topic yet.")
    internal = view.flag("internal")
    shown = table.choose(
        {
            "name": name,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(each.replicas) for each in topic.partitions.values()), default=0),
            "under_replicated": sum(len(each.isr) < len(each.replicas) for each in topic.partitions.values()),
            "offline": sum(each.leader < 0 for each in topic.partitions.values()),
            "size": None,
            "internal": True if topic.internal else None,
            "_name": address("topics", name),
        }
        for name, topic in sorted(topics.items())
        if internal or not topic.internal
    )
    replicas = {
        (row["name"], index): each.replicas for row in shown for index, each in topics[row["name"]].partitions.items()
    }
    sizes = await replica_sizes(view, replicas)
    for row in shown:
        mine = [sizes.get((row["name"], index)) for index in topics[row["name"]].partitions]
        known = [size for size in mine if size is not None]
        row["size"] = sum(known) if len(known) == len(mine) else None
    facts = {"hidden": 0 if internal else sum(topic.internal for topic in topics.values())}
    return Page("Topics", "topics.html", facts, [table.arrange()], extra={"internal": internal})


SIZES_EVERY_MS = 3_000


async def replica_sizes(view: View, replicas: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, int]:
    """Return the bytes of all replicas of each partition (partition -> node ids), if all their brokers answer.

    They are asked at most every `SIZES_EVERY_MS`.
    """

    async def ask(cluster: ClusterClient, node: int) -> dict[TopicPartition, int]:
        return await requests.sizes(cluster, node, [at for at, nodes in replicas.items() if node in nodes])

    async def load(asker: Asker) -> dict[TopicPartition, int]:
        wanted = sorted({node for nodes in replicas.values() for node in nodes})
        found = await asker.each("sizes", wanted, ask, alone=True)
        return {
            at: sum(found[node].get(at, 0) for node in nodes)
            for at, nodes in replicas.items()
            if found.keys() >= set(nodes)
        }

    return await view.every(SIZES_EVERY_MS, "sizes", load, replicas)
