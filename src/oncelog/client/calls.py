"""The calls of a client that wait for something: closing the client ends each of them with ClientClosedError.

A call is ended as `asyncio.timeout` ends one: its task is cancelled, and the cancellation becomes the error where the
call began. So it ends wherever it waits, and no place that waits has to look whether the client is still open.
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

FORKED = "this client was made before a fork: make a new one in the child process"

_MADE_HERE: WeakSet[Calls] = WeakSet()
"""Of this process."""


class Calls:
    """Of one client, on its event loop. `what` names the client in messages: "consumer"."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.closed = False
        self.forked = False
        """Whether this process is a child of the one that made the client, and shares its connections."""
        self._under_way: dict[_Call, None] = {}
        self._waiter: asyncio.Future[None] | None = None
        _MADE_HERE.add(self)

    def check(self) -> None:
        """Raise ClientClosedError after `close`, and UsageError in a child process of the client's."""
        if self.forked:
            raise errors.UsageError(FORKED)
        if self.closed:
            raise errors.ClientClosedError(f"the {self.what} is closed")

    def call(self) -> _Call:
        """Return the context of one call. Entering it checks that the client is open."""
        return _Call(self)

    def close(self) -> None:
        """End all calls but the caller's own, and refuse new ones."""
        self.closed = True
        own = asyncio.current_task()
        for call in self._under_way:
            call.end(own)

    async def ended(self) -> None:
        """Wait until no call but the caller's own is under way."""
        own = asyncio.current_task()
        while any(call.task is not own for call in self._under_way):
            self._waiter = self._waiter or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)

    def began(self, call: _Call) -> None:
        """Note a call."""
        self._under_way[call] = None

    def left(self, call: _Call) -> None:
        """Forget a call that has returned or raised."""
        self._under_way.pop(call, None)
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.set_result(None)


class _Call:
    """One call under way, in the task that entered it."""

    __slots__ = ("_calls", "_cancelling", "_ended", "task")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._ended = False

    def __enter__(self) -> Self:
        self._calls.check()
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
            raise errors.ClientClosedError(f"the {self._calls.what} was closed while this call waited") from None

    def end(self, own: asyncio.Task[Any] | None) -> None:
        """Cancel the call unless it is made by the task `own`, which closes the client inside of it."""
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
    """Make a method one of the calls that closing its client ends."""

    @functools.wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._calls.call():
            return await method(self, *args, **kwargs)

    return run


def _in_child() -> None:
    """Refuse the parent's clients: a request of the child would enter the parent's connections."""
    for calls in _MADE_HERE:
        calls.forked = True
        calls._under_way.clear()
    _MADE_HERE.clear()


os.register_at_fork(after_in_child=_in_child)
