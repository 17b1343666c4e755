"""The pages of messages: read some of a partition, and produce one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from oncelog.aio import Producer
from oncelog.client.admin.topics import PartitionInfo
from oncelog.console import formats
from oncelog.console.formats import address, crumbs_to
from oncelog.console.guard import RefusedError
from oncelog.console.messages import Found, Message, Search, search
from oncelog.console.model import Actor, Page, View
from oncelog.console.pages import producers
from oncelog.console.pages.group import time_of
from oncelog.console.tables import Column, Row, Table

COLUMNS = (
    Column("offset", "Offset", "number"),
    Column("timestamp", "Time", "time", "UTC"),
    Column("key", "Key", "data"),
    Column("value", "Value", "data"),
    Column("headers", "Headers", "data"),
    Column("state", "Transaction", "state"),
    Column("producer_id", "Producer", "id"),
)
FORMS = ("text", "json", "hex")
STARTS = ("end", "start", "offset", "time")
REFUSALS = {
    "offset": "The offset must be a number.",
    "time": "The time must be like 2026-11-28T12:00:00, in UTC, or a number of ms.",
}
SHOWN_BYTES = 2_000
SHOWN_ALONE = 256 * 1024
"""Bytes of a value in a list, and on the page of one message."""
MOST_HEADERS = 50
LONGEST_VALUE = 1024 * 1024


async def load(view: View) -> Page:
    """Load some messages of a partition. Raises UnknownTopicError."""
    topic, number = view.path["topic"], view.path["partition"]
    await view.admin.cluster.partition(topic, number)
    [known] = await view.admin.describe_topics(topic, partitions=[number])
    info = known.partitions[0]
    limit = view.number("limit", 25, 1, 50)
    refusal = None
    try:
        begin = await _begin(view, info, limit)
    except ValueError:
        begin, refusal = info.high_watermark, REFUSALS[view.query["at"]]
    key = view.query.get("key", "")
    wanted = Search(
        begin=begin,
        limit=limit,
        key=key.encode() if key else None,
        contains=view.query.get("contains", "").encode(),
        control=view.flag("control"),
        committed_only=view.flag("committed"),
    )
    seen = await producers.visible(view, topic, number)
    open_from = {each.producer_id: each.transaction_start for each in seen if each.transaction_start >= 0}
    found = await search(view.admin.cluster, (topic, number), info, open_from, wanted)
    form = view.query.get("as", "text")
    form = form if form in FORMS else "text"
    table = Table("messages", "Messages", COLUMNS, view.query, links={"offset": "_offset"}, empty="No message found.")
    most = SHOWN_ALONE if limit == 1 else SHOWN_BYTES
    messages = found.messages if view.query.get("at") in ("offset", "start", "time") else found.messages[::-1]
    table.fill(_row(view, each, form, most) for each in messages)
    crumbs = crumbs_to(topic, number)
    facts = {
        "topic": topic,
        "partition": number,
        "begin": begin,
        "read_to": found.read_to,
        "high_watermark": info.high_watermark,
        "damaged_batches": found.damaged,
        "refusal": refusal,
    }
    extra = {
        "asked": _asked(view, limit, form),
        "further": _further(view, found, info),
        "forms": FORMS,
        "starts": STARTS,
    }
    return Page(f"Messages of {topic}-{number}", "messages.html", facts, [table], extra=extra, crumbs=crumbs)


async def _begin(view: View, info: PartitionInfo, limit: int) -> int:
    """Return the offset to begin at. Raises ValueError for an offset or a time that is none."""
    start = view.query.get("at", "end")
    if start == "start":
        return info.log_start_offset
    if start == "offset":
        return int(view.query.get("offset") or info.log_start_offset)
    if start == "time":
        wanted = {(view.path["topic"], view.path["partition"]): time_of(view.query.get("time", ""))}
        [offset] = (await view.admin.offsets(wanted)).values()
        return info.high_watermark if offset < 0 else offset
    return max(info.log_start_offset, info.high_watermark - limit)


def _asked(view: View, limit: int, form: str) -> dict[str, Any]:
    """Return what the form of the page shows."""
    found = {name: view.query.get(name, "")[:1000] for name in ("offset", "time", "key", "contains")}
    at = view.query.get("at", "end")
    switches = {name: view.flag(name) for name in ("control", "committed")}
    return {**found, **switches, "at": at if at in STARTS else "end", "limit": limit, "as": form}


def _further(view: View, found: Found, info: PartitionInfo) -> str | None:
    """Return the query that continues the search, or None at the end of the log."""
    if found.read_to >= info.high_watermark:
        return None
    kept = {name: value for name, value in view.query.items() if name not in ("at", "offset", "time", "page")}
    return "?" + urlencode({**kept, "at": "offset", "offset": found.read_to})


def _row(view: View, message: Message, form: str, most: int) -> Row:
    topic, number = view.path["topic"], view.path["partition"]
    row: Row = {
        "offset": message.offset,
        "timestamp": message.timestamp if message.timestamp >= 0 else None,
        "key": None,
        "value": None,
        "headers": None,
        "state": message.state or None,
        "producer_id": message.producer_id if message.producer_id >= 0 else None,
        "_offset": address("topics", topic, number, "messages", at="offset", offset=message.offset, limit=1, control=1),
    }
    if message.record is None:
        return {**row, "_marker": True}
    record = message.record
    for name, data in (("key", record.key), ("value", record.value)):
        text, cut = formats.text_of(data, form, most)
        row[name] = None if data is None else text
        row[f"{name}_bytes"] = None if data is None else len(data)
        row[f"{name}_is_cut"] = cut
    headers = []
    for name, data in record.headers[:MOST_HEADERS]:
        text, cut = formats.text_of(data, form if form == "hex" else "text", 500)
        headers.append(f"{name[:500]}: {text}{'…' if cut else ''}")
    if len(record.headers) > MOST_HEADERS:
        headers.append(f"… and {len(record.headers) - MOST_HEADERS} more")
    row["headers"] = headers or None
    return row


async def load_form(view: View) -> Page:
    """Load the form to produce a message. Raises UnknownTopicError."""
    topic = view.path["topic"]
    known = await view.admin.cluster.topic(topic)
    facts = {"topic": topic, "partitions": len(known.partitions)}
    crumbs = crumbs_to(topic)
    return Page(f"Produce to {topic}", "produce.html", facts, extra={"live": False}, crumbs=crumbs)


async def produce(actor: Actor, path: Mapping[str, Any], form: Mapping[str, str]) -> str:
    """Send one record with an idempotent producer, and wait until all in-sync replicas have it."""
    topic = path["topic"]
    partition = form.get("partition", "")
    if partition and not partition.isdecimal():
        raise RefusedError(400, f"{partition[:20]!r} is not the number of a partition.")
    value = None if form.get("null") else form.get("value", "").encode()
    if value is not None and len(value) > LONGEST_VALUE:
        raise RefusedError(413, "The value is longer than 1 MiB.")
    headers = [_header(line) for line in form.get("headers", "").splitlines() if line.strip()]
    key = form.get("key", "").encode() or None
    known = await actor.admin.cluster.topic(topic)  # a mistyped name must not create a topic
    if partition and int(partition) not in known.partitions:
        raise RefusedError(400, f"Topic {topic!r} has no partition {partition}.")
    async with Producer(actor.bootstrap, actor.config, acks="all") as producer:
        sent = await producer.send(
            topic, value, key=key, partition=int(partition) if partition else None, headers=headers
        )
        done = await sent
    return address("topics", topic, done.partition, "messages", at="offset", offset=done.offset)


def _header(line: str) -> tuple[str, bytes]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise RefusedError(400, f"A header is NAME: VALUE, not {line[:80]!r}.")
    return name.strip(), value.strip().encode()
