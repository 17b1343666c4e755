"""Repeat a failed attempt, with back-off, until its timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, TypeVar

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.connections.pool import Address, Outage
from oncelog.client.connections.versions import ByVersion, Request, for_connection
from oncelog.client.discovery.slow_answers import noticed
from oncelog.client.discovery.topology import NO_SUCH_TOPIC
from oncelog.client.response_errors import first_error, text_of
from oncelog.client.troubles import Troubles
from oncelog.net.connection import ClientConnection, NoCommonVersionError
from oncelog.net.failures import ConnectionLostError, RequestTimeoutError
from oncelog.protocol.errors import ErrorCode

T = TypeVar("T")

_CONNECTED = object()
"""The subject of `Troubles` for attempts that any broker may answer."""


class Retries:
    """The waits of one client. `api_timeout_ms()` bounds a call that has no timeout of its own.

    Until a broker has answered for the first time (`outage.reached`), `first_contact_ms` bounds it, too.
    `addresses()` returns the known brokers, for messages. `chance` returns random numbers in [0, 1). `waits` logs the
    calls that wait.
    """

    def __init__(
        self,
        *,
        backoff_ms: tuple[int, int],
        api_timeout_ms: Callable[[], int],
        first_contact_ms: int | None,
        request_timeout_ms: int,
        outage: Outage,
        troubles: Troubles,
        addresses: Callable[[], Iterable[Address]],
        chance: Callable[[], float],
    ) -> None:
        self._backoff_ms = backoff_ms
        self._api_timeout_ms = api_timeout_ms
        self._first_contact_ms = first_contact_ms
        self._request_timeout_ms = request_timeout_ms
        self._outage = outage
        self.waits = troubles
        self._addresses = addresses
        self._chance = chance

    def backoff(self, failures: int = 0, *, first_ms: float | None = None) -> Backoff:
        """Return the delays of an attempt: see `ClusterClient.backoff`."""
        usual_ms, most_ms = self._backoff_ms
        return Backoff(usual_ms if first_ms is None else first_ms, most_ms, self._chance, failures)

    def patience(self, timeout_ms: float | None) -> float:
        """Return for how many seconds a failed attempt is repeated."""
        if timeout_ms is None:
            timeout_ms = self._api_timeout_ms()
            if not self._outage.reached and self._first_contact_ms is not None:
                timeout_ms = min(timeout_ms, self._first_contact_ms)
        return timeout_ms / 1000

    async def until_connected(
        self, attempt: Callable[[], Awaitable[T]], timeout_ms: float | None, begun: float | None = None
    ) -> T:
        """Return what an attempt returns. Repeat it after a ConnectionFailedError, and raise that when time is up.

        `begun`: the loop's time from which `timeout_ms` counts; by default from now on.
        """
        now = asyncio.get_running_loop().time
        begun = now() if begun is None else begun
        backoff = self.backoff()
        failure: errors.KafkaError | None = None
        while True:
            try:
                found = await self._in_time(attempt, timeout_ms, begun, failure)
            except errors.ConnectionFailedError as error:
                failure = error
                delay = backoff.next_s()
                if now() + delay >= begun + self.patience(timeout_ms):
                    raise
                self.waits.waiting(_CONNECTED, f"a call waits: {failure}".rstrip("."), failure)
                await asyncio.sleep(delay)
            else:
                self.waits.over(_CONNECTED)
                return found

    async def call(
        self,
        request: Request,
        where: Callable[[], Awaitable[ClientConnection]],
        version: int | None,
        timeout_ms: float | None,
        moved: Callable[[ErrorCode], None] = lambda code: None,
        *,
        about_topic: bool = False,
    ) -> Any:
        """Send a request to the connection that `where` returns. Return the response without a retriable error.

        After a retriable error, call `moved` with it and try again. When time is up, return the last response, or raise
        the last error. `about_topic`: an unknown topic is a retriable error, because the receiver may be no leader.

        If a broker has returned an error, and does not answer the last attempt in time, the error has both texts.
        """
        now = asyncio.get_running_loop().time
        begun = now()
        limit = begun + (self._api_timeout_ms() if timeout_ms is None else timeout_ms) / 1000
        backoff = self.backoff()
        name = (request.kind if isinstance(request, ByVersion) else type(request)).__name__
        failure: errors.KafkaError | None = None
        answered = ""
        reported: set[tuple[str, str]] = set()
        while True:
            response: Any = None
            subject = (name, "")
            try:
                connection = await self._in_time(where, timeout_ms, begun, failure)
                subject = (name, connection.address)  # calls of other brokers may succeed meanwhile
                left = max(1.0, min((limit - now()) * 1000, self._request_timeout_ms))
                message, chosen = for_connection(request, version, connection)
                with noticed(self.waits, subject, f"broker {connection.address}", name):
                    response = await connection.call(message, chosen, timeout_ms=left)
                code = first_error(response)
                if not code.retriable or (code in NO_SUCH_TOPIC and not about_topic):
                    self._all_over({subject, *reported})
                    return response
                answered = f"{name}: {text_of(response, code)}".rstrip(". ")
                failure = errors.error_for(code, answered)
            except ConnectionLostError as error:
                failure = errors.ConnectionFailedError(str(error))
                if answered and isinstance(error, RequestTimeoutError):  # it runs, and it has said why it cannot answer
                    failure = errors.TimedOutError(f"{answered}; after that, {error}", failure.code)
            except NoCommonVersionError as error:
                raise errors.UnsupportedError(str(error)) from error
            except errors.UnknownTopicError:
                raise
            except errors.RetriableError as error:
                failure = error
            reported.add(subject)
            self.waits.waiting(subject, f"a call waits: {failure}".rstrip("."), failure)
            moved(failure.code)
            delay = backoff.next_s()
            if now() + delay >= begun + self.patience(timeout_ms):
                if response is None:
                    raise failure
                return response
            await asyncio.sleep(delay)

    def _all_over(self, subjects: Iterable[Hashable]) -> None:
        for each in subjects:
            self.waits.over(each)

    async def _in_time(
        self,
        attempt: Callable[[], Awaitable[T]],
        timeout_ms: float | None,
        begun: float,
        failure: errors.KafkaError | None,
    ) -> T:
        """Return what an attempt returns. If the caller's time is up first, raise the earlier `failure`.

        Without an earlier failure, raise ConnectionFailedError. An address that drops packets would otherwise take the
        whole connect timeout.
        """
        try:
            async with asyncio.timeout_at(None if timeout_ms is None else begun + timeout_ms / 1000) as scope:
                return await attempt()
        except TimeoutError:
            if not scope.expired():
                raise
            names = ", ".join(f"{host}:{port}" for host, port in dict.fromkeys(self._addresses()))
            what = self._outage.reason or f"no connection within {timeout_ms:.0f} ms; known brokers: {names}"
            raise failure or errors.ConnectionFailedError(what) from None
