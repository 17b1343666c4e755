"""`oncelog txn producers`: show what a partition knows of its producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import connected, existing, formatted, moment, open_admin, show
from oncelog.cli.lazy import examples
from oncelog.cli.txn import require_broker

if TYPE_CHECKING:
    from oncelog.client.admin.producer_batches import PartitionProducers
    from oncelog.client.admin.transactions import ProducerInfo

COLUMNS = (
    *("producer_id", "producer_epoch", "latest_coordinator_epoch", "last_sequence"),
    *("last_timestamp", "current_transaction_start_offset"),
)
BATCH_COLUMNS = (
    *("producer_id", "producer_epoch", "first_sequence", "last_sequence"),
    *("first_offset", "last_offset", "timestamp"),
)
COUNTERS = ("duplicate_batches", "sequence_gaps", "stale_sequences")


@click.command(epilog=examples("oncelog txn producers orders -p 0", "oncelog txn producers orders -p 0 --batches"))
@click.argument("topic")
@click.option("-p", "--partition", type=click.IntRange(min=0), required=True, help="The partition of TOPIC.")
@click.option("--broker", type=int, help="Query this broker's replica instead of the leader.")
@click.option(
    "--batches",
    is_flag=True,
    help="Also show the last five batches of each producer, and the counters of the partition. Only with oncelog's "
    "broker: Apache Kafka does not show them.",
)
@connected
@formatted
def producers(topic: str, partition: int, broker: int | None, batches: bool, bootstrap: str, form: str) -> None:
    """Show the producers of a partition: ids, epochs, last sequence number, and open transaction.

    The broker compares each batch of an idempotent producer with the five batches that --batches shows. If one has the
    same first and last sequence, the new batch is a duplicate, and the response has the offset of the first one. The
    broker also counts gaps (an earlier batch has not arrived) and stale sequences (before the expected one, but not a
    duplicate) since it opened the log.
    """
    with open_admin(bootstrap) as admin:
        if broker is not None:
            require_broker(admin, broker)
        with existing(topic, partition):
            if batches:
                _show_batches(admin.describe_producer_batches(topic, partition, broker=broker), form)
            else:
                found = admin.describe_producers(topic, partition, broker=broker)
                show([_row(item, form) for item in found], form, COLUMNS)


def _row(item: ProducerInfo, form: str) -> dict[str, Any]:
    return {
        "producer_id": item.producer_id,
        "producer_epoch": item.producer_epoch,
        "latest_coordinator_epoch": item.coordinator_epoch,
        "last_sequence": item.last_sequence,
        "last_timestamp": item.last_timestamp if form == "json" else moment(item.last_timestamp),
        "current_transaction_start_offset": item.transaction_start if item.transaction_start >= 0 else None,
    }


def _show_batches(found: PartitionProducers, form: str) -> None:
    counters = {name: getattr(found, name) for name in COUNTERS}
    if form == "json":
        rows = [
            {**_row(item, form), "batches": [batch._asdict() for batch in remembered]}
            for item, remembered in found.producers
        ]
        show({"producers": rows, **counters}, form)
        return
    show([_row(item, form) for item, _ in found.producers], form, COLUMNS)
    click.echo()
    batches = [
        {
            "producer_id": item.producer_id,
            "producer_epoch": item.producer_epoch,
            **batch._asdict(),
            "timestamp": moment(batch.timestamp),
        }
        for item, remembered in found.producers
        for batch in remembered
    ]
    show(batches, form, BATCH_COLUMNS)
    click.echo()
    show([counters], form, COUNTERS)
