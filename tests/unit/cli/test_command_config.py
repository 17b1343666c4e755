"""The client settings of commands: `--command-config` and the environment."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from oncelog.cli.app import oncelog as app
from oncelog.cli.client_settings import from_environment
from oncelog.cli.common import connected

SECRET = "hunter2"


def run(*words: str, **variables: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["topic", "list", "-b", "127.0.0.1:1", *words], env=variables)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.password=hunter2\n", "sasl.username is missing"),
        ("security.protocol=TLS", "security.protocol = 'TLS'"),
        ("bootstrap.servers=x", "bootstrap_servers: 'x' is not HOST:PORT"),
        ("nonsense=1", "nonsense"),
        (None, "No such file"),
    ],
)
def test_wrong_file_is_an_error_that_names_it(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "client.properties"
    if text is not None:
        path.write_text(text)
    status, output = run("--command-config", str(path))
    joined = " ".join(output.replace("│", " ").split())
    assert status == 2
    assert words in joined
    assert SECRET not in output


def test_brokers_of_the_file_are_used_without_b(tmp_path: Path) -> None:
    @click.command
    @connected
    def probe(bootstrap: str) -> None:
        click.echo(bootstrap)

    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=file:2\n")
    for words, variables, used in (
        ((), {}, "file:2"),
        ((), {"ONCELOG_BROKERS": "variable:3"}, "file:2"),
        (("-b", "option:1"), {}, "option:1"),
    ):
        done = CliRunner().invoke(probe, ["--command-config", str(path), *words], env=variables)
        assert done.output == f"{used}\n"


def test_environment() -> None:
    found = from_environment({"ONCELOG_SASL_PASSWORD": SECRET, "ONCELOG_BROKERS": "x", "SASL_USERNAME": "y"})
    assert found == {"sasl.password": SECRET}
    status, output = run(ONCELOG_SASL_PASSWORD=SECRET)
    assert status == 2
    assert "sasl.password has no effect" in " ".join(output.split())
    assert SECRET not in output
