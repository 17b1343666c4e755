"""The client of one connection, as the handlers of its requests see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oncelog.net.server_options import DEFAULT_LISTENER


class DisconnectCallbacks(list[Callable[[], None]]):
    """The callbacks for the disconnect of one client. If it has disconnected, a new callback is called at once."""

    __slots__ = ("_gone",)

    def __init__(self) -> None:
        super().__init__()
        self._gone = False

    def append(self, callback: Callable[[], None], /) -> None:
        """Add a callback. Call it if the client has disconnected."""
        super().append(callback)
        if self._gone:  # a worker thread may have decoded the request meanwhile
            callback()

    def call(self) -> None:
        """Call all callbacks, because the client has disconnected."""
        self._gone = True
        for callback in tuple(self):
            callback()


@dataclass(frozen=True, slots=True)
class Peer:
    """The client that sent a frame. `connection_id` is unique within the server."""

    host: str
    port: int
    connection_id: int
    on_disconnect: DisconnectCallbacks = field(default_factory=DisconnectCallbacks, compare=False, repr=False)
    """Called when the client disconnects. A request that may wait long adds a callback, and removes it again."""
    listener: str = DEFAULT_LISTENER
    """The name of the listener that accepted the connection."""
