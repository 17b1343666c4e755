"""Datagrams that wake the brokers of one machine after a change of the tree.

A datagram is only a hint: a broker that gets none finds the change at its next poll. So a lost datagram, or one from
another program, does no harm. Each store has a port on 127.0.0.1, which is in its lease files (`leases.py`). A named
pipe next to the SQLite file would do the same, but programs that copy the directory would hang or fail.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

HOST = "127.0.0.1"
MOST_DRAINED = 1000
"""The maximum number of datagrams that one `drain` removes. Another program may send them without end."""


class Wakes:
    """A port for datagrams. Thread-safe. If the system allows no such port, nothing is sent or received."""

    def __init__(self) -> None:
        self._socket = _bound()

    @property
    def descriptor(self) -> int | None:
        """Return the descriptor that is readable after a wake, until `drain`. None if the system allows no port."""
        descriptor = -1 if self._socket is None else self._socket.fileno()
        return None if descriptor < 0 else descriptor

    @property
    def port(self) -> int:
        """Return the port, or 0 if the system allows none."""
        port: int = 0 if self._socket is None or self.descriptor is None else self._socket.getsockname()[1]
        return port

    def send(self, ports: Iterable[int]) -> None:
        """Wake the owners of the ports. Does not wait. A port of 0 is skipped."""
        if self._socket is None:
            return
        for port in ports:
            if port:
                try:
                    self._socket.sendto(b"\0", (HOST, port))
                except OSError:  # its buffer is full, so it is awake; or it has died, and `poll` ends its session
                    continue

    def drain(self) -> None:
        """Remove the datagrams that have arrived."""
        if self._socket is None:
            return
        try:
            for _ in range(MOST_DRAINED):
                self._socket.recv(1)
        except OSError:  # no datagram is left
            return

    def close(self) -> None:
        """Close the port."""
        if self._socket is not None:
            self._socket.close()


def _bound() -> socket.socket | None:
    """Return a socket with a port of its own, or None if the system allows none."""
    try:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    except OSError:  # for example, a kernel without IPv4
        return None
    made.setblocking(False)
    try:
        made.bind((HOST, 0))
    except OSError:  # for example, a container without a loopback interface
        made.close()
        return None
    return made
