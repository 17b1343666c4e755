"""A client's connections: open them on demand, wait after a failure, close idle ones, and log outages.

The counterparts in Kafka are ClusterConnectionStates and the Selector's IdleExpiryManager.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.metrics.requests import Requests
from oncelog.client.troubles import Troubles
from oncelog.net.connection import ClientConnection, connect
from oncelog.net.failures import ConnectionLostError, LoginRejectedError
from oncelog.net.security import PLAINTEXT, Security
from oncelog.protocol.addresses import parse_address

Address = tuple[str, int]
Key = tuple[int, str]
"""Node id and purpose: a consumer's fetches and its group have their own connections."""
WAITING = frozenset({"fetch", "group"})
"""Purposes of connections with requests that may wait long (Fetch, JoinGroup): later requests wait for them."""
NEXT_ADDRESS_S = 1.0
"""Seconds after which the next of several addresses is tried as well."""

log = logging.getLogger("oncelog.client.connections")


def parse_bootstrap(servers: str | Iterable[str]) -> list[Address]:
    """Read `"a:9092,[::1]:9093"`, or a list of such addresses, as (host, port) pairs. Raises ConfigError."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = []
    for part in parts:
        address = parse_address(part.strip())
        if address is None or not all(address):
            raise errors.ConfigError(f"bootstrap_servers: {part!r} is not HOST:PORT, such as localhost:9092")
        found.append(address)
    return found


def _hang_up_late(task: asyncio.Task[ClientConnection]) -> None:
    """Close a connection that no caller waits for any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().close("another address answered first")


