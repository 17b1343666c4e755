"""The responses of one connection that are not sent yet, in the order of their requests. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["MOST_PENDING", "Chunks", "Deferred", "Replies", "Reply"]

MOST_PENDING = 8
"""If a connection has this many unanswered requests, the next one waits."""

Chunks = list[bytes | memoryview]


class Deferred:
    """Returned by a handler whose response is not ready. The connection serves no other request before it is.

    With `admits`, the request is processed, and only its outcome is awaited. Then the server handles further requests
    for which `admits(first bytes)` is true meanwhile, and sends their responses in order. If the client disconnects,
    the wait is cancelled.
    """

    __slots__ = ("admits", "answer", "keeps_frame")

    def __init__(
        self,
        answer: Awaitable[Any],
        *,
        keeps_frame: bool = False,
        admits: Callable[[memoryview], bool] | None = None,
    ) -> None:
        """`keeps_frame`: the bytes of the request are needed until the response is ready."""
        self.answer = answer
        self.keeps_frame = keeps_frame
        self.admits = admits


class Reply:
    """The response to one request."""

    __slots__ = ("_result", "ready", "task")

    def __init__(self) -> None:
        self.ready = False
        self._result: Chunks | Exception | None = None
        self.task: asyncio.Task[None] | None = None
        """The wait of a response that admits further requests."""

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
        """Add the response to the newest request. `admits` is that of `Deferred`; None keeps the former one."""
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
        """End the waits of processed requests, because the connection is lost."""
        for reply in self.queue:
            if reply.task is not None:
                reply.task.cancel()


def _nothing(head: memoryview) -> bool:
    return False
