"""`oncelog txn log`: print the entries of `__transaction_state`, the log of the transaction coordinators."""

from __future__ import annotations

import json

import click

from oncelog.cli.common import connected, formatted
from oncelog.cli.internal_records import described, of_known_kind, place, place_text, print_records, state_name
from oncelog.cli.lazy import examples
from oncelog.cli.partition_tailer import READ_UNCOMMITTED
from oncelog.coordinator.transactions.records import decode_record
from oncelog.protocol.messages.transaction_log import TransactionLogKey, TransactionLogValue
from oncelog.protocol.records import Record
from oncelog.protocol.topics import TRANSACTION_STATE


@click.command("log", epilog=examples("oncelog txn log etl-1", "oncelog txn log etl-1 --follow --format json"))
@click.argument("transactional_id", required=False)
@click.option("-f", "--follow", is_flag=True, help="Continue with new entries as they arrive.")
@connected
@formatted
def log(transactional_id: str | None, follow: bool, bootstrap: str, form: str) -> None:
    """Print the entries of __transaction_state for TRANSACTIONAL_ID, or for all ids.

    Each state that a transaction reaches is one entry, and each entry is one line. The entries of a partition are in
    the order of their offsets. Compaction keeps at least the last entry of each id.

    With transaction.version 2 (KIP-890), the producer epoch rises in the entry PrepareCommit or PrepareAbort. So each
    transaction ends with a new epoch, and brokers reject its late records. Before version 2, several transactions have
    the same epoch.

    With --format json, an entry has the key and the value as Kafka 4's formatter prints them, the name of the state,
    the partition, the offset and the timestamp.
    """

    print_records(
        bootstrap,
        TRANSACTION_STATE,
        transactional_id,
        lambda partition, record: shown(partition, record, form, transactional_id),
        f"{TRANSACTION_STATE} has no entry of a transactional id {transactional_id!r}; "
        "`oncelog txn list --all` lists all transactional ids",
        isolation=READ_UNCOMMITTED,
        follow=follow,
    )


def shown(partition: int, item: Record, form: str, transactional_id: str | None) -> str | None:
    """Return the line of an entry, or None if it belongs to another transactional id."""
    record = of_known_kind(item, decode_record)
    if record is None:
        return None
    assert isinstance(record.key, TransactionLogKey)
    found = record.key.transactional_id
    if transactional_id not in (None, found):
        return None
    if form == "json":
        return json.dumps({**place(partition, item), **described(record)}, ensure_ascii=False)
    where = place_text(TRANSACTION_STATE, partition, item)
    if record.value is None:
        return f"{where}: {found} is forgotten"
    value = record.value
    assert isinstance(value, TransactionLogValue)
    names = [
        f"{topic.topic}-{number}" for topic in value.transaction_partitions or () for number in topic.partition_ids
    ]
    producer = f"producer {value.producer_id}, epoch {value.producer_epoch}"
    return f"{where}: {found} {state_name(value.transaction_status)} ({producer})" + "".join(
        f" {each}" for each in names
    )
