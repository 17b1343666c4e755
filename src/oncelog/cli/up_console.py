"""The console that `oncelog up --console-port` runs beside its brokers, as a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Self

import click

PACKAGES = ("starlette", "uvicorn", "jinja2")
"""The packages of the extra `console`."""
STOP_S = 5.0


def require_console() -> None:
    """Raise ClickException if a package of the extra is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"the console needs the package {missing[0]}: pip install 'oncelog[console]'")


class ConsoleBeside:
    """A console on localhost that ends with this process. A context manager, which stops it at the end.

    `port` is None if no console is wanted. The constructor raises ClickException if a package of the extra is missing.
    """

    def __init__(self, port: int | None) -> None:
        if port is not None:
            require_console()
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, addresses: str, config: str | None) -> None:
        """Start it for the brokers at these addresses. It prints CONSOLE=http://HOST:PORT/ on stdout.

        `config` is the file with the client's settings, if any.
        """
        if self._port is None:
            return
        command = [sys.executable, "-m", "oncelog", "console", "-b", addresses, "--port", str(self._port)]
        command += ["--parent-pid", str(os.getpid())]
        if config is not None:
            command += ["--command-config", config]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
