"""Which followers have an open connection for their Fetches. The death of a process closes it at once."""

from __future__ import annotations

from oncelog.broker.requests.context import RequestContext


class FollowerConnections:
    """The connections on which followers have fetched, by broker."""

    def __init__(self) -> None:
        self._open: dict[int, set[int]] = {}

    def __contains__(self, broker: int) -> bool:
        return broker in self._open

    def add(self, broker: int, ctx: RequestContext) -> None:
        """Count the connection of a follower's Fetch until the follower disconnects."""
        connection = ctx.connection_id
        if connection in (found := self._open.setdefault(broker, set())):
            return
        found.add(connection)

        def remove() -> None:
            found.discard(connection)
            if not found and self._open.get(broker) is found:
                del self._open[broker]

        ctx.on_disconnect.append(remove)
