"""`oncelog txn`: show and end transactions, as Kafka's `kafka-transactions` does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from oncelog import errors
from oncelog.cli.common import (
    confirm,
    confirmed,
    connected,
    formatted,
    moment,
    open_admin,
    require_all_answers,
    show,
)
from oncelog.cli.lazy import LazyGroup, examples
from oncelog.cli.log_format import note
from oncelog.coordinator.transactions.metadata import TransactionState
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS

if TYPE_CHECKING:
    from oncelog import Admin

txn = LazyGroup(
    "txn",
    help="List and describe transactions; find and abort hanging ones.",
    table={
        "list": ("oncelog.cli.txn:list_transactions", "List transactional ids and their states."),
        "describe": ("oncelog.cli.txn:describe", "Show the producer and partitions of one transactional id."),
        "log": ("oncelog.cli.txn_log:log", "Print the entries of __transaction_state."),
        "producers": ("oncelog.cli.txn_producers:producers", "Show the state of a partition's producers."),
        "find-hanging": (
            "oncelog.cli.txn_hanging:find_hanging",
            "Find open transactions that no coordinator will end.",
        ),
        "abort": ("oncelog.cli.txn_hanging:abort", "Abort a hanging transaction in one partition."),
        "terminate": ("oncelog.cli.txn:terminate", "Abort the open transaction of a transactional id."),
    },
)
COLUMNS = ("transactional_id", "coordinator", "producer_id", "state")
STATES = tuple(state.text for state in TransactionState)
FINISHED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
"""States of a transactional id that has no open transaction."""
TRANSACTION_COLUMNS = (
    *("coordinator", "transactional_id", "producer_id", "producer_epoch", "state", "timeout_ms"),
    *("started", "duration_ms", "partitions", "home_partition"),
)


def _states(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> list[str]:
    """Return Kafka's names of the states, which may have any case. Raises BadParameter."""
    names = {name.lower(): name for name in STATES}
    for text in texts:
        if text.lower() not in names:
            raise click.BadParameter(f"unknown transaction state {text!r}; the states are {', '.join(STATES)}")
    return [names[text.lower()] for text in texts]


@click.command("list", epilog=examples("oncelog txn list --duration-ms 60000", "oncelog txn list --pattern 'etl-.*'"))
@click.option(
    *("--state", "states"),
    callback=_states,
    multiple=True,
    metavar="STATE",
    help=f"List only ids in this state: {', '.join(STATES)}. Repeatable.",
)
@click.option("--producer-id", "producers", type=int, multiple=True, help="List only this producer id. Repeatable.")
@click.option("--duration-ms", type=int, default=-1, help="List only transactions open for longer than this.")
@click.option("--pattern", default="", metavar="REGEX", help="List only ids that match this RE2 pattern entirely.")
@click.option(
    *("--all", "everything"),
    is_flag=True,
    help="Also list ids without an open transaction. --state, --producer-id and --pattern imply this.",
)
@connected
@formatted
def list_transactions(
    states: list[str],
    producers: tuple[int, ...],
    duration_ms: int,
    pattern: str,
    everything: bool,
    bootstrap: str,
    form: str,
) -> None:
    """List the open transactions of all coordinators. With --all or a filter, list finished ones after them."""
    unanswered: dict[int, errors.RetriableError] = {}
    with open_admin(bootstrap) as admin:
        rows = [
            {
                "transactional_id": item.transactional_id,
                "coordinator": item.coordinator,
                "producer_id": item.producer_id,
                "state": item.state,
            }
            for item in admin.list_transactions(
                states,
                producer_ids=producers,
                longer_than_ms=duration_ms,
                pattern=pattern or None,
                unanswered=unanswered,
            )
        ]
    rows.sort(key=lambda row: row["state"] in FINISHED)  # open ones first
    if not (everything or states or producers or pattern):
        shown = [row for row in rows if row["state"] not in FINISHED]
        if hidden := len(rows) - len(shown):
            text = f"{hidden} transactional ids without an open transaction are not shown; use --all to list them"
            click.echo(text, err=True)
        rows = shown
    show(rows, form, COLUMNS)
    require_all_answers(unanswered, "transactional ids")


