"""Options, output and error texts that the commands for a cluster share."""

from __future__ import annotations

import json
import logging
import queue
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from oncelog import errors
from oncelog.cli.client_settings import (
    CONFIG_VARIABLE,
    PREFIX,
    brokers_in_file,
    client_settings,
    read_command_config,
)

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.client.discovery.cluster import ClusterClient

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Mapping[str, Any]

BROKERS_OPTIONS = ("-b", "--bootstrap-server")
BROKERS_VARIABLE = "ONCELOG_BROKERS"
DEFAULT_BROKERS = "127.0.0.1:9092"
ANSWER_WAIT_MS = 30_000
"""How long a command waits for a response, including all retries."""
CONTACT_WAIT_MS = 5_000
"""How long a command tries to reach a broker. A broker that was killed restarts within this time."""
TOPIC_WAIT_MS = 1_000
"""How long a command waits for a topic that the brokers do not know yet."""


def _addresses(context: click.Context, option: click.Parameter, given: str) -> str:
    from oncelog.client.connections.pool import parse_bootstrap

    in_file = brokers_in_file(context)
    if in_file is not None and context.get_parameter_source(option.name or "") is not ParameterSource.COMMANDLINE:
        return in_file
    try:
        parse_bootstrap(given)
    except errors.ConfigError as error:
        wrong = error.args[0].removeprefix("bootstrap_servers: ")
        raise click.BadParameter(f"{wrong}; without -b, the address comes from {BROKERS_VARIABLE}") from error
    return given


def connected(command: Command) -> Command:
    """Add `-b/--bootstrap-server` and `--command-config`."""
    configured = click.option(
        "--command-config",
        callback=read_command_config,
        expose_value=False,
        is_eager=True,  # it may name the brokers
        envvar=CONFIG_VARIABLE,
        metavar="FILE",
        help=(
            "Properties file with the client's settings, such as security.protocol and sasl.password. "
            f"Default: ${CONFIG_VARIABLE}. Variables such as ${PREFIX}SASL_PASSWORD set the same."
        ),
    )(command)
    return click.option(
        *BROKERS_OPTIONS,
        "bootstrap",
        callback=_addresses,
        envvar=BROKERS_VARIABLE,
        default=DEFAULT_BROKERS,
        metavar="HOST:PORT,...",
        help=(
            "Brokers to connect to. Default: bootstrap.servers in the file of --command-config, "
            f"${BROKERS_VARIABLE}, or {DEFAULT_BROKERS}."
        ),
    )(configured)


def formatted(command: Command) -> Command:
    """Add `--format`."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Print text (default), or JSON for programs.",
    )(command)


def with_max_transaction_timeout(text: str) -> Callable[[Command], Command]:
    """Return a decorator that adds `--max-transaction-timeout` in minutes, with this help."""
    return click.option(
        "--max-transaction-timeout",
        type=click.IntRange(min=0),
        default=15,
        show_default=True,
        metavar="MINUTES",
        help=text,
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Log only the client's errors, because the command prints one sentence when it ends. DEBUG stays as it is."""
    logger = logging.getLogger("oncelog.client")
    level = logger.level
    if not logger.isEnabledFor(logging.DEBUG):
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def require_resolver(bootstrap: str) -> None:
    """Raise ConnectionFailedError if no name server answers for any of the addresses within CONTACT_WAIT_MS.

    The event loop looks up names in threads, and the process waits for them at its end: a minute with two dead name
    servers. A name that does not exist passes: the client tries it again, because its broker may be starting.
    """
    from oncelog.client.connections.pool import parse_bootstrap

    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    hosts = {host for host, _ in parse_bootstrap(bootstrap)}
    for host in hosts:
        threading.Thread(target=_look_up, args=(host, ended), daemon=True).start()
    try:
        ended.get(timeout=CONTACT_WAIT_MS / 1000)
    except queue.Empty:
        names = ", ".join(sorted(hosts))
        raise errors.ConnectionFailedError(
            f"no broker can be reached: looking up {names} has no result within {CONTACT_WAIT_MS // 1000} s"
        ) from None


def _look_up(host: str, ended: queue.SimpleQueue[None]) -> None:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        pass  # the client reports it
    finally:
        ended.put(None)


