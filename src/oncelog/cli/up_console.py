"""The console that `oncelog up --console-port` runs beside its brokers, as a process of its own."""

from __future__ import annotations

import errno
import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

import click

from oncelog.cli.log_format import note
from oncelog.protocol.addresses import bracketed

PACKAGES = ("starlette", "uvicorn", "h11", "jinja2")
"""The packages of the extra `console`."""
HOST = "127.0.0.1"
STOP_S = 5.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
PORT_WAIT_S, LISTEN_PAUSE_S = 5.0, 0.1
TOKEN_VARIABLE = "ONCELOG_CONSOLE_TOKEN"
SHORTEST_TOKEN = 16
"""Characters of a token that a person chooses."""


def require_console() -> None:
    """Raise ClickException if a package of the extra is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"the console needs the package {missing[0]}: pip install 'oncelog[console]'")


def listen(host: str, port: int, wait_s: float = 0.0) -> socket.socket:
    """Return a socket that listens. Port 0 means any free port. Wait if it is in use. Raises ClickException."""
    ends = time.monotonic() + wait_s
    while True:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # "::" means IPv4, too
            return socket.create_server(address[:2], family=family, backlog=128, dualstack_ipv6=both)
        except OSError as error:
            used = error.errno == errno.EADDRINUSE
            if used and time.monotonic() < ends:
                time.sleep(LISTEN_PAUSE_S)
                continue
            reason = f"{error.strerror or error}".lower()
            hint = ": choose another port (0: any free port)" if used else ""
            where = f"{bracketed(host)}:{port}"
            raise click.ClickException(f"the console cannot listen on {where}: {reason}{hint}") from error


def console_token() -> str:
    """Return the token of the environment, or a new one that is printed. Raises UsageError for a short one."""
    given = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not given:
        made = secrets.token_urlsafe(24)
        note(f"the console's token is {made}")
        return made
    if len(given) < SHORTEST_TOKEN:
        raise click.UsageError(f"{TOKEN_VARIABLE} has fewer than {SHORTEST_TOKEN} characters")
    return given


class ConsoleBeside:
    """A console on localhost that ends with this process. A context manager, which stops it at the end.

    `port` is None if no console is wanted. The constructor raises ClickException if a package of the extra is missing,
    the port is in use, or the token is too short. If the console ends by itself, this object starts it again.
    """

    def __init__(self, port: int | None) -> None:
        self._listener: socket.socket | None = None
        if port is not None:
            require_console()
            if os.environ.get(TOKEN_VARIABLE, "").strip():
                console_token()
            # The console of a process that was just killed ends soon.
            self._listener = listen(HOST, port, PORT_WAIT_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None

    def start(self, addresses: str, config: str | None) -> None:
        """Start it for the brokers at these addresses. It prints CONSOLE=http://HOST:PORT/ on stdout.

        `config` is the file with the client's settings, if any. Then browsers need the token, which stays the same if
        the console is started again.
        """
        if self._listener is None:
            return
        descriptor = self._listener.fileno()
        command = [sys.executable, "-m", "oncelog", "console", "-b", addresses, "--listener", str(descriptor)]
        command += ["--parent-pid", str(os.getpid())]
        environment = dict(os.environ)
        if config is not None:
            command += ["--command-config", config]
            environment[TOKEN_VARIABLE] = console_token()

        def launch() -> subprocess.Popen[bytes]:
            # In a session of its own, so that Ctrl-C reaches this process only, which then stops it.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=environment, pass_fds=(descriptor,), start_new_session=True
            )

        self._process = launch()
        self._keeper = threading.Thread(target=self._keep, args=(launch,), name="oncelog-console", daemon=True)
        self._keeper.start()

    def _keep(self, launch: Callable[[], subprocess.Popen[bytes]]) -> None:
        """Start the console again when it ends, until this process stops it.

        Wait twice as long after each end, unless it has run for long. After a usage error, do not start it again.
        """
        wait_s = FIRST_WAIT_S
        while True:
            assert self._process is not None
            begun = time.monotonic()
            status = self._process.wait()
            if self._stopping.is_set():
                return
            if status == click.UsageError.exit_code:
                note("the console cannot start", level="ERROR")
                return
            if time.monotonic() - begun > LONGEST_WAIT_S:
                wait_s = FIRST_WAIT_S
            note(f"the console has ended with exit status {status}; it starts again in {wait_s:g} s", level="WARNING")
            if self._stopping.wait(wait_s):
                return
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            try:
                self._process = launch()
            except OSError as error:
                note(f"the console cannot be started: {error}", level="ERROR")
                return

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
