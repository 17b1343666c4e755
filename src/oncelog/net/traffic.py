"""The interface through which a client's connection reports its requests and responses, so that they can be counted."""

from __future__ import annotations

from typing import Protocol


class Traffic(Protocol):
    """Counts the requests of one connection. Sizes are in bytes, with the length prefix."""

    def sent(self, size: int) -> float:
        """Count a request. Return the time in seconds that `answered` gets."""

    def answered(self, api_key: int, size: int, sent_at: float) -> None:
        """Count a response to the request that was sent at `sent_at`."""

    def lost(self, count: int) -> None:
        """Count requests that will get no response, because the connection has ended."""
