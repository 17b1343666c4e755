"""Convert fetched batches to Arrow tables. This is the only part of the consumer that needs pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
import pyarrow as pa

from oncelog import errors
from oncelog.client.consumer.completed_fetch import unreadable_batch
from oncelog.columns.decode import SCHEMA, SCHEMA_WITH_HEADERS, decode_batches
from oncelog.columns.record_headers import decoded
from oncelog.columns.values import joined, of_headers, raw_of
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncelog.client.consumer.completed_fetch import CompletedFetch
    from oncelog.client.consumer.subscription_state import SubscriptionState
    from oncelog.columns.values import Format

TABLE_BYTES = 1 << 27
"""The size of unpacked records at which a table ends. Highly compressed batches become several tables."""


def decode(
    subscription: SubscriptionState,
    fetches: list[CompletedFetch],
    *,
    check_crcs: bool,
    include_headers: bool,
    key: Format | None = None,
    value: Format | None = None,
    count: Callable[[str, int], None] = lambda topic, records: None,
) -> pa.Table:
    """Return one table of fetched records, of TABLE_BYTES or a batch more, and move the `consumed` offsets past it.

    The next poll returns the remaining records. If the first batch is damaged, raise CorruptRecordError. If a format
    cannot read the first value, raise BadRecordError. Other errors of a format are raised unchanged. Records before an
    error are returned in an earlier table. Call `count` with the topics and numbers of the returned records.
    """
    formats = {"key": key, "value": value}
    needs_headers = include_headers or any(map(_reads_headers, formats.values()))
    started = [(fetch, fetch.position) for fetch in fetches]
    moved: dict[TopicPartition, tuple[int, int]] = {}
    tables: list[pa.Table] = []
    counted: list[tuple[str, int]] = []
    left, waiting = TABLE_BYTES, list(reversed(fetches))
    try:
        while waiting and left > 0:
            fetch = waiting[-1]
            state = subscription.partitions.get(fetch.tp)
            if state is None:
                waiting.pop()
                continue  # the partition was revoked meanwhile
            start = max(fetch.position, state.consumed or 0)
            try:
                table, after = _decode_some(fetch, start, left, check_crcs, needs_headers)
                left -= max(table.nbytes, 1)
                if key is not None or value is not None:
                    table, after = _typed(table, formats, start, after, include_headers)
            except Exception:
                if not tables:
                    raise
                break  # return the records before the error first
            if tables and table.schema != tables[0].schema:
                break  # a format without a fixed type may produce another schema
            moved[fetch.tp] = after, fetch.last_epoch if after >= fetch.end else -1
            tables.append(table)
            counted.append((fetch.tp[0], len(table)))
            if after < fetch.end:
                fetch.go_to(after)
            else:
                waiting.pop()
        found = pa.concat_tables(tables) if tables else None
    except BaseException:  # the caller gets no table (an interrupt, or no schema registry): restore the positions
        for fetch, position in started:
            fetch.go_to(position)
        subscription.give_back(reversed(fetches))
        raise
    subscription.give_back(waiting)
    for topic, number in counted:
        count(topic, number)
    for tp, (consumed, epoch) in moved.items():
        state = subscription.partitions[tp]
        state.consumed, state.consumed_epoch = consumed, epoch
    return (SCHEMA_WITH_HEADERS if include_headers else SCHEMA).empty_table() if found is None else found


def _decode_some(
    fetch: CompletedFetch, start: int, max_bytes: int, check_crcs: bool, include_headers: bool
) -> tuple[pa.Table, int]:
    """Return records from `start` on. If a batch is damaged, return those before it first, one batch at a time."""
    topic, partition = fetch.tp
    aborted = None if fetch.aborted is None else [(pid, first) for first, pid in fetch.aborted]
    for limit in (max_bytes, 1):
        try:
            return decode_batches(
                [fetch.raw],
                topic=topic,
                partition=partition,
                start_offset=start,
                aborted=aborted,
                include_headers=include_headers,
                check_crcs=check_crcs,
                max_bytes=limit,
            )
        except ProtocolError as error:
            failure = unreadable_batch(fetch.tp, start, error)
            failure.__cause__ = error
    raise failure


def _reads_headers(form: Format | None) -> bool:
    with_ids = of_headers(form)
    return with_ids is not None and with_ids.ids_in_headers


def _typed(
    table: pa.Table, formats: dict[str, Format | None], start: int, after: int, include_headers: bool
) -> tuple[pa.Table, int]:
    """Return keys and values in their formats, up to the first bad one. Raise BadRecordError if that is the first."""
    end, worst = len(table), None
    columns: dict[str, Any] = {}
    for name, form in formats.items():
        if form is None:
            continue
        columns[name], bad = decoded(form, name, table)
        if form.keep_bad:
            columns[f"{name}_bad"] = raw_of(joined(table.column(name)), bad)
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
    if "headers" in table.column_names and not include_headers:
        table = table.drop_columns(["headers"])  # only a format needed them
    return table.slice(0, end), after
