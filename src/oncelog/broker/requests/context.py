"""What a handler knows of the request that it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Header fields of one request and the connection it came in on."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    client_host: str
    connection_id: int
    on_hang_up: list[Callable[[], None]] = field(default_factory=list, compare=False, repr=False)
    """Of the connection, see `Peer`."""
