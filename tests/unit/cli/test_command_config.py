"""The client settings of commands: `--command-config` and the environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from oncelog.cli.app import oncelog as app
from oncelog.cli.client_settings import client_settings, from_environment
from oncelog.cli.common import CONTACT_WAIT_MS, connected
from support.command_line import ONCELOG

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


@click.command
@connected
def probe(bootstrap: str) -> None:
    click.echo(json.dumps({"bootstrap.servers": bootstrap, **client_settings()}))


def probed(path: Path, *words: str, **variables: str) -> dict[str, str]:
    done = CliRunner().invoke(probe, ["--command-config", str(path), *words], env=variables)
    found: dict[str, str] = json.loads(done.output)
    return found


def test_brokers_of_the_file_are_used_without_b(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=file:2\n")
    assert probed(path)["bootstrap.servers"] == "file:2"
    assert probed(path, ONCELOG_BROKERS="variable:3")["bootstrap.servers"] == "file:2"
    assert probed(path, "-b", "option:1")["bootstrap.servers"] == "option:1"
    path.write_text("bootstrap.servers=\n")
    assert probed(path, ONCELOG_BROKERS="variable:3")["bootstrap.servers"] == "variable:3"


def test_attempts_end_before_the_command_does(tmp_path: Path) -> None:
    """Otherwise the command's error would not have the reason."""
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        "sasl.oauthbearer.token.endpoint.url=file:/token\n"
    )
    found = probed(path)
    for name in ("socket.connection.setup.timeout.ms", "sasl.login.read.timeout.ms"):
        assert int(found[name]) < CONTACT_WAIT_MS
    path.write_text("socket.connection.setup.timeout.ms=9\n")
    assert "sasl.login.read.timeout.ms" not in probed(path)
    assert probed(path)["socket.connection.setup.timeout.ms"] == "9"


def test_file_is_utf8_in_every_locale(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("client.id=résumé\n", encoding="utf-8")
    command = [ONCELOG, "topic", "list", "-b", "127.0.0.1:1", "--command-config", path]
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, env={**os.environ, **plain})
    assert b"no broker can be reached" in done.stderr
    assert done.returncode == 1


SLOW = """
import socket, time
real = socket.getaddrinfo
def lookup(host, *others, **options):
    if host == "silent.example":
        time.sleep(3600)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    return real(host, *others, **options)
socket.getaddrinfo = lookup
"""


@pytest.mark.parametrize("words", [["list"], ["consume", "t", "-e"]])
def test_command_ends_if_no_name_server_answers(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    command = [ONCELOG, "topic", *words, "-b", "silent.example:9092"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert "looking up silent.example has no result within 5 s" in done.stderr
    assert done.returncode == 1


def test_environment() -> None:
    found = from_environment({"ONCELOG_SASL_PASSWORD": SECRET, "ONCELOG_BROKERS": "x", "SASL_USERNAME": "y"})
    assert found == {"sasl.password": SECRET}
    status, output = run(ONCELOG_SASL_PASSWORD=SECRET)
    assert status == 2
    assert "sasl.password has no effect" in " ".join(output.split())
    assert SECRET not in output
