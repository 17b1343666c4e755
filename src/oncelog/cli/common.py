"""What the verbs that talk to a cluster share: where it is, what output looks like, what an error code says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncelog import errors

if TYPE_CHECKING:
    from oncelog.client.blocking import BlockingCluster

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Mapping[str, Any]

BROKERS_VARIABLE = "ONCELOG_BROKERS"
DEFAULT_BROKERS = "127.0.0.1:9092"
ANSWER_WAIT_MS = 30_000
"""How long a command waits for an answer, with all retries."""
TOPIC_WAIT_MS = 1_000
"""How long a command waits for a topic that the brokers do not know (yet)."""


def connected(command: Command) -> Command:
    """Adds `-b/--bootstrap-server`."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        envvar=BROKERS_VARIABLE,
        default=DEFAULT_BROKERS,
        metavar="HOST:PORT,...",
        help=f"Brokers to ask (${BROKERS_VARIABLE}, else {DEFAULT_BROKERS}).",
    )(command)


def formatted(command: Command) -> Command:
    """Adds `--format`."""
    return click.option(
        "--format", "form", type=click.Choice(["text", "json"]), default="text", help="Output for people or programs."
    )(command)


def open_cluster(bootstrap: str) -> BlockingCluster:
    """A client of the cluster, as a context manager; ConnectionFailedError at once when nobody is there."""
    from oncelog.client.blocking import BlockingCluster

    cluster = BlockingCluster(bootstrap, client_id="oncelog-cli", api_timeout_ms=ANSWER_WAIT_MS)
    try:
        cluster.refresh([])
    except BaseException:
        cluster.close()
        raise
    return cluster


def check(code: int, about: str) -> None:
    """Raises the exception of an error code unless it is NONE."""
    if code:
        raise errors.error_for(code, about)


@contextmanager
def existing(topic: str) -> Iterator[None]:
    """Around what is done to a topic that is there: that it is not is said without the advice to make it."""
    try:
        yield
    except errors.UnknownTopicError as error:
        message = f"there is no topic {topic!r}; `oncelog topic list` shows those there are"
        raise click.ClickException(message) from error


def show(data: Any, form: str, columns: Sequence[str] = ()) -> None:
    """Prints rows as JSON or as a table with these columns (by default those of the first row).

    Without rows the columns' headings stand alone, to say that nothing is there.
    """
    if form == "json":
        click.echo(json.dumps(data, ensure_ascii=False))
        return
    names = list(columns or (data[0] if data else ()))
    cells = [[_cell(row[name]) for name in names] for row in data]
    if not names:
        return
    headings = [name.replace("_", " ").upper() for name in names]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for line in (headings, *cells):
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(_cell, value)) if isinstance(value, (list, tuple)) else str(value)
