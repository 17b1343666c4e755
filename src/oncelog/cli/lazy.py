"""Command groups that import a command when it runs, and the text of a command's examples."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


def examples(*lines: str) -> str:
    """Return the examples that `--help` prints below the options, one command per line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class LazyGroup(click.Group):
    """A group of the commands in a table: name -> (module:command, help)."""

    def __init__(self, *arguments: Any, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command and return it. Return None for an unknown name."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])
