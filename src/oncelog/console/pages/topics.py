"""The page of all topics."""

from __future__ import annotations

from oncelog.client.discovery.cluster import ClusterClient
from oncelog.console.formats import address
from oncelog.console.model import Page, View
from oncelog.console.tables import Column, Table
from oncelog.protocol.topics import TopicPartition
from oncelog.watch import requests

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
    wanted = [(row["name"], index) for row in shown for index in topics[row["name"]].partitions]
    sizes = await replica_sizes(view, wanted)
    for row in shown:
        mine = [size for (topic, _), size in sizes.items() if topic == row["name"]]
        row["size"] = sum(mine) if mine else None
    facts = {"hidden": 0 if internal else sum(topic.internal for topic in topics.values())}
    return Page("Topics", "topics.html", facts, [table.arrange()], extra={"internal": internal})


SIZES_EVERY_MS = 3_000


async def replica_sizes(view: View, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the bytes of the replicas of each partition on the brokers that answer.

    They are asked at most every `SIZES_EVERY_MS`.
    """

    async def ask(cluster: ClusterClient, node: int) -> dict[TopicPartition, int]:
        return await requests.sizes(cluster, node, wanted)

    async def load() -> dict[TopicPartition, int]:
        nodes = await view.admin.cluster.brokers() if wanted else ()
        found: dict[TopicPartition, int] = {}
        for of_node in (await view.asker.each("sizes", nodes, ask, alone=True)).values():
            for at, size in of_node.items():
                found[at] = found.get(at, 0) + size
        return found

    return await view.every(SIZES_EVERY_MS, "sizes", load, wanted)
