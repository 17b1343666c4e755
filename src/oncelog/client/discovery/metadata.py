"""Find the brokers of a cluster, starting at the bootstrap addresses, and keep the topology up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from oncelog import errors
from oncelog.client.connections.pool import ADVICE, Address, Connections, Outage
from oncelog.client.discovery.slow_answers import noticed, slow, unconnected
from oncelog.client.discovery.topology import Topology
from oncelog.client.metrics.requests import Requests
from oncelog.client.troubles import Troubles
from oncelog.net.connection import ClientConnection
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_Key = tuple[frozenset[str] | None, bool]


class MetadataUpdater:
    """Update `topology` from Metadata responses of any broker (Kafka's MetadataUpdater)."""

    def __init__(
        self, connections: Connections, bootstrap: list[Address], outage: Outage, requests: Requests, waits: Troubles
    ) -> None:
        self.topology = Topology()
        self._connections = connections
        self._bootstrap = bootstrap
        self._outage = outage
        self._requests = requests
        self._waits = waits
        self._refreshing: dict[_Key, asyncio.Task[None]] = {}
        self._refreshed_at = float("-inf")

    def addresses(self) -> list[Address]:
        """Return the bootstrap addresses and those of the known brokers."""
        return [*self._bootstrap, *self.topology.brokers.values()]

    async def any_connection(self) -> ClientConnection:
        """Return a connection to any broker: the least loaded open one, otherwise a new one.

        So different brokers answer, and the client does not query the same slow broker each time. Raises
        ConnectionFailedError.
        """
        found = self._connections.least_loaded()
        if found is None:
            try:
                with slow(self._outage.troubles, Outage, unconnected("no broker has", ADVICE)):
                    addresses = [*self.topology.brokers.values(), *self._bootstrap]
                    found = await self._connections.get_any((-1, ""), addresses)
            except ConnectionLostError as error:
                what = f"no broker can be reached: {error}"
                self._outage.failed(what)
                raise errors.ConnectionFailedError(what) from error
        self._outage.over()
        return found

    async def refresh(self, topics: frozenset[str] | None, *, create: bool) -> None:
        """Request brokers and some topics (None: all). Equal calls at the same time share one request.

        The errors of topics are in the topology. Raises ConnectionFailedError if no broker can be reached.
        """
        key = (topics, create)
        task = self._refreshing.get(key)
        if task is None:
            task = asyncio.ensure_future(self._refresh(topics, create))
            self._refreshing[key] = task
            task.add_done_callback(lambda done: self._refreshed(key, done))
        await asyncio.shield(task)

    def _refreshed(self, key: _Key, task: asyncio.Task[None]) -> None:
        self._refreshing.pop(key, None)
        if not task.cancelled():
            task.exception()  # the caller may have had no more time for it

    async def _refresh(self, topics: frozenset[str] | None, create: bool) -> None:
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in sorted(topics)]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        connection = await self.any_connection()
        try:
            with noticed(
                self._waits, ("Metadata", connection.address), f"broker {connection.address}", "MetadataRequest"
            ):
                response: MetadataResponse = await connection.call(request)
        except ConnectionLostError as error:
            raise errors.ConnectionFailedError(str(error)) from error
        self.topology.update(response, everything=topics is None)
        used = {node for node, _ in self._connections.open_connections()}
        self._requests.keep_nodes(used | self.topology.brokers.keys())
        self._refreshed_at = asyncio.get_running_loop().time()

    def is_fresh(self, max_age: float) -> bool:
        """Return whether the last response is at most `max_age` seconds old."""
        return asyncio.get_running_loop().time() - self._refreshed_at < max_age

    def requests(self) -> Iterable[asyncio.Task[None]]:
        """Return the requests in progress, which closing the client cancels."""
        return self._refreshing.values()
