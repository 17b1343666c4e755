"""`oncelog txn`: what the transaction coordinators know."""

from __future__ import annotations

import click

from oncelog.cli.common import check, connected, formatted, open_cluster, show
from oncelog.cli.lazy import LazyGroup

txn = LazyGroup(
    "txn",
    help="List and describe transactions.",
    table={
        "list": ("oncelog.cli.txn:list_transactions", "List transactional ids and their state."),
        "describe": ("oncelog.cli.txn:describe", "Show one transactional id's producer and partitions."),
    },
)
COLUMNS = ("transactional_id", "coordinator", "producer_id", "state")


@click.command("list")
@click.option("--state", "states", multiple=True, help="Only ids in this state (Ongoing, CompleteCommit, ...).")
@click.option("--producer-id", "producers", type=int, multiple=True, help="Only ids with this producer id.")
@click.option("--duration-ms", type=int, default=-1, help="Only transactions that run for longer.")
@connected
@formatted
def list_transactions(
    states: tuple[str, ...], producers: tuple[int, ...], duration_ms: int, bootstrap: str, form: str
) -> None:
    """List transactional ids of all coordinators."""
    from oncelog.protocol.messages.list_transactions import ListTransactionsRequest

    def request() -> ListTransactionsRequest:
        return ListTransactionsRequest(
            state_filters=list(states), producer_id_filters=list(producers), duration_filter=duration_ms
        )

    rows = []
    with open_cluster(bootstrap) as cluster:
        for coordinator, response in cluster.call_brokers(request).items():
            check(response.error_code, f"transactions of broker {coordinator}")
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


@click.command()
@click.argument("transactional_id")
@connected
@formatted
def describe(transactional_id: str, bootstrap: str, form: str) -> None:
    """Show one transactional id's producer, time-out and open partitions."""
    from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest

    with open_cluster(bootstrap) as cluster:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response = cluster.call_coordinator("transaction", transactional_id, request)
        coordinator = cluster.coordinator("transaction", transactional_id)
    state = response.transaction_states[0]
    check(state.error_code, f"transactional id {transactional_id!r}")
    started = state.transaction_start_time_ms
    row = {
        "transactional_id": transactional_id,
        "coordinator": coordinator,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "state": state.transaction_state,
        "timeout_ms": state.transaction_timeout_ms,
        "started_ms": started if started >= 0 else None,
        "partitions": [f"{item.topic}-{number}" for item in state.topics for number in item.partitions],
    }
    show([row] if form == "text" else row, form)
