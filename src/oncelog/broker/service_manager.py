"""Tell the service manager, such as systemd, what this process does: ready, alive, stopping.

The protocol is that of `sd_notify`: a datagram of `KEY=VALUE` lines to the socket in `$NOTIFY_SOCKET`. Source:
https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html.
"""

from __future__ import annotations

import socket
from collections.abc import MutableMapping
from typing import Protocol

ADDRESS, WATCHDOG, WATCHDOG_PROCESS = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
READY_LINE, ALIVE_LINE = b"healthy\n", b"alive\n"
"""What a broker sends to `oncelog up`, which is the process that the service manager knows."""
MOST_STATUS = 500
"""Characters of a status. The kernel refuses long datagrams."""


class Warns(Protocol):
    """What reports that a message was not sent, once."""

    def warning(self, message: str, *arguments: object) -> None:
        """Log a line, with arguments as in `logging`."""


class ServiceManager:
    """The socket of the service manager. No method waits for it."""

    def __init__(self, address: str, watchdog_s: float, log: Warns) -> None:
        """Create a client of the manager at `address`: a path, or `@` and the name of an abstract socket."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._shown = address
        self._log = log
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._failed = False
        self.watchdog_s = watchdog_s
        """The manager ends this process after so many seconds without a sign of life. 0: it does not."""

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str], pid: int, log: Warns) -> ServiceManager | None:
        """Return the manager that the variables name, or None. Remove the variables: they are not for child processes.

        `pid` is the id of this process. The watchdog may be meant for another one.
        """
        address = environment.pop(ADDRESS, "")
        usec, process = environment.pop(WATCHDOG, ""), environment.pop(WATCHDOG_PROCESS, "")
        if not address:
            return None
        if address[0] not in "/@":
            log.warning("%s=%s is neither a path nor an abstract socket: no message is sent", ADDRESS, address)
            return None
        is_own = process in ("", str(pid))
        return cls(address, int(usec) / 1e6 if is_own and usec.isdecimal() else 0.0, log)

    def ready(self, status: str) -> None:
        """Say that clients are served. Call it once."""
        self._send("READY=1", status)

    def status(self, status: str) -> None:
        """Say in one sentence what the process does."""
        self._send("", status)

    def alive(self) -> None:
        """Say that the event loop runs."""
        self._send("WATCHDOG=1", "")

    def stopping(self, status: str) -> None:
        """Say that the process ends."""
        self._send("STOPPING=1", status)

    def close(self) -> None:
        """Close the socket. Later messages are not sent."""
        self._socket.close()

    def _send(self, first: str, status: str) -> None:
        told = " ".join(status.split())[:MOST_STATUS]
        lines = [first] if first else []
        lines += [f"STATUS={told}"] if told else []
        try:
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except BlockingIOError:
            return  # its queue is full; the next message may be received
        except OSError as error:
            if not self._failed:
                self._log.warning("cannot tell the service manager at %s: %s", self._shown, error.strerror or error)
            self._failed = True
