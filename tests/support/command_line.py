"""The command line, run as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.servers import OncelogCluster

ONCELOG = Path(sys.executable).with_name("oncelog")


class Tool:
    """The command line, connected to one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.env = {**os.environ, "ONCELOG_BROKERS": bootstrap}

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ONCELOG), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.env,
            check=False,
        )

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run a command that must succeed, and return its stdout."""
        done = self.run(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def json(self, *arguments: str, stdin: str = "") -> Any:
        return json.loads(self(*arguments, "--format", "json", stdin=stdin))

    def fails(self, status: int, *arguments: str, stdin: str = "") -> str:
        """Run a command that must fail, and return its stderr, whose last line is the message."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == status, done
        assert "Traceback" not in done.stderr
        return done.stderr


def errors_of(cluster: OncelogCluster) -> str:
    return cluster.process.stderr_path.read_text()


def run(
    *arguments: str | bytes | Path, env: dict[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """Run a command to its end: (exit status, stdout, stderr)."""
    command = [part if isinstance(part, bytes) else str(part) for part in (ONCELOG, *arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **(env or {})}, cwd=cwd
    )
    return done.returncode, done.stdout, done.stderr
