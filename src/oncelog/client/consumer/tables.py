"""Fetched batches as Arrow tables: the only part of the consumer that needs pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import oncelog.columns  # noqa: F401 first: it says what is missing, and what brings it

# isort: split
import pyarrow as pa

from oncelog import errors
from oncelog.client.consumer.fetch_loop import damage
from oncelog.client.types import TopicPartition
from oncelog.columns.decode import SCHEMA, SCHEMA_WITH_HEADERS, decode_batches
from oncelog.columns.values import raw_of
from oncelog.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from oncelog.client.consumer.fetcher import Fetched
    from oncelog.client.consumer.reader import Reader
    from oncelog.columns.values import Format

TABLE_BYTES = 1 << 27
"""Of unpacked records, after which a table ends: what is compressed a thousandfold comes in several."""


def decode(
    reader: Reader,
    raw: list[Fetched],
    *,
    include_headers: bool,
    key: Format | None = None,
    value: Format | None = None,
) -> pa.Table:
    """One table of what was fetched, of TABLE_BYTES or a batch more; the reader's positions move behind it, and what is
    left is taken at the next poll.

    KafkaError for a damaged batch, BadRecordError for a value that its format cannot read, and whatever else a format
    raises, once they are what comes next: what lies before them is in the table before.
    """
    started = [(fetched, fetched.position) for fetched in raw]
    moved: dict[TopicPartition, tuple[int, int]] = {}
    tables: list[pa.Table] = []
    left = TABLE_BYTES
    waiting = list(reversed(raw))
    try:
        while waiting and left > 0:
            fetched = waiting[-1]
            state = reader.states.get(fetched.tp)
            if state is None:
                waiting.pop()
                continue  # it was taken away meanwhile
            start = max(fetched.position, state.consumed or 0)
            try:
                table, after = _decode_some(reader, fetched, start, left, include_headers)
                left -= max(table.nbytes, 1)
                if key is not None or value is not None:
                    table, after = _typed(table, {"key": key, "value": value}, start, after)
            except Exception:
                if not tables:
                    raise
                break  # what lies before it comes first
            if tables and table.schema != tables[0].schema:
                break  # a format may find other types in each
            moved[fetched.tp] = after, fetched.last_epoch if after >= fetched.end else -1
            tables.append(table)
            if after < fetched.end:
                fetched.go_to(after)
            else:
                waiting.pop()
        found = pa.concat_tables(tables) if tables else None
    except BaseException:  # nobody gets any of it: an interrupt, or a registry that is away
        for fetched, position in started:
            fetched.go_to(position)
        reader.give_back(reversed(raw))
        raise
    reader.give_back(waiting)
    for tp, (consumed, epoch) in moved.items():
        reader.states[tp].consumed, reader.states[tp].consumed_epoch = consumed, epoch
    return (SCHEMA_WITH_HEADERS if include_headers else SCHEMA).empty_table() if found is None else found


def _decode_some(
    reader: Reader, fetched: Fetched, start: int, max_bytes: int, include_headers: bool
) -> tuple[pa.Table, int]:
    """Records from `start` on. Where a batch is damaged, those before it come first, one batch at a time."""
    topic, partition = fetched.tp
    aborted = None if fetched.aborted is None else [(pid, first) for first, pid in fetched.aborted]
    for limit in (max_bytes, 1):
        try:
            return decode_batches(
                [fetched.raw],
                topic=topic,
                partition=partition,
                start_offset=start,
                aborted=aborted,
                include_headers=include_headers,
                check_crcs=reader.options["check_crcs"],
                max_bytes=limit,
            )
        except ProtocolError as error:
            failure = damage(fetched.tp, start, error)
            failure.__cause__ = error
    raise failure


def _typed(table: pa.Table, formats: dict[str, Format | None], start: int, after: int) -> tuple[pa.Table, int]:
    """Keys and values in their formats, up to the first that cannot be read; BadRecordError where that is the first."""
    end, worst = len(table), None
    columns: dict[str, Any] = {}
    for name, form in formats.items():
        if form is None:
            continue
        plain = table.column(name).combine_chunks()
        plain = plain if isinstance(plain, pa.Array) else pa.concat_arrays(plain.chunks)
        columns[name], bad = form.decode(plain)
        if form.keep_bad:
            columns[f"{name}_bad"] = raw_of(plain, bad)
        elif bad and bad[0].row < end:
            end, worst = bad[0].row, (name, bad[0].reason)
    if worst is not None and end == 0:
        row = table.slice(0, 1).to_pylist()[0]
        raise errors.BadRecordError(worst[0], row["topic"], row["partition"], row["offset"], worst[1])
    if worst is not None:
        after = table.column("offset")[end].as_py()
    for name, column in columns.items():
        index = table.schema.get_field_index(name)
        table = table.append_column(name, column) if index < 0 else table.set_column(index, name, column)
    return table.slice(0, end), after
