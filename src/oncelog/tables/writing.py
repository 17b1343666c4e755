"""Write the result of a query to a topic, in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from oncelog import errors
from oncelog.client.consumer.blocking import Consumer
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.client.producer.blocking import Producer
from oncelog.columns.json_values import Json
from oncelog.tables.bounds import OF_RECORD, OFFSET
from oncelog.tables.layout import VALUE

TIMEOUT_MS = 900_000
"""How long the transaction may be open, if the user does not set it. Brokers allow this much by default."""
_OWN = {name: source for name, source in OF_RECORD.items() if name != OFFSET}
"""Columns of a result that become parts of the record, by their names there."""


def write(
    batches: Iterable[pa.RecordBatch],
    topic: str,
    bootstrap_servers: str | Sequence[str] | None,
    config: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    once: str | None,
    reading: Callable[[str], Consumer],
) -> int | None:
    """Write batches as records in one transaction. Return their number, or None if `once` was written before.

    With `once`, the transaction also commits an offset of a group of that name. The next run finds it. If two run at a
    time, the second one aborts the transaction of the first one. `reading` returns a consumer of a group.
    """
    if once is not None and not once.strip():
        raise errors.ConfigError("the name of `once` is empty, so the result could be written twice; give a name")
    name = f"oncelog-sql-{uuid.uuid4().hex if once is None else once}"
    with Producer(bootstrap_servers, config, **{**_timeout(config), **options, "transactional_id": name}) as producer:
        if once is not None:
            producer.begin_transaction()  # the transactions of earlier runs have ended after this
            producer.abort_transaction()
            with reading(name) as consumer:
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


def _timeout(config: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the timeout of the transaction, unless the user has set it."""
    given = {"transaction.timeout.ms", "transaction_timeout_ms"} & (config or {}).keys()
    return {} if given else {"transaction_timeout_ms": TIMEOUT_MS}


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
