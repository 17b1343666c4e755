"""Report from the event loop that a broker is ready, and then that its loop runs.

A loop that stalls reports nothing. So the service manager, or `oncelog up` on its behalf, notices it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from oncelog.broker.service_manager import ALIVE_LINE, READY_LINE

LOOK_S = 0.1
"""Time between two looks at a broker that is not ready."""
SHORTEST_BEAT_S = 0.01


class Listener(Protocol):
    """What wants to know how a broker is: the service manager or the supervisor."""

    def ready(self, status: str) -> None:
        """Take note that clients are served."""

    def status(self, status: str) -> None:
        """Take note of a sentence about what the broker does."""

    def alive(self) -> None:
        """Take note that the event loop runs."""

    def stopping(self, status: str) -> None:
        """Take note that the broker ends."""


class SupervisorLink:
    """The socket to `oncelog up`, which knows by itself when brokers start and stop."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def ready(self, _: str) -> None:
        """Send a line."""
        self._send(READY_LINE)

    def status(self, _: str) -> None:
        """Send nothing."""

    def alive(self) -> None:
        """Send a line."""
        self._send(ALIVE_LINE)

    def stopping(self, _: str) -> None:
        """Send nothing."""

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended, and the broker will; or it is paused
            self._end.send(line, socket.MSG_DONTWAIT)


async def report(missing: Callable[[], Sequence[str]], to: Listener, beat_s: float, address: str) -> None:
    """Report that the broker is ready as soon as `missing` returns nothing. Then send a sign of life each `beat_s`.

    `beat_s` 0: send none. Runs until it is cancelled.
    """
    told: Sequence[str] = ()
    while lacks := missing():
        if lacks != told:
            to.status(f"starting: {'; '.join(lacks)}")
        told = lacks
        await asyncio.sleep(LOOK_S)
    to.ready(f"serving clients at {address}")
    while beat_s > 0:
        to.alive()
        await asyncio.sleep(max(beat_s, SHORTEST_BEAT_S))
