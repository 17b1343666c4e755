"""The page of one topic: its partitions with their offsets, and its settings with their sources."""

from __future__ import annotations

import asyncio

from oncelog.console.formats import address
from oncelog.console.model import Page, View, or_reason
from oncelog.console.pages import settings
from oncelog.console.pages.topics import replica_sizes
from oncelog.console.tables import Column, Row, Table
from oncelog.watch import requests

PARTITIONS = (
    Column("partition", "Partition", "number"),
    Column("leader", "Leader", "number"),
    Column("isr", "In sync", "list", "In-sync replicas"),
    Column("replicas", "Replicas", "list"),
    Column("start", "Start", "number", "First offset in the log", late=True),
    Column("lso", "LSO", "number", "Last stable offset: read_committed consumers read up to here", late=True),
    Column("hw", "HW", "number", "High watermark: all in-sync replicas have the records before it", late=True),
    Column("leo", "LEO", "number", "Log end offset: the next record gets it", late=True),
    Column("held_back", "Held back", "number", "Records between LSO and HW", late=True),
    Column("size", "Size", "bytes", "Bytes of all replicas", late=True),
)
SETTINGS = (
    Column("name", "Setting", "id"),
    Column("value", "Value"),
    Column("source", "Source", about="Where the value comes from"),
    Column("read_only", "Read-only"),
)
SETTINGS_EVERY_MS = 5_000


async def load(view: View) -> Page:
    """Load a topic. Offsets are asked only for the partitions that are shown. Raises UnknownTopicError."""
    name = view.path["topic"]
    admin = view.admin
    admin.cluster.topology.forget(name)
    topic = await admin.cluster.topic(name)
    table = Table("partitions", "Partitions", PARTITIONS, view.query, links={"partition": "_partition"})
    shown = table.choose(
        {
            "partition": index,
            "leader": each.leader if each.leader >= 0 else None,
            "isr": list(each.isr),
            "replicas": list(each.replicas),
            "_partition": address("topics", name, index),
        }
        for index, each in sorted(topic.partitions.items())
    )
    leaders = {(name, row["partition"]): topic.partitions[row["partition"]].leader for row in shown}
    sizes, (found, reason), offsets = await asyncio.gather(
        replica_sizes(view, {at: topic.partitions[at[1]].replicas for at in leaders}),
        view.every(SETTINGS_EVERY_MS, "settings", lambda _: or_reason(_settings(view, name))),
        view.asker.answers("offsets", leaders, requests.offsets),
    )
    for row in shown:
        at = name, row["partition"]
        row["size"] = sizes.get(at)
        if at in offsets:
            start, hw, lso, leo = offsets[at]
            row |= {"start": start, "lso": lso, "hw": hw, "leo": leo, "held_back": max(0, hw - lso)}
    facts = {"topic": name, "topic_id": str(topic.topic_id), "internal": topic.internal}
    changed = Table("settings", "Settings", SETTINGS, view.query, main=False, empty=reason, known=not reason)
    return Page(name, "topic.html", facts, [table.arrange(), changed.fill(found)], crumbs=[("Topics", "/topics")])


async def _settings(view: View, name: str) -> list[Row]:
    """Return the settings of a topic, its own first."""
    return settings.rows(await view.admin.describe_config_entries("topic", name))
