"""Track the calls of a client that wait. Closing the client ends each of them with ClientClosedError.

A call ends in the same way as an `asyncio.timeout` block: its task is cancelled, and the cancellation becomes the error
where the call began. So the call ends wherever it waits, and no code that waits has to check whether the client is
open.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar
from weakref import WeakSet

from oncelog import errors

P = ParamSpec("P")
T = TypeVar("T")

FORKED = (
    "this client was created before a fork and belongs to the parent process; create a new client in the child process"
)

OTHER_LOOP = (
    "this client belongs to another event loop, in which it was started or first used; create a client in each "
    "event loop, and close it there"
)

_MADE_HERE: WeakSet[Calls] = WeakSet()
"""The `Calls` of all clients that this process has created."""


def require_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise UsageError inside another event loop than `loop`. None: any loop is allowed."""
    if loop is not None and asyncio._get_running_loop() not in (loop, None):
        raise errors.UsageError(OTHER_LOOP)


class Calls:
    """Track the calls of one client, on its event loop. `what` names the client in messages: "consumer"."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.closed = False
        self.forked = False
        """Whether the parent of this process created the client and still uses its connections."""
        self._under_way: dict[_Call, None] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the first call."""
        _MADE_HERE.add(self)

    def check(self) -> None:
        """Raise ClientClosedError after `close`, and UsageError in a forked child process."""
        if self.forked:
            raise errors.UsageError(FORKED)
        if self.closed:
            raise errors.ClientClosedError(f"the {self.what} is closed; create a new one")

    def check_loop(self) -> None:
        """Raise UsageError if another event loop made the first call: its connections belong to that one."""
        self._loop = self._loop or asyncio.get_running_loop()
        require_loop(self._loop)

    def call(self) -> _Call:
        """Return the context of one call. Entering it checks that the client is open."""
        return _Call(self)

    def close(self) -> None:
        """End all calls except the caller's own, and reject new ones."""
        self.closed = True
        own = asyncio.current_task()
        for call in self._under_way:
            call.end(own)

    async def ended(self) -> None:
        """Wait until all calls except the caller's own have ended."""
        own = asyncio.current_task()
        while any(call.task is not own for call in self._under_way):
            self._waiter = self._waiter or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)

    def began(self, call: _Call) -> None:
        """Register a call."""
        self._under_way[call] = None

    def left(self, call: _Call) -> None:
        """Unregister a call that has returned or raised."""
        self._under_way.pop(call, None)
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.set_result(None)


class _Call:
    """One call in progress, in the task that entered it."""

    __slots__ = ("_calls", "_cancelling", "_ended", "task")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._ended = False

    def __enter__(self) -> Self:
        self._calls.check()
        self._calls.check_loop()
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._cancelling = task.cancelling()
        self._calls.began(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.left(self)
        if not self._ended:
            return
        mine = self.task.uncancel() <= self._cancelling
        if mine and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise errors.ClientClosedError(
                f"the {self._calls.what} was closed during this call; create a new one"
            ) from None

    def end(self, own: asyncio.Task[Any] | None) -> None:
        """Cancel the call, unless the task `own` made it: that task closes the client inside the call."""
        if not self._ended and self.task is not own:
            self._ended = True
            self.task.cancel()


class _HasCalls(Protocol):
    @property
    def _calls(self) -> Calls: ...


S = TypeVar("S", bound=_HasCalls)


def ends_when_closed(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Decorate a method of a client, so that closing the client ends its calls."""

    @functools.wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._calls.call():
            return await method(self, *args, **kwargs)

    return run


def _in_child() -> None:
    """Reject calls on the parent's clients: the child's requests would use the parent's connections."""
    for calls in _MADE_HERE:
        calls.forked = True
        calls._under_way.clear()
    _MADE_HERE.clear()


os.register_at_fork(after_in_child=_in_child)
