"""The root command: the table of all command groups, and how errors are printed.

Exit status: 0 for success, 1 for an error (one sentence on stderr), 2 for wrong usage, 130 for Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click
from click.core import ParameterSource

from oncelog.broker.json_lines import FORMAT_VARIABLE
from oncelog.cli.lazy import LazyGroup, examples
from oncelog.cli.log_format import note, use_log_format, with_log_format
from oncelog.version import __version__, build

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("oncelog.cli.up:up", "Run a broker in the foreground, with its data in ./.oncelog."),
    "broker": ("oncelog.cli.broker:broker", "Run one broker from a server.properties file."),
    "export": ("oncelog.cli.export:export", "Prepare the data of a stopped broker for Apache Kafka."),
    "topic": (
        "oncelog.cli.topic:topic",
        "Create, list, describe, alter and delete topics; produce, consume, export.",
    ),
    "sql": ("oncelog.cli.sql:sql", "Query topics with SQL."),
    "group": ("oncelog.cli.group:group", "List, describe, seek, alter and delete consumer groups."),
    "txn": ("oncelog.cli.txn:txn", "List and describe transactions; find and abort hanging ones."),
    "producer": ("oncelog.cli.producer:producer", "Show where producers get their ids."),
    "acl": ("oncelog.cli.acl:acl", "Add, list and delete ACLs (access control lists)."),
    "user": ("oncelog.cli.user:user", "Add, list and delete users that log in with SCRAM."),
    "quota": ("oncelog.cli.quota:quota", "Set, list and delete client quotas."),
    "token": ("oncelog.cli.token:token", "Create, renew, expire and list delegation tokens."),
    "cluster": ("oncelog.cli.cluster:cluster", "Describe the cluster; change broker settings and features."),
    "top": ("oncelog.cli.top:top", "Show topics, groups, transactions and brokers, live."),
    "metrics": ("oncelog.cli.metrics:metrics", "Print a board for Grafana and alerts for Prometheus."),
    "log": ("oncelog.cli.log_dump:log", "Print the contents of a partition's files."),
    "faults": ("oncelog.cli.faults:faults", "Run a proxy that causes faults between clients and brokers."),
    "story": ("oncelog.cli.story:story", "Show what may go wrong with records, groups and transactions."),
    "console": ("oncelog.cli.console:console", "Show a cluster in a browser."),
    "sink": ("oncelog.cli.sink:sink", "List, settle and abort unfinished batches of a Spark sink."),
}
"""Command group -> (module:command, help)."""


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"oncelog {__version__} ({build()})")
        context.exit()


def _set_log_level(context: click.Context, option: click.Parameter, text: str | None) -> None:
    """Log to stderr in this process and in those that it starts. Raises BadParameter."""
    if not text or context.resilient_parsing:
        return
    import logging

    from oncelog.broker.config.errors import ConfigError
    from oncelog.broker.config.loggers import LEVEL_VARIABLE, start_levels

    os.environ[LEVEL_VARIABLE] = text
    try:
        start_levels(os.environ)
    except ConfigError as error:
        of_variable = context.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT
        found = f" (from ${LEVEL_VARIABLE})" if of_variable else ""
        raise click.BadParameter(f"{error}{found}", context, option) from None
    line = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=line, datefmt="%Y-%m-%d %H:%M:%S")
    use_log_format()


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("oncelog up", "oncelog topic create orders -p 6", "oncelog topic consume orders"),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.option(
    "--log-level",
    metavar="LEVEL",
    envvar="ONCELOG_LOG_LEVEL",
    expose_value=False,
    callback=_set_log_level,
    help="Log to stderr, for example at DEBUG. Also LOGGER=LEVEL, separated by commas.",
)
@with_log_format(envvar=FORMAT_VARIABLE)
def oncelog() -> None:
    """Run a broker that speaks Kafka's protocol, and administer any Kafka cluster."""


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run a command line, then end the process with its exit status. Default: the arguments of the process."""
    try:
        status = _invoke(sys.argv[1:] if arguments is None else arguments)
        if sys.stdout is not None:  # it is None if the process has started with a closed stdout
            sys.stdout.flush()
    except click.UsageError as error:
        _with_hint(error).show()
        _end(2)
    except click.ClickException as error:
        _fail(error, error.format_message())
    except (KeyboardInterrupt, EOFError, click.Abort):
        _end(130)
    except BrokenPipeError as error:
        if not _reader_has_gone():
            _fail(error, describe(error))
        _end(0)
    except Exception as error:  # noqa: BLE001 - print a sentence instead of a traceback
        _fail(error, describe(error))
    _end(status if isinstance(status, int) else 0)


def _invoke(arguments: list[str]) -> object:
    """Run a command, and return its result or status. `click.Group.main` would end with status 1 at a broken pipe."""
    try:
        with oncelog.make_context("oncelog", arguments) as context:
            return oncelog.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code


def _reader_has_gone() -> bool:
    """Return whether stdout or stderr is a pipe or socket that is not read any more."""
    import select

    poller = select.poll()
    for number in (1, 2):
        poller.register(number, 0)  # errors are always reported
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


def _with_hint(error: click.UsageError) -> click.UsageError:
    """Extend the error for an option at the wrong place: say where it belongs. Put click's words about numbers plainly.

    -b comes after the command, and --log-level before it.
    """
    from oncelog.cli.common import BROKERS_OPTIONS

    strange = "is not a valid integer range."
    if strange in error.message and isinstance(error, click.BadParameter):
        plain = error.message.replace(strange, "is not a whole number.")
        return click.BadParameter(plain, error.ctx, error.param, error.param_hint)
    if isinstance(error, click.NoSuchOption) and error.option_name == "--log-level" and error.ctx is not None:
        words = error.ctx.command_path.removeprefix("oncelog ")
        return click.UsageError(
            f"--log-level comes before the command: `oncelog --log-level LEVEL {words} ...`", error.ctx
        )
    of_group = error.ctx is not None and isinstance(error.ctx.command, click.Group)
    if not of_group or not isinstance(error, click.NoSuchOption) or error.option_name not in BROKERS_OPTIONS:
        return error
    text = f"{error.option_name} comes after the command: `oncelog topic list {error.option_name} HOST:PORT`"
    return click.UsageError(text, error.ctx)


def describe(error: Exception) -> str:
    """Return the sentence to print for an error that no command handles."""
    from oncelog.broker.config.errors import ConfigError
    from oncelog.broker.process import TRACE_VARIABLE
    from oncelog.cli.common import BROKERS_VARIABLE
    from oncelog.errors import ConnectionFailedError, KafkaError, OncelogError, RequestError
    from oncelog.protocol.errors import ProtocolError

    if isinstance(error, RequestError) and error.advice == RequestError.default_advice:
        return f"{error.message} ({error.code.name})"  # the command's message says what to do
    if isinstance(error, ConnectionFailedError) and error.advice == ConnectionFailedError.default_advice:
        advice = f"Check -b (or {BROKERS_VARIABLE}) and that the broker runs, then try again."
        return f"{error.message} ({error.code.name}). {advice}"
    advice = _own_advice(error)
    if isinstance(error, KafkaError) and advice:
        return f"{error.message} ({error.code.name}). {advice}"
    if isinstance(error, (OncelogError, ProtocolError, ConfigError)):
        return str(error)
    if isinstance(error, ImportError) and "pip install" in str(error):  # the message names the missing extra
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    return f"unexpected {type(error).__name__}: {error} (set {TRACE_VARIABLE}=1 to print the traceback)"


def _own_advice(error: Exception) -> str:
    """Return what a user of the command line can do, if the advice of the error is for a program with our client."""
    from oncelog import errors

    if isinstance(error, errors.AbortableError):
        return "The transaction is aborted, so none of its records becomes visible. Run the command again."
    if isinstance(error, errors.FencedError):
        return "A newer producer uses the transactional id. Stop it, or use another id."
    if isinstance(error, errors.KafkaError) and error.advice == type(error).default_advice:
        advice: dict[type[errors.KafkaError], str] = {
            errors.AuthenticationError: "Correct what the message names, then run the command again.",
            errors.AuthorizationError: "Grant the permission, then run the command again.",
            errors.FatalError: "Run the command again.",
        }
        return advice.get(type(error), "")
    return ""


def _fail(error: Exception, sentence: str) -> NoReturn:
    note(sentence, level="ERROR")
    from oncelog.broker.process import TRACE_VARIABLE

    if os.environ.get(TRACE_VARIABLE):
        import traceback

        traceback.print_exception(error)
    _end(1)


def _end(status: int) -> NoReturn:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
