"""The context of a request, for its handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oncelog.net.server import DEFAULT_LISTENER


@dataclass(slots=True, eq=False)  # not frozen: that would take a microsecond for each request
class RequestContext:
    """Header fields of one request and the connection it came in on. No code changes them."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    client_host: str
    connection_id: int
    on_hang_up: list[Callable[[], None]] = field(default_factory=list, repr=False)
    """Callbacks of the connection, see `Peer`."""
    listener: str = DEFAULT_LISTENER
    """The name of the listener that the connection came in on."""
