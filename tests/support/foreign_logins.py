"""Programs in other languages that log in to a secured server, each with many ways.

Each creates a topic, writes, and reads as a member of a group. It prints a line for each way: the topic, then `read`
and the values, or `failed` and the reason.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Sequence

from support.apache_kafka import ROOT, SHORT_LIVED, java, properties
from support.suites import built, go_program
from support.token_servers import allowed_urls
from support.ways_to_log_in import Way

TIMEOUT_S = 400

Command = Callable[[Sequence[Way]], tuple[list[str], str | None]]
"""Returns the command line for these ways, and the folder to start it in."""


def _go(_: Sequence[Way]) -> tuple[list[str], str | None]:
    return [str(go_program()), "", "", "login"], None


def _js(_: Sequence[Way]) -> tuple[list[str], str | None]:
    return ["node", "login.js"], str(built("js", "npm", "ci", "--no-audit", "--no-fund"))


def _java(program: str) -> Command:
    def command(ways: Sequence[Way]) -> tuple[list[str], str | None]:
        files = [each.files.key.with_name(f"{each.topic}.properties") for each in ways]
        for way, file in zip(ways, files, strict=True):
            file.write_text(properties(way.java()))
        urls = allowed_urls(*{each.provider.token_url for each in ways})
        source = ROOT / "conformance" / "java" / "logins" / f"{program}.java"
        return java(str(source), *files, options=(*SHORT_LIVED, urls)), None

    return command


FOREIGN: dict[str, Command] = {
    "Kafka's tools": _java("LogInWithTools"),
    "Java": _java("LogIn"),
    "franz-go": _go,
    "kafkajs": _js,
}
"""The command by client."""


def log_in(client: str, ways: Iterable[Way]) -> dict[str, str]:
    """Log in each way with one process, and return what it printed about each topic."""
    given = list(ways)
    command, folder = FOREIGN[client](given)
    sent = json.dumps([each.json() for each in given])
    done = subprocess.run(
        command, cwd=folder, input=sent, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{client}: {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())
