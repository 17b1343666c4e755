"""The page of all groups, with their lag."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog.console.formats import address
from oncelog.console.model import Page, View
from oncelog.console.tables import Column, Row, Table
from oncelog.protocol.topics import TopicPartition
from oncelog.watch import requests
from oncelog.watch.asking import Asker
from oncelog.watch.readings import WITHOUT_OFFSETS, Ends, WatchedGroup
from oncelog.watch.rows import lag_of

COLUMNS = (
    Column("group", "Group", "id"),
    Column("state", "State", "state"),
    Column("lag_lso", "Lag to LSO", "number", "Offsets that read_committed consumers can still read", late=True),
    Column("lag_hw", "Lag to HW", "number", "Offsets that read_uncommitted consumers can still read", late=True),
    Column("partitions", "Partitions", "number", "Partitions with a committed offset", late=True),
    Column("uncounted", "Not counted", "number", "Partitions that the lag lacks: their end is unknown", late=True),
    Column("type", "Type"),
    Column("protocol", "Protocol"),
    Column("coordinator", "Coordinator", "number"),
)


async def load(view: View) -> Page:
    """Load the groups of all coordinators. Offsets are asked only for the groups that are shown."""
    table = Table("groups", "Groups", COLUMNS, view.query, links={"group": "_group"}, empty="There is no group yet.")
    rows = table.choose(
        {
            "group": each.group_id,
            "state": each.state,
            "type": each.type,
            "protocol": each.protocol_type or None,
            "partitions": None,
            "lag_lso": None,
            "lag_hw": None,
            "uncounted": None,
            "coordinator": each.coordinator,
            "_group": address("group", id=each.group_id),
        }
        for each in await listed(view, view.asker)
    )
    await _add_lags(view, [row for row in rows if row["type"] not in WITHOUT_OFFSETS])
    return Page("Groups", "groups.html", tables=[table.arrange().lacking(view.lacks("groups"))])


async def listed(view: View, asker: Asker) -> list[WatchedGroup]:
    """Return the groups of all coordinators that answer, by name."""
    found = await asker.each("groups", await view.admin.cluster.brokers(), requests.groups)
    return sorted(each for some in found.values() for each in some)


async def _add_lags(view: View, rows: list[Row]) -> None:
    places = {row["group"]: row["coordinator"] for row in rows}
    committed = await view.asker.answers("offsets of groups", places, requests.committed)
    leaders = await view.leaders({at for some in committed.values() for at in some})
    ends = await ends_of(view, leaders)
    for row in rows:
        mine = committed.get(row["group"])
        if mine is not None:
            lag = lag_of(mine, ends)
            row |= {"partitions": len(mine), "lag_lso": lag.stable, "lag_hw": lag.high_watermark}
            row["uncounted"] = lag.uncounted or None


async def ends_of(view: View, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, Ends]:
    """Return the ends of the partitions whose leaders (partition -> node id) answer."""
    return await view.asker.answers("offsets", leaders, requests.ends)
