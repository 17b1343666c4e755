"""The help texts: every option of every command has one, and every example is a command line."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from oncelog.cli.app import oncelog as app
from support.command_line import ONCELOG


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


def examples() -> Iterator[str]:
    """Yield the examples of all commands, without what precedes `oncelog` or redirects its input."""
    for command in (app, *VERBS.values()):
        for line in (command.epilog or "").splitlines():
            if "oncelog " in line:
                yield line.partition("oncelog ")[2].partition(" < ")[0]


@pytest.mark.parametrize("example", list(examples()))
def test_every_example_can_be_parsed(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(example)
    length = next(count for count in (2, 1) if " ".join(words[:count]) in VERBS)
    for word in words[length:]:
        if word.endswith((".properties", ".log")):
            file = tmp_path / word
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    VERBS[" ".join(words[:length])].make_context(example, words[length:])


def test_settings_of_a_topic_have_one_spelling() -> None:
    for verb in ("topic create", "topic alter", "cluster alter"):
        assert {"-c", "--config"} <= {word for item in VERBS[verb].params for word in item.opts}, verb


def test_closed_stdout_is_no_error() -> None:
    command = ["sh", "-c", 'exec "$0" story >&-', str(ONCELOG)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "pointer"),
    [
        ("", "records, groups and transactions"),
        ("producer", "`oncelog txn producers`"),
        ("txn log", "transaction.version 2 (KIP-890)"),
        ("faults", "--rule 'pass *'"),
    ],
)
def test_help_points_to_what_a_new_user_looks_for(words: str, pointer: str) -> None:
    done = CliRunner().invoke(app, [*words.split(), "--help"])
    assert pointer in " ".join(done.output.split())
