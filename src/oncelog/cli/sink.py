"""`oncelog sink`: show what a Spark sink has left open, and end it without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import connected, formatted, open_admin

if TYPE_CHECKING:
    from oncelog.spark.writing.options import SinkOptions


def _common(function: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        formatted,
        click.option("--decision-topic", help="Option decisionTopic of the sink, if it was given."),
        click.option("--topic", help="Option topic of the sink, if nothing was ever committed."),
        connected,
        click.argument("prefix"),
    ):
        function = decorate(function)
    return function


def _options(prefix: str, bootstrap: str, topic: str | None, decision_topic: str | None) -> SinkOptions:
    """Return the sink's options. Raises ConnectionFailedError after a few seconds, unlike Spark's driver."""
    from oncelog.spark.writing.options import sink_options

    with open_admin(bootstrap):
        pass
    given = {"kafka.bootstrap.servers": bootstrap, "transactionalIdPrefix": prefix}
    if topic is not None:
        given["topic"] = topic
    if decision_topic is not None:
        given["decisionTopic"] = decision_topic
    return sink_options(given, streaming=False)


@click.group()
def sink() -> None:
    """List, settle and abort what a Spark sink has left. PREFIX is its option transactionalIdPrefix."""


@sink.command("list")
@_common
def list_(prefix: str, bootstrap: str, topic: str | None, decision_topic: str | None, form: str) -> None:
    """Show the last decision and the open transactions. Changes nothing."""
    from oncelog.spark.commit.record import NOBODY
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
    if record.source == NOBODY and form == "text":
        for name in ("kind", "query", "batch", "rows", "settled"):
            del shown[name]
        shown = {**shown, "committed": "nothing yet"}
    _print(shown, form)


@sink.command()
@_common
def settle(prefix: str, bootstrap: str, topic: str | None, decision_topic: str | None, form: str) -> None:
    """Commit what is decided, abort the rest. Ends a driver that is at work on PREFIX."""
    from oncelog.spark.writing.driver import settle as run

    _print(_done(prefix, run(_options(prefix, bootstrap, topic, decision_topic))), form)


@sink.command()
@_common
@click.option("--yes", is_flag=True, help="Do it.")
@click.option("--accept-loss", is_flag=True, help="Even if part of the batch is visible and the rest is lost.")
def abort(
    prefix: str,
    bootstrap: str,
    topic: str | None,
    decision_topic: str | None,
    form: str,
    yes: bool,
    accept_loss: bool,
) -> None:
    """Abort all that is open, and take back a batch that is decided but not yet settled: Spark replays it."""
    from oncelog.spark.writing.driver import look, undo_decision

    options = _options(prefix, bootstrap, topic, decision_topic)
    if not yes:
        record, *_ = look(options)
        if record.settled:
            raise click.UsageError(
                "no decided batch waits to be taken back; `settle` aborts what else is open. Add --yes to have it "
                "aborted, and a batch that is decided meanwhile taken back"
            )
        raise click.UsageError("this takes a decided batch back; `settle` commits it. Add --yes if that is meant")
    done = undo_decision(options, accept_loss=accept_loss)
    _print(_done(prefix, done), form)


def _done(prefix: str, planned: Any) -> dict[str, Any]:
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
    for name, value in shown.items():
        if isinstance(value, list):
            click.echo(f"{name}: {len(value)}")
            for item in value:
                click.echo("  " + (" ".join(f"{k}={v}" for k, v in item.items()) if isinstance(item, dict) else item))
        else:
            click.echo(f"{name}: {value}")