@contextmanager
def open_admin(bootstrap: str) -> Iterator[Admin]:
    """Yield an admin client. Raises ConnectionFailedError if no broker answers within CONTACT_WAIT_MS."""
    from oncelog import Admin

    require_resolver(bootstrap)
    given = {"client_id": "oncelog-cli", "default_api_timeout_ms": ANSWER_WAIT_MS}
    with quiet(), Admin(bootstrap, {**client_settings(), **given}) as admin:
        admin.cluster.missing_topic_ms = TOPIC_WAIT_MS
        admin.reach(CONTACT_WAIT_MS / 1000)
        yield admin


@asynccontextmanager
async def open_cluster(bootstrap: str) -> AsyncIterator[ClusterClient]:
    """Yield a connected client of the cluster, for commands that read continuously."""
    from oncelog.client.discovery.cluster import ClusterClient
    from oncelog.client.options import COMMON, cluster_options, read_options

    require_resolver(bootstrap)
    given = {"bootstrap_servers": bootstrap, "client_id": "oncelog-cli", "default_api_timeout_ms": ANSWER_WAIT_MS}
    options = cluster_options(read_options(COMMON, client_settings(), given)[0])
    async with ClusterClient(bootstrap, missing_topic_ms=TOPIC_WAIT_MS, **options) as cluster:
        with quiet():  # after that, log warnings: a user who waits long needs the reason
            await cluster.reach(CONTACT_WAIT_MS)
        yield cluster


def with_options(command: Command, options: Sequence[Callable[[Any], Any]]) -> Command:
    """Add options, or decorators that add some, to a command. `--help` has them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def duration(given: str | int) -> int:
    """Return an ISO 8601 duration such as PT1H in ms, and a default as it is: the `type` of an option."""
    from oncelog.client.records import milliseconds

    try:
        return given if isinstance(given, int) else milliseconds(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def assignments(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse the `KEY=VALUE` texts of an option. Raises UsageError."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} takes KEY=VALUE, not {text!r}")
        found[key.strip()] = value.strip()
    return found


confirmed = click.option("--yes", is_flag=True, help="Do it without asking. Necessary if there is no terminal.")
"""The option of each command that destroys something. `confirm` evaluates it."""


def confirm(what: str, *, yes: bool, advice: str = "") -> None:
    """Ask the user to confirm `what`, which cannot be undone. With `yes`, return at once.

    `advice` names an alternative. Raises UsageError if there is no terminal, and click.Abort if the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{what}; add --yes to confirm{advice}")
    click.confirm(f"{what}{advice}. Continue?", abort=True, err=True)


def moment(ms: int) -> str:
    """Return a time in ms since the epoch as ISO 8601 text, as in all output for people. JSON has the number.

    A record may have any number as its time. If it is in no year of the calendar, return the number.
    """
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def printable(text: str) -> str:
    """Return a line for a terminal. A name may have control characters: replace them by their escapes in JSON.

    So a name cannot forge a line or change the terminal, and a line of JSON stays valid.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


@contextmanager
def existing(topic: str, partition: int | None = None) -> Iterator[None]:
    """Replace the error for an unknown topic: say how to list all topics, not how to create one."""
    try:
        yield
    except errors.UnknownTopicError as error:
        if partition is not None and f"topic {topic!r} has " in error.message:  # it lacks only the partition
            raise click.ClickException(error.message) from error
        message = f"topic {topic!r} does not exist; `oncelog topic list` lists all topics"
        raise click.ClickException(message) from error


@contextmanager
def usage(option: str) -> Iterator[None]:
    """Convert a ConfigError to a UsageError that names `option`, because the value comes from the command line."""
    try:
        yield
    except errors.ConfigError as error:
        raise click.UsageError(f"{option}: {error}") from error


def require_all_answers(unanswered: Mapping[int, errors.RetriableError], missing: str) -> None:
    """Fail if a broker has not answered, and name it. `missing` is what a coordinator has."""
    if unanswered:
        each = "; ".join(f"broker {node} did not answer: {error.message}" for node, error in unanswered.items())
        raise click.ClickException(f"{each}. The list may lack its {missing}. Try again later")


def show(data: Any, form: str, columns: Sequence[str] = ()) -> None:
    """Print rows as JSON, or as a table of `columns` (default: the keys of the first row).

    Without rows, print only the headings.
    """
    if form == "json":
        click.echo(printable(json.dumps(data, ensure_ascii=False)))
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
    return ",".join(map(_cell, value)) if isinstance(value, (list, tuple)) else printable(str(value))
