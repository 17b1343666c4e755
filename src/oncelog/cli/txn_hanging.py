"""`oncelog txn find-hanging` and `oncelog txn abort`: find and end hanging transactions (KIP-664).

A transaction hangs if it is open in a partition for longer than the largest timeout, and no coordinator knows that it
has to end it there. Consumers with read_committed then wait forever.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from oncelog.cli.common import connected, existing, formatted, moment, open_admin, show, with_max_transaction_timeout
from oncelog.cli.lazy import examples
from oncelog.cli.txn import require_broker

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.client.admin.transactions import ProducerInfo

COLUMNS = (
    *("topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch"),
    *("start_offset", "last_timestamp", "duration_min"),
)
ANY_AGE_MS = -(2**63)
"""A filter that omits no transaction: timestamps may be in the future."""


@click.command("find-hanging", epilog=examples("oncelog txn find-hanging --topic orders"))
@click.option("--topic", help="Search this topic only.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Search this partition of the topic only.")
@click.option("--broker", type=int, help="Search only this broker's replicas.")
@with_max_transaction_timeout("Ignore transactions that are younger. Use the brokers' transaction.max.timeout.ms.")
@connected
@formatted
def find_hanging(
    topic: str | None,
    partition: int | None,
    broker: int | None,
    max_transaction_timeout: int,
    bootstrap: str,
    form: str,
) -> None:
    """Find open transactions that no coordinator will end. Needs --topic or --broker.

    Coordinators hide transactional ids that you may not describe. So a transaction that none shows is hanging only if
    you may describe all ids and the topic __transaction_state, and all coordinators are online. Otherwise, the command
    fails.
    """
    if topic is None and broker is None:
        raise click.UsageError("give --topic or --broker to limit the search")
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    now_ms = int(time.time() * 1000)
    with open_admin(bootstrap) as admin:
        if broker is not None:
            require_broker(admin, broker)
        with existing(topic or "", partition):
            found = admin.find_hanging_transactions(
                topic, partition, broker=broker, older_than_ms=max_transaction_timeout * 60_000
            )
    rows = [
        {
            "topic": item.topic,
            "partition": item.partition,
            "producer_id": item.producer.producer_id,
            "producer_epoch": item.producer.producer_epoch,
            "coordinator_epoch": item.producer.coordinator_epoch,
            "start_offset": item.producer.transaction_start,
            "last_timestamp": item.producer.last_timestamp if form == "json" else moment(item.producer.last_timestamp),
            "duration_min": (now_ms - item.producer.last_timestamp) // 60_000,
        }
        for item in found
    ]
    show(rows, form, COLUMNS)


@click.command(epilog=examples("oncelog txn abort orders -p 0 --start-offset 1000"))
@click.argument("topic")
@click.option("-p", "--partition", type=click.IntRange(min=0), required=True, help="The partition of TOPIC.")
@click.option(
    "--start-offset", type=click.IntRange(min=0), help="First offset of the transaction, as find-hanging shows it."
)
@click.option(
    "--producer-id", type=click.IntRange(min=0), help="Producer id, with both epochs, instead of --start-offset."
)
@click.option("--producer-epoch", type=click.IntRange(0, 2**15 - 1), help="Epoch of --producer-id.")
@click.option("--coordinator-epoch", type=click.IntRange(min=-1), help="Coordinator epoch of --producer-id.")
@click.option("--yes", is_flag=True, help="Abort even if a coordinator may end the transaction.")
@connected
@formatted
def abort(
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    yes: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Abort a hanging transaction in one partition of TOPIC, without its coordinator.

    Do not abort a transaction that a coordinator knows of: its other partitions may be committed. Without --yes, the
    command fails if a coordinator knows of it, or if that cannot be told (see find-hanging).
    """
    from oncelog.client.admin.transactions import FIRST_COORDINATOR_EPOCH

    if (start_offset is None) == (producer_id is None):
        raise click.UsageError("name the transaction by --start-offset, or by --producer-id and its two epochs")
    if producer_id is not None and (producer_epoch is None or coordinator_epoch is None):
        missing = "--producer-epoch" if producer_epoch is None else "--coordinator-epoch"
        raise click.UsageError(f"--producer-id needs {missing}")
    with open_admin(bootstrap) as admin:
        with existing(topic, partition):
            producers = admin.describe_producers(topic, partition)
        opened = (item for item in producers if item.transaction_start >= 0)
        chosen = (item for item in opened if start_offset == item.transaction_start or producer_id == item.producer_id)
        found = next(chosen, None)
        if found is None:
            named = f"of producer id {producer_id}" if start_offset is None else f"that starts at offset {start_offset}"
            raise click.ClickException(f"{topic}-{partition} has no open transaction {named}")
        if not yes:
            _require_hanging(admin, topic, partition, found)
        epoch = found.coordinator_epoch if coordinator_epoch is None else coordinator_epoch
        numbers = {
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch if producer_epoch is None else producer_epoch,
            "coordinator_epoch": max(epoch, FIRST_COORDINATOR_EPOCH),
        }
        admin.abort_transaction(topic, partition, **numbers)
    row = {"topic": topic, "partition": partition, **numbers}
    show([row] if form == "text" else {**row, "aborted": True}, form)


def _require_hanging(admin: Admin, topic: str, partition: int, producer: ProducerInfo) -> None:
    """Raise UsageError if a coordinator will end the transaction in that partition, or nobody can tell."""
    for known in admin.coordinated_transactions([producer.producer_id]):
        if (topic, partition) in known.partitions:
            raise click.UsageError(
                f"this transaction is not hanging: the coordinator of {known.transactional_id!r} knows of it, and its "
                f"state is {known.state}. To abort it in all its partitions, run `oncelog txn terminate "
                f"{known.transactional_id}`; to abort it in this partition only, add --yes"
            )
    hanging = admin.find_hanging_transactions(topic, partition, older_than_ms=ANY_AGE_MS)
    if producer.transaction_start not in {item.producer.transaction_start for item in hanging}:
        raise click.ClickException(f"the transaction has just ended in {topic}-{partition}; it is not hanging")
