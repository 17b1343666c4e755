"""How long a change of metadata may wait for its turn: `timeout_ms` of CreateTopics, CreatePartitions, DeleteTopics.

As in Kafka's `KafkaEventQueue`, time counts until the change begins. A change that has begun is made.
"""

from __future__ import annotations

import asyncio

from oncelog.protocol.errors import ErrorCode, ProtocolError


class Deadline:
    """The end of a request's time, on the clock of the event loop."""

    __slots__ = ("_end", "_timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._end = asyncio.get_running_loop().time() + timeout_ms / 1000

    def check(self) -> None:
        """Raise REQUEST_TIMED_OUT if the time is over. A time-out of 0 or less is over at once."""
        if asyncio.get_running_loop().time() >= self._end:
            message = f"the change could not begin within the request's time-out of {self._timeout_ms} ms"
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message)
