"""`oncelog txn`: what transaction coordinators and partitions' leaders know (Kafka's `kafka-transactions`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import check, connected, formatted, open_cluster, show
from oncelog.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from oncelog.client.blocking import BlockingCluster
    from oncelog.protocol.messages.describe_transactions import TransactionState

txn = LazyGroup(
    "txn",
    help="List and describe transactions, find and abort those that hang.",
    table={
        "list": ("oncelog.cli.txn:list_transactions", "List transactional ids and their state."),
        "describe": ("oncelog.cli.txn:describe", "Show one transactional id's producer and partitions."),
        "producers": ("oncelog.cli.txn:producers", "Show what a partition remembers of its producers."),
        "find-hanging": (
            "oncelog.cli.txn_hanging:find_hanging",
            "Find open transactions that no coordinator will end.",
        ),
        "abort": ("oncelog.cli.txn_hanging:abort", "Abort a hanging transaction in one partition."),
    },
)
COLUMNS = ("transactional_id", "coordinator", "producer_id", "state")
PRODUCER_COLUMNS = (
    *("producer_id", "producer_epoch", "latest_coordinator_epoch", "last_sequence"),
    *("last_timestamp", "current_transaction_start_offset"),
)


@click.command("list")
@click.option("--state", "states", multiple=True, help="Only ids in this state (Ongoing, CompleteCommit, ...).")
@click.option("--producer-id", "producers", type=int, multiple=True, help="Only ids with this producer id.")
@click.option("--duration-ms", type=int, default=-1, help="Only transactions that run for longer.")
@click.option("--pattern", default="", metavar="REGEX", help="Only ids that match as a whole (RE2's syntax).")
@connected
@formatted
def list_transactions(
    states: tuple[str, ...], producers: tuple[int, ...], duration_ms: int, pattern: str, bootstrap: str, form: str
) -> None:
    """List transactional ids of all coordinators."""
    rows = []
    with open_cluster(bootstrap) as cluster:
        for coordinator, response in listings(
            cluster,
            state_filters=list(states),
            producer_id_filters=list(producers),
            duration_filter=duration_ms,
            transactional_id_pattern=pattern or None,
        ).items():
            if response.unknown_state_filters:
                raise click.UsageError(f"--state: there is no state {response.unknown_state_filters[0]!r}")
            rows += [
                {
                    "transactional_id": item.transactional_id,
                    "coordinator": coordinator,
                    "producer_id": item.producer_id,
                    "state": item.transaction_state,
                }
                for item in response.transaction_states
            ]
    show(sorted(rows, key=lambda row: str(row["transactional_id"])), form, COLUMNS)


def listings(cluster: BlockingCluster, **filters: Any) -> dict[int, Any]:
    """ListTransactions of every broker, by its id."""
    from oncelog.protocol.messages.list_transactions import ListTransactionsRequest

    responses = cluster.call_brokers(lambda: ListTransactionsRequest(**filters))
    pattern = filters.get("transactional_id_pattern")
    for broker, response in responses.items():
        about = f"transactions of broker {broker}" + (f" that match {pattern!r}" if pattern else "")
        check(response.error_code, about)
    return responses


@click.command()
@click.argument("transactional_id")
@connected
@formatted
def describe(transactional_id: str, bootstrap: str, form: str) -> None:
    """Show one transactional id's producer, time-out and open partitions."""
    with open_cluster(bootstrap) as cluster:
        state = description(cluster, transactional_id)
        check(state.error_code, f"transactional id {transactional_id!r}")
        coordinator = cluster.coordinator("transaction", transactional_id)
    started = state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None
    row = {
        "coordinator": coordinator,
        "transactional_id": transactional_id,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "state": state.transaction_state,
        "timeout_ms": state.transaction_timeout_ms,
        "started_ms": started,
        "duration_ms": None if started is None else int(time.time() * 1000) - started,
        "partitions": [f"{item.topic}-{number}" for item in state.topics for number in item.partitions],
    }
    show([row] if form == "text" else row, form)


def description(cluster: BlockingCluster, transactional_id: str) -> TransactionState:
    """DescribeTransactions of one id, with its error if it has one."""
    from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    found: TransactionState = cluster.call_coordinator("transaction", transactional_id, request).transaction_states[0]
    return found


@click.command()
@click.argument("topic")
@click.option("-p", "--partition", type=click.IntRange(min=0), required=True, help="Its partition.")
@click.option("--broker", type=int, help="Ask this replica, not the leader.")
@connected
@formatted
def producers(topic: str, partition: int, broker: int | None, bootstrap: str, form: str) -> None:
    """Show what a partition remembers of its producers."""
    with open_cluster(bootstrap) as cluster:
        rows = partition_producers(cluster, topic, partition, broker)
    show(rows, form, PRODUCER_COLUMNS)


def partition_producers(
    cluster: BlockingCluster, topic: str, partition: int, broker: int | None = None
) -> list[dict[str, Any]]:
    """DescribeProducers of one partition, a row of `PRODUCER_COLUMNS` for each; the start offset is None if idle."""
    from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest

    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    if broker is None:
        response = cluster.call_leader(topic, partition, request)
    else:
        if broker not in cluster.brokers():
            raise click.UsageError(f"--broker: there is no broker {broker}")
        cluster.partition(topic, partition)
        response = cluster.call_broker(broker, request)
    found = response.topics[0].partitions[0]
    check(found.error_code, f"producers of {topic}-{partition}")
    return [
        {
            "producer_id": item.producer_id,
            "producer_epoch": item.producer_epoch,
            "latest_coordinator_epoch": item.coordinator_epoch,
            "last_sequence": item.last_sequence,
            "last_timestamp": item.last_timestamp,
            "current_transaction_start_offset": item.current_txn_start_offset
            if item.current_txn_start_offset >= 0
            else None,
        }
        for item in sorted(found.active_producers, key=lambda each: each.producer_id)
    ]