@click.command()
@click.argument("transactional_id")
@connected
@formatted
def describe(transactional_id: str, bootstrap: str, form: str) -> None:
    """Show the producer, the timeout and the open partitions of TRANSACTIONAL_ID, and where its log is."""
    from oncelog.cli.internal_records import home_partition
    from oncelog.protocol.topics import TRANSACTION_STATE

    with open_admin(bootstrap) as admin, known_id():
        found = admin.describe_transaction(transactional_id)
        home = home_partition(admin, TRANSACTION_STATE, transactional_id)
    started = found.start_time if found.start_time >= 0 else None
    row: dict[str, object] = {
        "coordinator": found.coordinator,
        "transactional_id": transactional_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.state,
        "timeout_ms": found.timeout_ms,
        "started_ms": started,
        "duration_ms": None if started is None else int(time.time() * 1000) - started,
        "partitions": [f"{topic}-{number}" for topic, number in found.partitions],
        "home_partition": home,
    }
    if form == "text":
        show([{**row, "started": None if started is None else moment(started)}], form, TRANSACTION_COLUMNS)
    else:
        show(row, form)


def sink_prefix(transactional_id: str) -> str | None:
    """Return the transactionalIdPrefix of the Spark sink whose tasks have ids of this form. None: no sink has."""
    if transactional_id.count("/") != 3:
        return None  # without the imports
    from oncelog.spark.commit.names import prefix_of

    return prefix_of(transactional_id)


@contextmanager
def known_id() -> Iterator[None]:
    """Extend the error for an unknown transactional id: say how to list all transactional ids."""
    try:
        yield
    except errors.RequestError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        about = f"{error.message} ({error.code.name}); `oncelog txn list --all` lists all transactional ids"
        raise click.ClickException(about) from error


def _sink_advice(transactional_id: str) -> str:
    prefix = sink_prefix(transactional_id)
    if prefix is None:
        return ""
    return (
        ". The id is one of a Spark sink, whose batch may be decided already: "
        f"`oncelog sink settle {prefix}` commits such a batch, and aborts any other"
    )


_DECIDED = ", although it waits without a timeout for a decision (two-phase commit): look for that first"


@click.command()
@click.argument("transactional_id")
@confirmed
@connected
@formatted
def terminate(transactional_id: str, yes: bool, bootstrap: str, form: str) -> None:
    """Abort the open transaction of TRANSACTIONAL_ID in all its partitions, and fence its producer."""
    with open_admin(bootstrap) as admin, known_id():
        found = admin.describe_transaction(transactional_id)
        confirm(
            f"this fences the producer of {transactional_id!r} ({found.state}, partitions: {len(found.partitions)}) "
            f"and discards its records since its last commit{_DECIDED if found.timeout_ms == NO_TIMEOUT_MS else ''}",
            yes=yes,
            advice=_sink_advice(transactional_id),
        )
        admin.terminate_transaction(transactional_id)
    was_open = found.state == TransactionState.ONGOING.text
    row = {"transactional_id": transactional_id, "producer_id": found.producer_id, "terminated": was_open}
    show([row] if form == "text" else row, form)
    if not was_open:
        note(f"{transactional_id!r} had no open transaction (state {found.state}); its producer is fenced nevertheless")


def require_broker(admin: Admin, broker: int) -> None:
    """Raise UsageError if the cluster does not have this broker."""
    brokers = [item.node_id for item in admin.describe_cluster().brokers]
    if broker not in brokers:
        raise click.UsageError(f"broker {broker} does not exist; the cluster has: {', '.join(map(str, brokers))}")
