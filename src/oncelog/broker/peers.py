"""Send requests to other brokers of the cluster.

There is one connection for each broker and purpose, because a broker answers the requests of a connection in order: a
Fetch that waits for records must not delay a marker. All failures are values, because each caller must handle them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from oncelog.broker.retrying import Backoff
from oncelog.broker.workers import Runtime
from oncelog.cluster.brokers import Endpoint
from oncelog.cluster.image import MetadataCache, MetadataDelta, MetadataImage
from oncelog.net.connection import ClientConnection, NoCommonVersionError, connect
from oncelog.net.failures import ConnectionLostError, LoginRejectedError
from oncelog.net.security import Security
from oncelog.protocol.schema import Message

MAX_IN_FLIGHT = 100
"""The maximum number of requests that wait on one connection. Further requests fail at once."""
CONNECT_MS = 5000
"""The maximum time to connect, if the caller's time limit is not shorter."""
BACKOFF_MS = 50, 1000
"""How long requests fail at once after a failed attempt to connect: at first, and at most."""

R = TypeVar("R", bound=Message)


class Purpose(Enum):
    """What a connection is for."""

    MARKERS = "markers"
    TRANSACTIONS = "transactions"
    FETCH = "fetch"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Failure:
    """There is no response. If `sent` is set, the broker may have processed the request."""

    reason: str
    sent: bool = False


class _Link:
    """The connection to one process of a broker, for one purpose."""

    __slots__ = ("backoff", "connecting", "connection", "endpoint", "epoch", "in_flight", "problem", "retry_at")

    def __init__(self, epoch: int, endpoint: Endpoint) -> None:
        self.epoch = epoch
        self.endpoint = endpoint
        self.connection: ClientConnection | None = None
        self.connecting: asyncio.Task[ClientConnection | Failure] | None = None
        self.in_flight = 0
        self.backoff = Backoff(*BACKOFF_MS)
        self.retry_at = 0.0
        self.problem = ""
        """Why the last attempt to connect failed."""

    def close(self, reason: str) -> None:
        """Close the connection. Requests in flight fail."""
        if self.connecting is not None:
            self.connecting.cancel()
        if self.connection is not None:
            self.connection.close(reason)


class Peers:
    """The connections from this broker to the others."""

    def __init__(self, cache: MetadataCache, node_id: int, listener: str, security: Security, runtime: Runtime) -> None:
        """`listener` is the name of the listener that brokers use (`inter.broker.listener.name`)."""
        self._security = security
        self.node_id = node_id
        """The id of this broker."""
        self._cache = cache
        self._workers = runtime.workers
        self._client_id = f"broker-{node_id}"
        self._listener = listener
        self._logger = runtime.logger
        self._links: dict[tuple[int, Purpose], _Link] = {}
        self._closed = False

    def knows(self, broker: int) -> bool:
        """Return whether the broker is registered with an address for other brokers."""
        return self._find(self._cache.image, broker) is not None

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Close the connections to brokers that have left, or that have registered again."""
        if not delta.brokers_changed:
            return
        for key, link in tuple(self._links.items()):
            if self._find(delta.after, key[0]) != (link.epoch, link.endpoint):
                del self._links[key]
                link.close(f"broker {key[0]} has left, or has registered again")

    def close(self) -> None:
        """Close all connections. Later requests fail."""
        self._closed = True
        for link in self._links.values():
            link.close("this broker stops")
        self._links.clear()

    async def request(
        self, broker: int, purpose: Purpose, request: Message, answer: type[R], timeout_ms: int
    ) -> R | Failure:
        """Send a request, and return its response, of type `answer`, or a Failure within `timeout_ms`."""
        loop = asyncio.get_running_loop()
        found = self._find(self._cache.image, broker)
        if found is None or self._closed:
            return Failure(f"broker {broker} is not registered" if found is None else "this broker stops")
        link = self._link(broker, purpose, *found)
        if link.in_flight >= MAX_IN_FLIGHT:
            return Failure(f"{link.in_flight} requests wait for broker {broker}")
        end = loop.time() + timeout_ms / 1000
        link.in_flight += 1
        try:
            connection = await self._connected(broker, link, timeout_ms)
            if isinstance(connection, Failure):
                return connection
            left_ms = max(1.0, (end - loop.time()) * 1000)
            response = await connection.call(request, timeout_ms=left_ms)
        except NoCommonVersionError as error:
            return Failure(str(error))
        except ConnectionLostError as error:
            return Failure(str(error), sent=True)
        finally:
            link.in_flight -= 1
        assert isinstance(response, answer)
        return response

    def _find(self, image: MetadataImage, broker: int) -> tuple[int, Endpoint] | None:
        info = image.brokers.get(broker)
        endpoint = None if info is None else info.endpoints.get(self._listener)
        return None if info is None or endpoint is None else (info.epoch, endpoint)

    def _link(self, broker: int, purpose: Purpose, epoch: int, endpoint: Endpoint) -> _Link:
        link = self._links.get((broker, purpose))
        if link is None:
            link = self._links[broker, purpose] = _Link(epoch, endpoint)
        return link

    async def _connected(self, broker: int, link: _Link, timeout_ms: int) -> ClientConnection | Failure:
        """Return an open connection. All requests that wait for it share one attempt."""
        if link.connection is not None and not link.connection.closed:
            return link.connection
        loop = asyncio.get_running_loop()
        if link.connecting is None:
            if loop.time() < link.retry_at:
                return Failure(f"the next attempt to reach broker {broker} is later: {link.problem}")
            link.connecting = self._workers.task(self._connect(broker, link), f"connect to broker {broker}")
        attempt = link.connecting
        await asyncio.wait({attempt}, timeout=timeout_ms / 1000)
        if not attempt.done():
            return Failure(f"no connection to broker {broker} within {timeout_ms} ms")
        if attempt.cancelled():
            return Failure(f"broker {broker} has left, or has registered again")
        return attempt.result()

    async def _connect(self, broker: int, link: _Link) -> ClientConnection | Failure:
        host, port, _ = link.endpoint
        try:
            link.connection = await connect(
                host, port, client_id=self._client_id, connect_timeout_ms=CONNECT_MS, security=self._security
            )
        except (
            ConnectionLostError,
            LoginRejectedError,
            ValueError,
        ) as error:  # ValueError: an address that cannot be encoded
            link.problem = str(error)
            link.retry_at = asyncio.get_running_loop().time() + link.backoff.next_s()
            self._logger.info("cannot connect to broker %d: %s", broker, error)
            return Failure(link.problem)
        else:
            link.backoff.reset()
            return link.connection
        finally:
            link.connecting = None
