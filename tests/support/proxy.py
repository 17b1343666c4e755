"""The fault proxy in tests of our producer: a function returns the fate of each Produce request.

`redirect` connects the client through it. Other requests pass unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import pytest

from oncelog.client.connections import pool as connections
from oncelog.faults.proxy import FaultProxy
from oncelog.faults.requests import Request
from oncelog.faults.rules import Action, Fault
from oncelog.net.connection import ClientConnection, connect
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode

PASS, LOSE_REQUEST, LOSE_ANSWER, HOLD = Action.PASS, Action.LOSE_REQUEST, Action.LOSE_ANSWER, Action.HOLD
"""The fate of a Produce request. For an ErrorCode, the proxy answers."""


class Listening(Protocol):
    """A proxy that listens at a port."""

    port: int


class Appended(NamedTuple):
    """The request arrives and takes effect, but its response is this error."""

    error: ErrorCode


Fate = Action | ErrorCode | Appended


class Produced:
    """A Produce request in transit: its batches in the order of the request, and the bytes of each."""

    def __init__(self, request: Request) -> None:
        self.number = request.number - 1
        self.request: Any = request.message
        self.records = request.records
        self.batches = request.batches

    @property
    def sequence(self) -> int:
        """Return the first batch's sequence."""
        return self.batches[0].base_sequence

    @property
    def epoch(self) -> int:
        """Return the first batch's epoch."""
        return self.batches[0].producer_epoch


class Proxy:
    """Listen at `port`. `rule` returns the fate of each Produce request, in the order of arrival."""

    def __init__(self, bootstrap: str) -> None:
        self.rule: Callable[[Produced], Fate] = lambda request: PASS
        self.seen: list[Produced] = []
        self._faults = FaultProxy(bootstrap)
        self._faults.rule = self._fault
        self._faults.start()
        self.port = int(self._faults.bootstrap_servers.rpartition(":")[2])
        self.close = self._faults.close
        self.release = self._faults.release

    def _fault(self, request: Request) -> Fault | None:
        if request.api is not ApiKey.PRODUCE:
            return None
        self.seen.append(Produced(request))
        fate = self.rule(self.seen[-1])
        if isinstance(fate, Action):
            return Fault(fate)
        if isinstance(fate, Appended):
            return Fault(Action.ERROR_AFTER, code=fate.error)
        return Fault(Action.ERROR, code=fate)


def redirect(monkeypatch: pytest.MonkeyPatch, proxy: Listening) -> None:
    """Connect every client created from now on through the proxy, whatever address it has."""

    async def through(host: str, port: int, **options: Any) -> ClientConnection:
        return await connect("127.0.0.1", proxy.port, **options)

    monkeypatch.setattr(connections, "connect", through)
