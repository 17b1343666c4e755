"""The responses of one connection that are not sent yet, in the order of their requests. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

__all__ = ["MOST_PENDING", "Chunks", "Holds", "Pending", "Replies", "Reply"]

MOST_PENDING = 8
"""If a connection has this many unanswered requests, the next one waits."""

Chunks = list[bytes | memoryview]


class Holds(NamedTuple):
    """Returned by a handler that must wait and still needs the bytes of the request.

    The connection serves no other request meanwhile.
    """

    answer: Awaitable[Any]


class Pending(NamedTuple):
    """Returned by a handler that has processed the request, and waits only for its outcome.

    Meanwhile, the server handles further requests of the connection. It sends their responses in order.
    """

    answer: Awaitable[Any]
    admits: Callable[[memoryview], bool]
    """Returns whether a request with these first bytes may be handled before this response is sent."""


class Reply:
    """The response to one request."""

    __slots__ = ("_result", "ready", "task")

    def __init__(self) -> None:
        self.ready = False
        self._result: Chunks | Exception | None = None
        self.task: asyncio.Task[None] | None = None
        """The wait of a `Pending` response."""

    def set(self, result: Chunks | Exception | None) -> None:
        """Record the response, or None if the request has none. An error closes the connection."""
        self.ready = True
        self._result = result

    def take(self) -> Chunks | Exception | None:
        """Return the response, and forget it: the traceback of an error may refer to this object."""
        result, self._result = self._result, None
        return result


class Replies:
    """The responses of one connection that are not sent yet. The oldest is first."""

    __slots__ = ("_admits", "queue")

    def __init__(self) -> None:
        self.queue: deque[Reply] = deque()
        self._admits: Callable[[memoryview], bool] = _nothing

    def add(self, admits: Callable[[memoryview], bool] | None = None) -> Reply:
        """Add the response to the newest request. `admits` is that of `Pending`; None keeps the former one."""
        reply = Reply()
        self.queue.append(reply)
        if admits is not None:
            self._admits = admits
        return reply

    def fail(self, error: Exception) -> None:
        """Add the failure of the newest request. No further request is admitted."""
        self.add(_nothing).set(error)

    def admit(self, head: memoryview) -> bool:
        """Return whether a request with these first bytes may be handled before the responses are sent."""
        return len(self.queue) < MOST_PENDING and self._admits(head)

    def cancel(self) -> None:
        """End the waits of `Pending` responses, because the connection is lost."""
        for reply in self.queue:
            if reply.task is not None:
                reply.task.cancel()


def _nothing(head: memoryview) -> bool:
    return False
