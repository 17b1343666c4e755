"""Log in again on an open connection before its session expires (KIP-368), and keep the requests that wait for that."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from oncelog.net.failures import ConnectionLostError, LoginRejectedError
from oncelog.net.sasl import Exchange
from oncelog.net.security import Login

T = TypeVar("T")


class SessionRenewal(Generic[T]):
    """The session of one connection.

    A new login is due after 85 to 95 % of the session's lifetime, as in Kafka's client. It begins when the first
    request after that is to be sent, so an idle connection needs none. Until it is complete, `hold` keeps the
    connection's requests, and `release` gets them in their order. If it fails, `fail` gets the reason.

    `log_in` logs in with an exchange, and returns the session's lifetime in ms; 0 if it does not expire. `idle()`
    returns whether no request is in flight: a broker rejects other requests between the steps of a login.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        login: Login,
        log_in: Callable[[Exchange], Awaitable[int]],
        *,
        idle: Callable[[], bool],
        release: Callable[[list[T]], None],
        fail: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._login = login
        self._log_in = log_in
        self._idle = idle
        self._release = release
        self._fail = fail
        self._due_at = math.inf
        """The loop's time from which the next request needs a new login."""
        self._held: list[T] | None = None
        """The requests that wait; None if there is no login in progress."""
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    async def log_in(self, exchange: Exchange) -> None:
        """Log in. Raises LoginRejectedError and ConnectionLostError."""
        lifetime_ms = await self._log_in(exchange)
        share = 0.85 + 0.1 * random.random()  # not all connections at the same time
        self._due_at = self._loop.time() + share * lifetime_ms / 1000 if lifetime_ms else math.inf

    @property
    def due(self) -> bool:
        """Whether requests have to wait for a new login."""
        return self._held is not None or self._loop.time() >= self._due_at

    @property
    def held(self) -> int:
        """Number of requests that wait."""
        return len(self._held or ())

    def begin(self) -> None:
        """Begin a new login, unless one is in progress."""
        if self._held is None:
            self._held = []
            self._task = self._loop.create_task(self._renew())
            self._task.add_done_callback(self._ended)

    def hold(self, request: T) -> bool:
        """Keep a request until a new login is complete. Return False if none is due."""
        if not self.due:
            return False
        self.begin()
        assert self._held is not None
        self._held.append(request)
        return True

    def drained(self) -> None:
        """Let a login in progress continue, because no request is in flight any more."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def end(self) -> list[T]:
        """Return the requests that wait, because the connection has ended."""
        held, self._held = self._held or [], None
        if self._task is not None:
            self._task.cancel()
        return held

    async def _renew(self) -> None:
        exchange = await self._login.begin()
        if not self._idle():
            self._drained = self._loop.create_future()
            await self._drained
        await self.log_in(exchange)
        held, self._held = self._held or [], None
        self._release(held)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report any failure: without a login in progress, the requests would wait forever."""
        self._task = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            known = isinstance(error, ConnectionLostError | LoginRejectedError)
            why = str(error) if known else f"{type(error).__name__}: {error}"
            self._fail(f"the new login before the session expires failed: {why}")
