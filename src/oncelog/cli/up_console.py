"""The console that `oncelog up --console-port` runs beside its brokers, as a process of its own."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Self

import click

from oncelog.cli.log_format import note
from oncelog.protocol.addresses import bracketed

PACKAGES = ("starlette", "uvicorn", "jinja2")
"""The packages of the extra `console`."""
HOST = "127.0.0.1"
STOP_S = 5.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0


def require_console() -> None:
    """Raise ClickException if a package of the extra is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"the console needs the package {missing[0]}: pip install 'oncelog[console]'")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Port 0 means any free port. Raises ClickException."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # "::" means IPv4, too
        return socket.create_server(address[:2], family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        reason = f"{error.strerror or error}".lower()
        hint = ": choose another port (0: any free port)" if error.errno == errno.EADDRINUSE else ""
        raise click.ClickException(f"the console cannot listen on {bracketed(host)}:{port}: {reason}{hint}") from error


class ConsoleBeside:
    """A console on localhost that ends with this process. A context manager, which stops it at the end.

    `port` is None if no console is wanted. The constructor raises ClickException if a package of the extra is missing,
    or the port is in use. A console that ends by itself is started again.
    """

    def __init__(self, port: int | None) -> None:
        self._listener: socket.socket | None = None
        if port is not None:
            require_console()
            self._listener = listen(HOST, port)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None

    def start(self, addresses: str, config: str | None) -> None:
        """Start it for the brokers at these addresses. It prints CONSOLE=http://HOST:PORT/ on stdout.

        `config` is the file with the client's settings, if any.
        """
        if self._listener is None:
            return
        descriptor = self._listener.fileno()
        command = [sys.executable, "-m", "oncelog", "console", "-b", addresses, "--listener", str(descriptor)]
        command += ["--parent-pid", str(os.getpid())]
        if config is not None:
            command += ["--command-config", config]

        def launch() -> subprocess.Popen[bytes]:
            # In a session of its own, so that Ctrl-C reaches this process only, which then stops it.
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(descriptor,), start_new_session=True)

        self._process = launch()
        self._keeper = threading.Thread(target=self._keep, args=(launch,), name="oncelog-console", daemon=True)
        self._keeper.start()

    def _keep(self, launch: Callable[[], subprocess.Popen[bytes]]) -> None:
        """Start the console again when it ends, until this process stops it. Wait twice as long after each end."""
        wait_s = FIRST_WAIT_S
        while self._process is not None:
            status = self._process.wait()
            if self._stopping.is_set():
                return
            note(f"the console has ended with exit status {status}; it starts again in {wait_s:g} s", level="WARNING")
            if self._stopping.wait(wait_s):
                return
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            self._process = launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        if self._process is not None and self._keeper is not None:
            self._process.terminate()
            self._keeper.join(STOP_S)
            if self._keeper.is_alive():
                self._process.kill()
                self._keeper.join()
        if self._listener is not None:
            self._listener.close()
