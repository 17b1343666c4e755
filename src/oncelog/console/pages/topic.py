"""The page of one topic: its partitions with their offsets, and its settings with their sources."""

from __future__ import annotations

import asyncio

from oncelog import errors
from oncelog.console.formats import address
from oncelog.console.model import Page, View
from oncelog.console.pages import settings
from oncelog.console.pages.topics import replica_sizes
from oncelog.console.tables import Column, Row, Table

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
    numbers = [row["partition"] for row in shown]
    (info,), sizes, found = await asyncio.gather(
        admin.describe_topics(name, partitions=numbers),
        replica_sizes(view, [(name, number) for number in numbers]),
        view.every(SETTINGS_EVERY_MS, "settings", lambda: _settings(view, name)),
    )
    offsets = {each.partition: each for each in info.partitions}
    for row in shown:
        item = offsets.get(row["partition"])
        known = None if item is None or item.leader < 0 else item
        row |= {
            "start": known and known.log_start_offset,
            "lso": known and known.last_stable_offset,
            "hw": known and known.high_watermark,
            "leo": known and known.log_end_offset,
            "held_back": known and known.high_watermark - known.last_stable_offset,
            "size": sizes.get((name, row["partition"])),
        }
    facts = {"topic": name, "topic_id": str(info.topic_id), "internal": info.internal}
    changed = Table(
        "settings", "Settings", SETTINGS, view.query, main=False, empty="The settings cannot be read."
    ).fill(found)
    return Page(name, "topic.html", facts, [table.arrange(), changed], crumbs=[("Topics", "/topics")])


async def _settings(view: View, name: str) -> list[Row]:
    """Return the settings of a topic, its own first. Empty without the permission to read them."""
    try:
        return settings.rows(await view.admin.describe_config_entries("topic", name))
    except errors.AuthorizationError:
        return []
