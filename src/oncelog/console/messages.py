"""Read a page of a partition's records, with a bound on the bytes that one look costs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from oncelog.console.log_reader import EMPTY_AT_MOST, fetch
from oncelog.console.log_spans import COMMITTED, MARKERS, Batch, batch_of, states
from oncelog.net.threads import in_thread
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.records import Record, decode_records

if TYPE_CHECKING:
    from oncelog.client.admin.topics import PartitionInfo
    from oncelog.client.discovery.cluster import ClusterClient
    from oncelog.protocol.topics import TopicPartition

FETCH_BYTES = 512 * 1024
FETCHES = 10
LARGEST_BATCH = 32 * 1024 * 1024
"""Bytes of a batch after decompression. The records of a larger one are not shown."""


class Message(NamedTuple):
    """A record with the state of its transaction. A control record has no `record`."""

    offset: int
    timestamp: int
    state: str
    producer_id: int
    producer_epoch: int
    record: Record | None


class Search(NamedTuple):
    """What to look for: from which offset on, how many records, and which of them."""

    begin: int
    limit: int
    key: bytes | None
    contains: bytes
    control: bool
    committed_only: bool


class Found(NamedTuple):
    """The messages of a page. The records up to `read_to` were looked at, and `damaged` batches cannot be decoded."""

    messages: list[Message]
    read_to: int
    damaged: int


async def search(
    cluster: ClusterClient, at: TopicPartition, info: PartitionInfo, open_from: dict[int, int], wanted: Search
) -> Found:
    """Return the messages of a search. It ends at the limit, at the high watermark, or after about 5 MiB."""
    position = max(wanted.begin, info.log_start_offset)
    batches: list[Batch] = []
    views: dict[int, memoryview] = {}
    messages: list[Message] = []
    damaged = empty = 0
    for _ in range(FETCHES):
        stable = position < info.last_stable_offset
        if position >= info.high_watermark:
            break
        fetched = await fetch(cluster, at, position, isolation_level=int(stable), max_bytes=FETCH_BYTES)
        if not fetched:  # a throttled broker, or compaction has removed everything up to there
            empty += 1
            if empty >= EMPTY_AT_MOST:
                position = info.last_stable_offset if stable else info.high_watermark
            continue
        empty = 0
        views = {header.base_offset: view for header, view, _ in fetched}
        batches = [batch_of(header, view, hidden if stable else None) for header, view, hidden in fetched]
        for batch, state in states(batches, open_from):
            found, broken = await in_thread(partial(_messages, batch, state, views[batch.first], wanted))
            damaged += broken
            messages += [each for each in found if each.offset >= position]
            if len(messages) >= wanted.limit:
                kept = messages[: wanted.limit]
                return Found(kept, kept[-1].offset + 1, damaged)
        position = max(position, *(batch.last + 1 for batch in batches))
    return Found(messages, position, damaged)


def _messages(batch: Batch, state: str, view: memoryview, wanted: Search) -> tuple[list[Message], int]:
    """Return the messages of a batch that are wanted, and 1 if it cannot be decoded."""
    who = batch.producer_id, batch.producer_epoch
    if state in MARKERS:
        shown = wanted.control and wanted.key is None and not wanted.contains
        return ([Message(batch.first, batch.timestamp, state, *who, None)] if shown else []), 0
    if wanted.committed_only and state not in ("plain", COMMITTED):
        return [], 0
    try:
        records = decode_records(view, limit=LARGEST_BATCH)
    except ProtocolError:
        return [], 1
    shown_as = "" if state == "plain" else state
    return [
        Message(record.offset, record.timestamp, shown_as, *who, record)
        for record in records
        if record.offset >= wanted.begin and _matches(record, wanted)
    ], 0


def _matches(record: Record, wanted: Search) -> bool:
    if wanted.key is not None and record.key != wanted.key:
        return False
    if not wanted.contains:
        return True
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    names = [name.encode("utf-8", "replace") for name, _ in record.headers]
    return any(wanted.contains in part for part in (*parts, *names) if part is not None)
