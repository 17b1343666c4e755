"""Generate the reference of the command line from its commands' help."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from docs_site.markdown import code, table, text
from oncelog.cli.app import oncelog


def page() -> str:
    """Return the page."""
    parts = [
        "# Command line\n",
        "Every command with its options, as `--help` prints them. The [guide](../command-line.md) shows them in use.\n",
        "Exit status: 0; 1 for an error, with one sentence on stderr; 2 for wrong usage; 130 for Ctrl-C.\n",
    ]
    for path, command in commands():
        parts += _command(path, command)
    return "\n".join(parts)


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its path, groups before their members."""
    yield from _below(("oncelog",), oncelog)


def _below(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            assert member is not None
            yield from _below((*path, name), member)


def _command(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    name = " ".join(path)
    yield f"{'##' if len(path) < 3 else '###'} {name} {{ #{'-'.join(path)} }}\n"
    context = click.Context(command, info_name=path[-1])
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```\n"
    yield _help(command) + "\n"
    if isinstance(command, click.Group):
        names = command.list_commands(context)
        yield "Commands: " + ", ".join(f"[{each}](#{'-'.join((*path, each))})" for each in names) + ".\n"
    options = [each for each in command.get_params(context) if isinstance(each, click.Option) and not each.hidden]
    rows = [_option(each, context) for each in options]
    rows = [row for row in rows if row[0] != code("--help")]
    if rows:
        yield table(("option", "value", "what it does"), rows)


def _help(command: click.Command) -> str:
    """Return a command's help. A paragraph after a line with `\\b` keeps its line breaks."""
    paragraphs = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            paragraphs.append("```text\n" + paragraph.lstrip("\b\n") + "\n```")
        else:
            paragraphs.append(text(" ".join(paragraph.split())))
    return "\n\n".join(paragraphs)


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(code(each) for each in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else option.make_metavar(context)
    extra = []
    if option.multiple:
        extra.append("May be repeated.")
    if option.required:
        extra.append("Required.")
    if option.envvar:
        extra.append(f"Environment: `{option.envvar}`.")
    if option.show_default and option.default is not None:
        extra.append(f"Default: `{option.default}`.")
    return names, code(value), " ".join([text(option.help or ""), *extra]).strip()
