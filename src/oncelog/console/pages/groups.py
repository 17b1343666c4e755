"""The page of all groups, with their lag."""

from __future__ import annotations

import asyncio

from oncelog import errors
from oncelog.client.requests.offsets import LATEST, fetch_committed, list_offsets
from oncelog.console.formats import address
from oncelog.console.model import Page, View
from oncelog.console.tables import Column, Row, Table
from oncelog.protocol.topics import TopicPartition

COLUMNS = (
    Column("group", "Group", "id"),
    Column("state", "State", "state"),
    Column("type", "Type"),
    Column("protocol", "Protocol"),
    Column("partitions", "Partitions", "number", "Partitions with a committed offset", late=True),
    Column("lag_lso", "Lag to LSO", "number", "Offsets that read_committed consumers can still read", late=True),
    Column("lag_hw", "Lag to HW", "number", "Offsets that read_uncommitted consumers can still read", late=True),
    Column("coordinator", "Coordinator", "number"),
)
WITH_OFFSETS = frozenset({"Classic", "Consumer"})
"""Types of groups that commit offsets."""


async def load(view: View) -> Page:
    """Load the groups of all coordinators. Offsets are asked only for the groups that are shown."""
    unanswered: dict[int, errors.RetriableError] = {}
    listed = await view.admin.list_groups(unanswered=unanswered)
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
            "coordinator": each.coordinator,
            "_group": address("group", id=each.group_id),
        }
        for each in listed
    )
    await _add_lags(view, [row for row in rows if row["type"] in WITH_OFFSETS])
    facts = {"unanswered": {node: error.message for node, error in unanswered.items()}}
    return Page("Groups", "groups.html", facts, [table.arrange()])


async def _add_lags(view: View, rows: list[Row]) -> None:
    cluster = view.admin.cluster
    answers = await asyncio.gather(
        *(fetch_committed(cluster, row["group"], require_stable=False) for row in rows), return_exceptions=True
    )
    committed: dict[str, dict[TopicPartition, int]] = {}
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, errors.KafkaError):  # not authorized, or its coordinator moves: the cells stay empty
            continue
        if isinstance(answer, BaseException):
            raise answer
        committed[row["group"]] = dict(answer)
    stable, high = await ends(view, {at for some in committed.values() for at in some})
    for row in rows:
        mine = committed.get(row["group"])
        if mine is not None:
            row["partitions"] = len(mine)
            row["lag_lso"] = sum(max(0, stable[at] - offset) for at, offset in mine.items() if at in stable)
            row["lag_hw"] = sum(max(0, high[at] - offset) for at, offset in mine.items() if at in high)


async def ends(view: View, wanted: set[TopicPartition]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the last stable offset and the high watermark of those partitions that exist and have a leader."""
    if not wanted:
        return {}, {}
    topics = await view.admin.cluster.topics(internal=True)
    led = {
        at: LATEST
        for at in wanted
        if at[0] in topics and at[1] in topics[at[0]].partitions and topics[at[0]].partitions[at[1]].leader >= 0
    }
    stable = await list_offsets(view.admin.cluster, led, isolation_level=1)
    high = await list_offsets(view.admin.cluster, led)
    return {at: each.offset for at, each in stable.items()}, {at: each.offset for at, each in high.items()}
