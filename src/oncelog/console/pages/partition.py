"""The page of a partition: its log as a line of offsets, and its open transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from oncelog import errors
from oncelog.client.admin.topics import PartitionInfo
from oncelog.client.admin.transactions import ProducerInfo
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.console.formats import address, crumbs_to, duration
from oncelog.console.log_reader import LogReader
from oncelog.console.log_spans import Span, spans
from oncelog.console.model import Page, View, is_old
from oncelog.console.offset_line import Bracket, Line, Position, draw, draw_overview, shorten
from oncelog.console.pages import groups, producers
from oncelog.console.tables import Column, Row, Table
from oncelog.protocol.topics import TopicPartition
from oncelog.watch import requests
from oncelog.watch.asking import Asker, hanging_among, transactions_of
from oncelog.watch.readings import WITHOUT_OFFSETS, Ends
from oncelog.watch.rows import lag_of, will_end

WINDOWS = (25, 100, 400, 1600, 6400)
GROUPS_AT_MOST = 100
POSITIONS_AT_MOST = 30
GROUPS_EVERY_MS = 10_000
SPANS = (
    Column("first", "First", "number"),
    Column("last", "Last", "number"),
    Column("state", "State", "state"),
    Column("records", "Records", "number"),
    Column("size", "Size", "bytes"),
    Column("producer_id", "Producer", "id"),
    Column("producer_epoch", "Epoch", "number"),
    Column("timestamp", "Time", "time", "The newest timestamp, UTC"),
)
POSITIONS = (
    Column("group", "Group", "id"),
    Column("committed", "Position", "number", "The next offset that the group reads"),
    Column("lag_lso", "Lag to LSO", "number"),
    Column("lag_hw", "Lag to HW", "number"),
)


class Window(NamedTuple):
    """The offsets to draw, from `begin` to before `end`. `follows` if it moves with the end of the log."""

    begin: int
    end: int
    span: int
    follows: bool


def window(view: View, info: PartitionInfo) -> Window:
    """Return the window that the address asks for: `span` offsets from `from`, or up to the end of the log."""
    span = view.number("span", 100, WINDOWS[0], WINDOWS[-1])
    start, leo = info.log_start_offset, info.log_end_offset
    if "from" in view.query:
        begin = min(max(view.number("from", start), start), max(start, leo - 1))
        return Window(begin, begin + span, span, False)
    begin = max(start, leo - span + span // 10)
    return Window(begin, begin + span, span, True)


async def load(view: View) -> Page:
    """Load a partition. Raises UnknownTopicError."""
    topic, number = view.path["topic"], view.path["partition"]
    admin = view.admin
    await admin.cluster.partition(topic, number)
    [known] = await admin.describe_topics(topic, partitions=[number])
    if not known.partitions:
        raise errors.UnknownTopicError(f"topic {topic!r} has no partition {number}")
    info = known.partitions[0]
    crumbs = crumbs_to(topic)
    facts = {"topic": topic, "partition": number, **info._asdict(), "replicas": list(info.replicas)}
    facts |= {"isr": list(info.isr), "elr": list(info.elr)}
    if info.leader < 0 or info.log_start_offset < 0:
        return Page(f"{topic}-{number}", "partition_offline.html", facts, crumbs=crumbs)
    shown = window(view, info)
    reader: LogReader = view.memory.setdefault("reader", LogReader())
    seen, (positions, left_out), complete = await asyncio.gather(
        producers.visible(view, topic, number),
        _positions(view, (topic, number), info),
        reader.read(admin.cluster, (topic, number), info, shown.begin, shown.end),
    )
    opened = [each for each in seen if each.transaction_start >= 0]
    holders = await _holders(view, (topic, number), opened)
    found = spans(reader.batches.values(), {each["producer_id"]: each["first_offset"] for each in holders})
    line = Line(
        name=f"{topic}-{number}",
        begin=shown.begin,
        end=shown.end,
        start=info.log_start_offset,
        lso=info.last_stable_offset,
        hw=info.high_watermark,
        leo=info.log_end_offset,
        read_to=reader.read_to,
        spans=found,
        positions=[Position(row["group"], row["committed"], row["_group"]) for row in positions],
        open=[_bracket(each) for each in holders],
        target=lambda offset: address("topics", topic, number, "messages", at="offset", offset=offset, control=1),
    )
    tables = [_span_table(view, found, shown), _position_table(view, positions)]
    facts |= {"open_transactions": holders, "window": shown._asdict(), "complete": complete}
    figures = {"line": draw(line), "overview": draw_overview(line)}
    extra = {"window": shown, "ways": _ways(shown, info), "groups_left_out": left_out}
    return Page(f"{topic}-{number}", "partition.html", facts, tables, figures, extra, crumbs)


def _span_table(view: View, found: list[Span], shown: Window) -> Table:
    topic, number = view.path["topic"], view.path["partition"]
    table = Table(
        "spans", "Spans", SPANS, view.query, links={"first": "_first"}, empty="This part of the log is empty."
    )
    return table.fill(
        {
            **span._asdict(),
            "producer_id": span.producer_id if span.producer_id >= 0 else None,
            "producer_epoch": span.producer_epoch if span.producer_id >= 0 else None,
            "_first": address("topics", topic, number, "messages", at="offset", offset=span.first, control=1),
        }
        for span in reversed(found)
        if span.last >= shown.begin and span.first < shown.end
    )


def _position_table(view: View, rows: list[Row]) -> Table:
    links = {"group": "_group"}
    empty = "No group has committed an offset of this partition."
    table = Table("groups", "Groups", POSITIONS, view.query, links=links, main=False, empty=empty).fill(rows)
    return table.lacking(view.lacks("groups"))


def _ways(shown: Window, info: PartitionInfo) -> list[tuple[str, dict[str, Any], bool]]:
    """Return the links that move the window: text, query, and whether it is in effect already."""
    closer = [each for each in WINDOWS if each < shown.span]
    wider = [each for each in WINDOWS if each > shown.span]
    where: dict[str, Any] = {} if shown.follows else {"from": shown.begin}
    half = max(1, shown.span // 2)
    before_lso = max(info.log_start_offset, info.last_stable_offset - shown.span // 4)
    found: list[tuple[str, dict[str, Any], bool]] = [
        ("⇤ Start", {"from": info.log_start_offset, "span": shown.span}, shown.begin == info.log_start_offset),
        ("← Earlier", {"from": max(info.log_start_offset, shown.begin - half), "span": shown.span}, False),
        ("Later →", {"from": shown.begin + half, "span": shown.span}, False),
        ("At the LSO", {"from": before_lso, "span": shown.span}, shown.begin == before_lso and not shown.follows),
        ("Follow the end", {"span": shown.span}, shown.follows),
        ("Zoom in", {**where, "span": closer[-1] if closer else shown.span}, not closer),
        ("Zoom out", {**where, "span": wider[0] if wider else shown.span}, not wider),
    ]
    return found


async def _holders(view: View, at: TopicPartition, some: list[ProducerInfo]) -> list[Row]:
    """Return the open transactions of the partition, the oldest first, with what their coordinators know."""
    if not some:
        return []
    nodes = await view.admin.cluster.brokers()
    known = await transactions_of(view.asker, nodes, [each.producer_id for each in some])
    suspects = [(at, each) for each in some if is_old(each, view.now_ms)]
    alone = await hanging_among(view.asker, known, suspects) or ()
    rows = []
    for each in sorted(some, key=lambda each: each.transaction_start):
        transaction = known.get(each.producer_id)
        listed = will_end(transaction, at)
        hanging = (at, each) in alone
        state = "hanging" if hanging else "unknown"
        if transaction is not None and listed:
            state = transaction.state
        begun = None if transaction is None else transaction.started_ms
        rows.append(
            {
                "transactional_id": None if transaction is None else transaction.transactional_id,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "first_offset": each.transaction_start,
                "state": state,
                "begun_ms": begun,
                "age_ms": view.now_ms - (begun or each.last_timestamp),
                "hanging": hanging,
                "address": address("topics", *at, "abort", producer=each.producer_id)
                if hanging
                else address("topics", *at, "producers")
                if transaction is None
                else address("transaction", id=transaction.transactional_id),
            }
        )
    return rows


def _bracket(row: Row) -> Bracket:
    name = row["transactional_id"] or f"producer {row['producer_id']}"
    shown = shorten(name, 60)
    if row["hanging"]:
        words = f"{shown} · hanging: no coordinator will end it · {duration(row['age_ms'])}"
    else:
        words = f"{shown} · {row['state']} · open for {duration(row['age_ms'])}"
    return Bracket(row["first_offset"], words, row["address"], row["hanging"])


async def _positions(view: View, at: TopicPartition, info: PartitionInfo) -> tuple[list[Row], int]:
    """Return the groups with an offset of this partition, and the number of groups that may have one, too.

    Which groups those are is asked for now and then.

    Of more than `GROUPS_AT_MOST` groups, only so many are asked.
    """

    async def find(asker: Asker) -> tuple[dict[str, int], int]:
        """Return group -> coordinator of those with an offset here, and the number of groups that may have one, too."""
        listed = [each for each in await groups.listed(view, asker) if each.type not in WITHOUT_OFFSETS]
        some = {each.group_id: each.coordinator for each in listed[:GROUPS_AT_MOST]}
        answered = await _committed(asker, some, at)
        mine = [name for name, offset in answered.items() if offset is not None]
        shown = mine[:POSITIONS_AT_MOST]
        return {name: some[name] for name in shown}, len(listed) - len(answered) + len(mine) - len(shown)

    places, left_out = await view.every(GROUPS_EVERY_MS, "groups", find)
    ends = {at: Ends(info.high_watermark, info.last_stable_offset)}
    rows: list[Row] = []
    for group, offset in (await _committed(view.asker, places, at)).items():
        if offset is not None:
            lag = lag_of({at: offset}, ends)
            row = {"group": group, "committed": offset, "lag_lso": lag.stable, "lag_hw": lag.high_watermark}
            rows.append({**row, "_group": address("group", id=group)})
    return rows, left_out


async def _committed(asker: Asker, coordinators: Mapping[str, int], at: TopicPartition) -> dict[str, int | None]:
    """Return the committed offsets of groups (group -> node id of its coordinator) in a partition."""

    async def ask(cluster: ClusterClient, node: int, some: list[str]) -> requests.Committed:
        return await requests.committed(cluster, node, some, [at])

    return {name: found.get(at) for name, found in (await asker.answers("groups", coordinators, ask)).items()}