class Connections:
    """The connections of one client, on one event loop.

    If an attempt fails, or a new connection is lost at once, the next attempt waits for `reconnect_backoff_ms`. The
    wait doubles with each failure up to `reconnect_backoff_max_ms`, with a jitter of 20 %. A connection without a
    request in flight is closed if it was idle for `max_idle_ms`; a negative number disables this. `chance` returns
    random numbers in [0, 1).
    """

    def __init__(
        self,
        *,
        client_id: str,
        request_timeout_ms: int,
        connect_timeout_ms: int,
        reconnect_backoff_ms: int,
        reconnect_backoff_max_ms: int,
        max_idle_ms: int,
        chance: Callable[[], float],
        security: Security = PLAINTEXT,
        requests: Requests | None = None,
    ) -> None:
        self._requests = requests or Requests(time.monotonic)
        self._chance = chance
        self._security = security
        self._connect_once = partial(
            connect,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            security=security,
        )
        self._new_backoff = partial(Backoff, reconnect_backoff_ms, reconnect_backoff_max_ms, chance)
        self._max_idle = max_idle_ms / 1000
        self._made: dict[Key, ClientConnection] = {}
        self._being_made: dict[Key, asyncio.Task[ClientConnection]] = {}
        self._trying: set[asyncio.Task[ClientConnection]] = set()
        """The attempts for several addresses."""
        self._failing: dict[Address, tuple[Backoff, float]] = {}
        """Addresses that could not be reached, and when (the loop's time) they may be tried again."""
        self._idle_timers: dict[ClientConnection, asyncio.TimerHandle] = {}

    def find(self, key: Key) -> ClientConnection | None:
        """Return the open connection, if there is one."""
        found = self._made.get(key)
        return None if found is None or found.closed else found

    def open_connections(self) -> list[tuple[int, int]]:
        """Return (node, requests in flight) of each open connection. Any thread may call this."""
        return [(node, each.in_flight) for (node, _), each in self._made.copy().items() if not each.closed]

    def least_loaded(self) -> ClientConnection | None:
        """Return the open connection with the fewest requests in flight, or None if no connection is open.

        Choose by chance if several have the fewest. (Java's `leastLoadedNode`.)
        """
        usable = [each for (_, purpose), each in self._made.items() if purpose not in WAITING and not each.closed]
        fewest = min((each.in_flight for each in usable), default=0)
        best = [each for each in usable if each.in_flight == fewest]
        return best[int(self._chance() * len(best))] if best else None

    async def get(self, key: Key, address: Address) -> ClientConnection:
        """Return the connection; open it if needed. Raises ConnectionLostError and AuthenticationError."""
        found = self.find(key)
        if found is not None:
            return found
        return await self._shared(key, lambda: self._make(key[0], address, self._lost_early(key)))

    async def get_any(self, key: Key, addresses: Iterable[Address]) -> ClientConnection:
        """Return a connection to one of the addresses; open it if needed. Raises the ConnectionLostError of the last.

        Raises AuthenticationError at the first address that rejects the login, because the others share the settings.
        Use an address in back-off only if all addresses are.
        """
        found = self.find(key)
        return await self._shared(key, lambda: self._make_any(key[0], addresses)) if found is None else found

    async def _shared(self, key: Key, make: Callable[[], Coroutine[Any, Any, ClientConnection]]) -> ClientConnection:
        """Open a connection once for all callers that need it meanwhile. `close` cancels the attempt."""
        task = self._being_made.get(key)
        if task is None:
            task = asyncio.ensure_future(make())
            self._being_made[key] = task
            task.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(task)

    def _done(self, key: Key, task: asyncio.Task[ClientConnection]) -> None:
        self._being_made.pop(key, None)
        if not task.cancelled() and task.exception() is None:
            self._made[key] = task.result()

    async def _make_any(self, node: int, addresses: Iterable[Address]) -> ClientConnection:
        wanted = list(dict.fromkeys(addresses))
        rests = {address: rest for address in wanted if (rest := self._remaining_backoff(address)) > 0}
        if rests and len(rests) == len(wanted):
            wanted = [min(wanted, key=rests.__getitem__)]
        else:
            wanted = sorted((each for each in wanted if each not in rests), key=lambda _: self._chance())
        return await self._first(node, wanted)

    async def _first(self, node: int, addresses: list[Address]) -> ClientConnection:
        """Return the connection of the address that answers first. Raises the ConnectionLostError of the last.

        If an address does not answer at once, try the next one beside it: an address that drops packets takes the
        whole connect timeout, and a caller may have less time.
        """
        last = ConnectionLostError("no broker address is known")
        left, trying = deque(addresses), set[asyncio.Task[ClientConnection]]()
        try:
            while left or trying:
                if left:
                    task = asyncio.ensure_future(self._make(node, left.popleft()))
                    trying.add(task)
                    self._trying.add(task)
                    task.add_done_callback(self._trying.discard)
                patience = NEXT_ADDRESS_S if left else None
                done, _ = await asyncio.wait(trying, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    trying.remove(task)
                    try:
                        return task.result()
                    except ConnectionLostError as error:
                        last = error
        finally:
            for task in trying:
                task.cancel()
                task.add_done_callback(_hang_up_late)
        raise last

    async def _make(self, node: int, address: Address, not_before: float = 0.0) -> ClientConnection:
        loop = asyncio.get_running_loop()
        rest = max(self._remaining_backoff(address), not_before - loop.time())
        if rest > 0:
            await asyncio.sleep(rest)
        begun = loop.time()
        try:
            connection = await self._connect_once(*address)
        except ConnectionLostError as error:
            self._requests.failed_connections += 1
            self._wait_after(address, begun)
            if error.cause is None:
                raise
            raise ConnectionLostError(self._security.explain(error)) from error
        except LoginRejectedError as error:
            self._requests.failed_logins += 1
            self._wait_after(address, begun)  # a program that calls in a loop would lock the user out sooner
            raise errors.AuthenticationError(self._security.explain(error), error.code) from error
        self._failing.pop(address, None)
        self._requests.connections += 1
        connection.traffic = self._requests.of_node(node)
        if self._max_idle >= 0:
            self._idle_timers[connection] = loop.call_later(self._max_idle, self._check_idle, connection)
        return connection

    def _wait_after(self, address: Address, begun: float) -> None:
        """Let the next attempt wait for the back-off of an address."""
        backoff, _ = self._failing.get(address) or (self._new_backoff(), 0.0)
        self._failing[address] = backoff, begun + backoff.next_s()

    def _remaining_backoff(self, address: Address) -> float:
        """Return the seconds until the back-off of an address has passed."""
        until = self._failing.get(address, (None, 0.0))[1]
        return until - asyncio.get_running_loop().time() if until else 0.0

    def _lost_early(self, key: Key) -> float:
        """Return when the next connection may be opened: not earlier after a loss than after a failure."""
        lost = self._made.get(key)
        return 0.0 if lost is None else lost.made_at + self._new_backoff().next_s()

    def _check_idle(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        left = connection.used_at + self._max_idle - loop.time()
        if connection.closed or (left <= 0 and not connection.in_flight):
            del self._idle_timers[connection]
            connection.close("idle for connections_max_idle_ms")
        else:
            again = left if left > 0 else max(self._max_idle, 1.0)
            self._idle_timers[connection] = loop.call_later(again, self._check_idle, connection)

    async def close(self, others: Iterable[asyncio.Task[None]] = ()) -> None:
        """Close all connections, and cancel the attempts and the given tasks."""
        tasks = [*self._being_made.values(), *self._trying, *others]
        for task in tasks:
            task.cancel()
        self._hang_up()
        # A coroutine that is itself closed, as one whose loop has ended or whose process was killed, must not wait.
        if tasks and not isinstance(sys.exception(), GeneratorExit):
            await asyncio.gather(*tasks, return_exceptions=True)
        self._hang_up()  # some may have been made while we waited
        self._made.clear()

    def _hang_up(self) -> None:
        for timer in self._idle_timers.values():
            timer.cancel()
        self._idle_timers.clear()
        for connection in self._made.values():
            connection.close()


ADVICE = "Check bootstrap_servers, and that a broker runs there"


class Outage:
    """Whether the client reaches any broker, and the log of each outage. The arguments are those of `Troubles`."""

    def __init__(self, now: Callable[[], float], attempt_s: float) -> None:
        self.troubles = Troubles(log, now, attempt_s=attempt_s)
        self.reached = False
        """Whether the client has ever reached a broker."""
        self.reason = ""
        """Why the last attempt to reach a broker failed; empty if it succeeded."""

    def failed(self, reason: str) -> None:
        """Record that the client could not reach any broker."""
        self.reason = reason
        self.troubles.waiting(Outage, f"{reason}. {ADVICE}")

    def over(self) -> None:
        """Record that the client has reached a broker."""
        self.reached = True
        self.reason = ""
        self.troubles.over(Outage)
