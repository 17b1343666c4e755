"""The help texts: every option of every verb has one."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from oncelog.cli.app import oncelog as app


def verbs(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield (words of the command line, command) of all subcommands of a group."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from verbs(command, *path, name)
            else:
                yield " ".join((*path, name)), command


VERBS = dict(verbs(app))


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_a_help_text(verb: str) -> None:
    options = [item for item in VERBS[verb].params if isinstance(item, click.Option)]
    assert [item.name for item in options if not item.help] == []


def test_settings_of_a_topic_have_one_spelling() -> None:
    for verb in ("topic create", "topic alter", "cluster alter"):
        assert {"-c", "--config"} <= {word for item in VERBS[verb].params for word in item.opts}, verb


def test_up_reports_that_it_runs_one_broker() -> None:
    shown = CliRunner().invoke(app, ["up", "--help"], terminal_width=200).output
    assert "runs only 1" in shown
