"""Requests whose form depends on the version that their receiver serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from oncelog.net.connection import ClientConnection
from oncelog.protocol.schema import Message


class ByVersion(NamedTuple):
    """A request that is made once it is known which broker gets it, anew for each attempt: brokers differ in versions,
    and leader, coordinator and controller move. `newest`: the last version that `make` knows.
    """

    kind: type[Message]
    make: Callable[[int], Message]
    newest: int = 32767


Request = Message | ByVersion


def for_connection(request: Request, version: int | None, connection: ClientConnection) -> tuple[Message, int | None]:
    """(what to send there, in which version; None: the highest of both); NoCommonVersionError."""
    if isinstance(request, Message):
        return request, version
    chosen = min(connection.version_for(request.kind), request.newest)
    return request.make(chosen), chosen
