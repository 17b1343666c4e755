"""`oncelog sink`: show the open transactions of a Spark sink, and end them without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import confirm, confirmed, connected, formatted, open_admin
from oncelog.cli.lazy import examples

if TYPE_CHECKING:
    from oncelog.spark.writing.options import SinkOptions

OF_A_BATCH = ("kind", "query", "batch", "rows", "settled")


def _common_options(function: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        formatted,
        click.option("--decision-topic", help="The sink's option decisionTopic, if it is set."),
        click.option("--topic", help="The sink's option topic, if the sink has never committed a batch."),
        connected,
        click.argument("prefix"),
    ):
        function = decorate(function)
    return function


def _options(prefix: str, bootstrap: str, topic: str | None, decision_topic: str | None) -> SinkOptions:
    """Return the sink's options. Raises ConnectionFailedError after a few seconds, unlike Spark's driver."""
    from oncelog.cli.client_settings import client_settings
    from oncelog.client.options import is_security
    from oncelog.spark.writing.options import sink_options

    with open_admin(bootstrap):
        pass
    secured = {f"kafka.{name}": value for name, value in client_settings().items() if is_security(name)}
    given = {"kafka.bootstrap.servers": bootstrap, "transactionalIdPrefix": prefix, **secured}
    if topic is not None:
        given["topic"] = topic
    if decision_topic is not None:
        given["decisionTopic"] = decision_topic
    return sink_options(given, streaming=False)


@click.group()
def sink() -> None:
    """List, settle and abort unfinished batches of a Spark sink.

    PREFIX is the sink's option transactionalIdPrefix.
    """


@sink.command("list", epilog=examples("oncelog sink list etl"))
@_common_options
def list_(prefix: str, bootstrap: str, topic: str | None, decision_topic: str | None, form: str) -> None:
    """Show the last decision and the open transactions of the sink with PREFIX. Change nothing."""
    from oncelog.spark.writing.driver import look

    record, left, strays = look(_options(prefix, bootstrap, topic, decision_topic))
    decided = {t.owner[:3] for t in record.transactions}
    shown: dict[str, Any] = {
        "prefix": prefix,
        "kind": record.source.kind,
        "query": record.source.query,
        "batch": record.source.batch,
        "rows": record.rows,
        "settled": record.settled,
        "open": [{"id": o.id, "pid": o.pid, "epoch": o.epoch, "decided": o[:3] in decided} for o in left],
        "hanging": [{"topic": s.at.topic, "partition": s.at.partition, "pid": s.pid, "start": s.start} for s in strays],
    }
    _print(shown, form)


@sink.command(epilog=examples("oncelog sink settle etl"))
@_common_options
def settle(prefix: str, bootstrap: str, topic: str | None, decision_topic: str | None, form: str) -> None:
    """Commit the transactions of the decided batch and abort all others. Fence a driver that still writes to PREFIX."""
    from oncelog.spark.writing.driver import settle as run

    _print(_result(prefix, run(_options(prefix, bootstrap, topic, decision_topic))), form)


@sink.command(epilog=examples("oncelog sink abort etl --yes"))
@_common_options
@confirmed
@click.option("--accept-loss", is_flag=True, help="Abort even if part of the batch is visible already.")
def abort(
    prefix: str,
    bootstrap: str,
    topic: str | None,
    decision_topic: str | None,
    form: str,
    yes: bool,
    accept_loss: bool,
) -> None:
    """Abort all open transactions, and revoke a batch that is decided but not settled. Spark then repeats it."""
    from oncelog.spark.writing.driver import look, undo_decision

    options = _options(prefix, bootstrap, topic, decision_topic)
    if not yes:
        record, *_ = look(options)
        if record.settled:
            confirm(
                f"this aborts all open transactions of {prefix!r}, and revokes a batch that is decided meanwhile",
                yes=yes,
                advice=f". The last batch is settled, so `oncelog sink settle {prefix}` is enough",
            )
        else:
            confirm(
                f"this revokes the decided batch {record.source.batch} of {prefix!r}",
                yes=yes,
                advice=f", or run `oncelog sink settle {prefix}` to commit it",
            )
    done = undo_decision(options, accept_loss=accept_loss)
    _print(_result(prefix, done), form)


def _result(prefix: str, planned: Any) -> dict[str, Any]:
    record = planned.carried().record
    return {
        "prefix": prefix,
        "query": record.source.query,
        "batch": record.source.batch,
        "settled": record.settled,
        "aborted": [owner.id for owner in planned.left],
        "hanging": [{"topic": s.at.topic, "partition": s.at.partition, "pid": s.pid} for s in planned.strays],
    }


def _print(shown: dict[str, Any], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(shown))
        return
    from oncelog.spark.commit.record import NO_SOURCE

    if shown["batch"] == NO_SOURCE.batch:
        shown = {name: value for name, value in shown.items() if name not in OF_A_BATCH} | {"committed": "nothing yet"}
    for name, value in shown.items():
        if isinstance(value, list):
            click.echo(f"{name}: {len(value)}")
            for item in value:
                click.echo("  " + (" ".join(f"{k}={v}" for k, v in item.items()) if isinstance(item, dict) else item))
        else:
            click.echo(f"{name}: {value}")
