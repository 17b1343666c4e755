"""Requests whose form depends on the receiver's version."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from oncelog.net.connection import ClientConnection
from oncelog.protocol.schema import Message


class ByVersion(NamedTuple):
    """A request that `make` creates for each attempt, once the receiver is known.

    Brokers serve different versions, and leaders, coordinators and controllers move. `newest` is the last version
    that `make` supports.
    """

    kind: type[Message]
    make: Callable[[int], Message]
    newest: int = 32767


Request = Message | ByVersion


def for_connection(request: Request, version: int | None, connection: ClientConnection) -> tuple[Message, int | None]:
    """Return (message, version) for a connection; None is the highest common version. Raises NoCommonVersionError."""
    if isinstance(request, Message):
        return request, version
    chosen = min(connection.version_for(request.kind), request.newest)
    return request.make(chosen), chosen
