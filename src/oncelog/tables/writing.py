"""Write the result of a query to a topic, in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from oncelog import errors
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.client.options import COMMON, option_name
from oncelog.client.producer.blocking import Producer
from oncelog.columns.json_values import Json
from oncelog.tables.bounds import OF_RECORD, OFFSET
from oncelog.tables.layout import VALUE
from oncelog.tables.source import Source

TIMEOUT_MS = 900_000
"""How long the transaction may be open, if the user does not set it. Brokers allow this much by default."""
_OWN = {name: source for name, source in OF_RECORD.items() if name != OFFSET}
"""Columns of a result that become parts of the record, by their names there."""


def write(
    batches: Iterable[pa.RecordBatch],
    topic: str,
    source: Source,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    once: str | None,
) -> int | None:
    """Write batches as records in one transaction. Return their number, or None if `once` was written before.

    With `once`, the transaction also commits an offset of a group of that name. The next run finds it. If two run at a
    time, the second one aborts the transaction of the first one. `config` and `options` are those of the producer. It
    also has those of the source that all clients have.
    """
    if once is not None and not once.strip():
        raise errors.ConfigError("the name of `once` is empty, so the result could be written twice; give a name")
    name = f"oncelog-sql-{uuid.uuid4().hex if once is None else once}"
    settings = {"transaction_timeout_ms": TIMEOUT_MS, **_common(source), **_named(config), **_named(options)}
    with Producer(source.bootstrap_servers, {**settings, "transactional_id": name}) as producer:
        if once is not None:
            producer.begin_transaction()  # the transactions of earlier runs have ended after this
            producer.abort_transaction()
            with source.consumer(name) as consumer:
                if consumer.committed([(topic, 0)]):
                    return None
        waiting = iter(batches)
        first = next(waiting, None)  # a query may need long for its first row
        count = 0
        with producer.transaction() as transaction:
            while first is not None:
                if first.num_rows:
                    transaction.send_table(topic, records(first), value=Json())
                count += first.num_rows
                first = next(waiting, None)
            if once is not None:
                transaction.send_offsets(name, {(topic, 0): OffsetAndMetadata(count, metadata="written")})
        return count


def _common(source: Source) -> dict[str, Any]:
    """Return the settings of a source that all clients have, such as those of TLS and the login."""
    given = {**_named(source.config or {}), **_named(source.options)}
    return {name: value for name, value in given.items() if name in COMMON}


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their names here, so that one spelling of a name replaces another one."""
    return {option_name(name): value for name, value in settings.items()}


def records(batch: pa.RecordBatch) -> pa.Table:
    """Return rows as records: the columns `_key`, `_partition`, `_timestamp` and `_headers`, and the others as value.

    If `value` is the only other one, and a text or bytes, it is the value. Raises ConfigError.
    """
    found = {_OWN[name]: batch.column(name) for name in batch.schema.names if name in _OWN}
    others = [field for field in batch.schema if field.name not in _OWN]
    twice = {field.name for field in others if sum(each.name == field.name for each in others) > 1}
    if twice:
        raise errors.ConfigError(f"the result has two columns {twice.pop()!r}; rename one with AS")
    key = found.get("key")
    if key is not None and not _is_data(key.type):
        found["key"] = key.cast(pa.string())
    columns = [batch.column(field.name) for field in others]
    if [field.name for field in others] == [VALUE] and _is_data(others[0].type):
        value = columns[0]
    elif others:
        value = pa.StructArray.from_arrays(columns, fields=others)
    else:
        value = pa.nulls(batch.num_rows, pa.binary())
    return pa.table({**found, "value": value})


def _is_data(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind))
