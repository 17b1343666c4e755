"""Which followers have an open connection for their Fetches. The death of a process closes it at once."""

from __future__ import annotations

from oncelog.net.session import Session


class FollowerConnections:
    """The connections on which followers have fetched, by broker."""

    def __init__(self) -> None:
        self._open: dict[int, set[Session]] = {}

    def __contains__(self, broker: int) -> bool:
        return broker in self._open

    def add(self, broker: int, session: Session) -> None:
        """Count the connection of a follower's Fetch until the follower disconnects."""
        if session in (found := self._open.setdefault(broker, set())):
            return
        found.add(session)

        def remove() -> None:
            found.discard(session)
            if not found and self._open.get(broker) is found:
                del self._open[broker]

        session.on_disconnect(remove)
