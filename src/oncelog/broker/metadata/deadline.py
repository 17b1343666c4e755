"""How long a change of metadata may wait for its turn: `timeout_ms` of CreateTopics, CreatePartitions, DeleteTopics.

As in Kafka's `KafkaEventQueue`, time counts until the change begins: one that has begun is made, and answered when it
is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker


class Deadline:
    """When a request's time is over; by the loop's clock, which nobody sets."""

    __slots__ = ("_broker", "_end", "_timeout_ms")

    def __init__(self, broker: Broker, timeout_ms: int) -> None:
        self._broker = broker
        self._timeout_ms = timeout_ms
        self._end = broker.loop.time() + timeout_ms / 1000

    def check(self) -> None:
        """REQUEST_TIMED_OUT once it is over; with no time at all (or less), at once."""
        if self._broker.loop.time() >= self._end:
            message = f"it was not its turn within the request's time-out of {self._timeout_ms} ms"
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message)
