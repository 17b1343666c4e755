"""What the verbs that talk to a cluster share: where it is, what output looks like, what an error code says."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncelog import errors

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.client.discovery.cluster import ClusterClient

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Mapping[str, Any]

BROKERS_OPTIONS = ("-b", "--bootstrap-server")
BROKERS_VARIABLE = "ONCELOG_BROKERS"
DEFAULT_BROKERS = "127.0.0.1:9092"
ANSWER_WAIT_MS = 30_000
"""How long a command waits for an answer, with all retries."""
CONTACT_WAIT_MS = 5_000
"""How long a command looks for a broker: one that was killed is back before."""
TOPIC_WAIT_MS = 1_000
"""How long a command waits for a topic that the brokers do not know (yet)."""


def _addresses(_ctx: click.Context, _option: click.Parameter, given: str) -> str:
    from oncelog.client.connections.pool import parse_bootstrap

    try:
        parse_bootstrap(given)
    except errors.ConfigError as error:
        wrong = error.args[0].removeprefix("bootstrap_servers: ")
        raise click.BadParameter(f"{wrong} (it is taken from {BROKERS_VARIABLE} where it is not given)") from error
    return given


def connected(command: Command) -> Command:
    """Adds `-b/--bootstrap-server`."""
    return click.option(
        *BROKERS_OPTIONS,
        "bootstrap",
        callback=_addresses,
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


@contextmanager
def quiet() -> Iterator[None]:
    """The client logs errors only: one sentence at the end says it all."""
    logger = logging.getLogger("oncelog.client")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def open_admin(bootstrap: str) -> Iterator[Admin]:
    """An admin client; ConnectionFailedError after CONTACT_WAIT_MS when nobody is there."""
    from oncelog import Admin

    with quiet(), Admin(bootstrap, client_id="oncelog-cli", default_api_timeout_ms=ANSWER_WAIT_MS) as admin:
        admin.cluster.missing_topic_ms = TOPIC_WAIT_MS
        admin.reach(CONTACT_WAIT_MS / 1000)
        yield admin


@asynccontextmanager
async def open_cluster(bootstrap: str) -> AsyncIterator[ClusterClient]:
    """For what reads as it goes: a client of the cluster that has reached it, as `open_admin` does."""
    from oncelog.client.discovery.cluster import ClusterClient

    async with ClusterClient(
        bootstrap, client_id="oncelog-cli", api_timeout_ms=ANSWER_WAIT_MS, missing_topic_ms=TOPIC_WAIT_MS
    ) as cluster:
        with quiet():  # from then on somebody may wait for long, and wants to know why
            await cluster.reach(CONTACT_WAIT_MS)
        yield cluster


def assignments(option: str, texts: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE` texts of an option; UsageError."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} takes KEY=VALUE, not {text!r}")
        found[key.strip()] = value.strip()
    return found


def note(text: str) -> None:
    """Something worth to know that is no error, on stderr."""
    click.echo(f"oncelog: {text}", err=True)


@contextmanager
def existing(topic: str, partition: int | None = None) -> Iterator[None]:
    """Around what is done to a topic that is there: that it is not is said without the advice to make it."""
    try:
        yield
    except errors.UnknownTopicError as error:
        if partition is not None and "has partitions" in error.message:
            raise click.ClickException(error.message) from error
        message = f"there is no topic {topic!r}; `oncelog topic list` shows those there are"
        raise click.ClickException(message) from error


@contextmanager
def usage(option: str) -> Iterator[None]:
    """Around a call whose only options are those of the command line: a wrong value is wrong usage."""
    try:
        yield
    except errors.ConfigError as error:
        raise click.UsageError(f"{option}: {error}") from error


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
