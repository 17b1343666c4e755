"""`--log-format`: the lines that a command and its brokers write to stderr, as text or as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from oncelog.broker.json_lines import FORMAT_VARIABLE, FORMATS, OWN_PREFIX, own_line, wants_json


def _choose(context: click.Context, _: click.Parameter, chosen: str | None) -> None:
    """Use the format in this process and in those that it starts."""
    if chosen and not context.resilient_parsing:
        os.environ[FORMAT_VARIABLE] = chosen
        use_log_format()


def with_log_format(**more: Any) -> Callable[[Any], Any]:
    """Return a decorator that adds `--log-format` to a command, with these arguments of `click.option`."""
    return click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        expose_value=False,
        callback=_choose,
        help="Write each line on stderr as text (default), or as a JSON object.",
        **more,
    )


def use_log_format() -> None:
    """Let the handlers of `--log-level` write objects, if these are wanted. The options come in any order."""
    if not wants_json(os.environ):
        return
    import logging

    from oncelog.broker.config.loggers import JsonFormatter

    for handler in logging.root.handlers:
        handler.setFormatter(JsonFormatter())


def note(text: str, *, level: str = "INFO") -> None:
    """Print a line of a command on stderr, in the chosen format."""
    click.echo(own_line(f"{OWN_PREFIX}{text}", os.environ, level=level), err=True)


class Warnings:
    """A logger for code of the broker that a command runs: its warnings are remarks of the command."""

    def warning(self, message: str, *arguments: object) -> None:
        """Print a line on stderr."""
        note(message % arguments, level="WARNING")
