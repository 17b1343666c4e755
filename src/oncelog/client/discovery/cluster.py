"""A client of a cluster: find its brokers and topics, and send each request to the right broker.

Producer, consumer, admin, the Spark sink and the command line use `ClusterClient`. Its `call_*` methods take a request
message (`ByVersion` if its form depends on the receiver's version) and return the response message. They repeat a
request after a temporary error (a leader or coordinator moves, a connection is lost, the coordinator still ends a
transaction), with back-off, until the timeout. Other error codes remain in the response:
`oncelog.client.response_errors.raise_for_error` turns them into exceptions.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.calls import Calls
from oncelog.client.connections.pool import Connections, Outage, parse_bootstrap
from oncelog.client.connections.versions import Request
from oncelog.client.discovery.metadata import MetadataUpdater
from oncelog.client.discovery.reasons import unknown_partition
from oncelog.client.discovery.retries import Retries
from oncelog.client.discovery.slow_answers import noticed, slow, unconnected
from oncelog.client.discovery.topology import LEADER_MOVED, Partition, Topic
from oncelog.client.metrics.requests import Requests
from oncelog.client.metrics.results import ClientMetrics
from oncelog.client.troubles import Troubles
from oncelog.net.connection import ClientConnection
from oncelog.net.failures import ConnectionLostError
from oncelog.net.security import PLAINTEXT, Security
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import CoordinatorType
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest

if TYPE_CHECKING:
    from types import TracebackType

KINDS = {"group": CoordinatorType.GROUP, "transaction": CoordinatorType.TRANSACTION}

MISSING_TOPIC_MS = 5_000
"""How long to repeat a lookup of a topic that no broker knows: brokers learn of a new topic one after another."""

log = logging.getLogger("oncelog.client.connections")

COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class ClusterClient:
    """Connections to the brokers of one cluster, created on demand, and a cache of its topics.

    Use as `async with ClusterClient("localhost:9092") as cluster`, in a single event loop. `api_timeout_ms` bounds each
    `call_*` with all its attempts, unless the call has its own `timeout_ms`. Until a broker has answered for the first
    time, the bound is `first_contact_ms`, because no broker answers at a mistyped address. If no broker knows a topic,
    the client retries for `missing_topic_ms`. `chance` returns random numbers in [0, 1). `security` has TLS and login.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        *,
        client_id: str = "oncelog",
        request_timeout_ms: int = 30_000,
        api_timeout_ms: int = 60_000,
        connect_timeout_ms: int = 10_000,
        retry_backoff_ms: int = 50,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        reconnect_backoff_ms: int = 50,
        reconnect_backoff_max_ms: int = 1_000,
        connections_max_idle_ms: int = 540_000,
        first_contact_ms: int | None = None,
        missing_topic_ms: int = MISSING_TOPIC_MS,
        what: str = "client",
        chance: Callable[[], float] = random.random,
        security: Security = PLAINTEXT,
    ) -> None:
        self.calls = Calls(what)
        """Calls of the client's user that `close` ends."""
        self.request_timeout_ms = request_timeout_ms
        self.api_timeout_ms = api_timeout_ms
        self.missing_topic_ms = missing_topic_ms
        self._max_age = metadata_max_age_ms / 1000
        self._client_id = client_id
        self.requests = Requests(time.monotonic)
        """Counts requests and connections."""
        self._connections = Connections(
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            reconnect_backoff_ms=reconnect_backoff_ms,
            reconnect_backoff_max_ms=reconnect_backoff_max_ms,
            max_idle_ms=connections_max_idle_ms,
            chance=chance,
            security=security,
            requests=self.requests,
        )
        longest_backoff_ms = max(retry_backoff_max_ms, reconnect_backoff_max_ms)
        self._attempt_s = (connect_timeout_ms + request_timeout_ms + longest_backoff_ms) / 1000
        self._outage = Outage(_now, self._attempt_s)
        waits = self.troubles(log)
        self._metadata = MetadataUpdater(
            self._connections, parse_bootstrap(bootstrap_servers), self._outage, self.requests, waits
        )
        self.topology = self._metadata.topology
        self.retries = Retries(
            backoff_ms=(retry_backoff_ms, retry_backoff_max_ms),
            api_timeout_ms=lambda: self.api_timeout_ms,
            first_contact_ms=first_contact_ms,
            request_timeout_ms=request_timeout_ms,
            outage=self._outage,
            troubles=waits,
            addresses=self._metadata.addresses,
            chance=chance,
        )
        self._coordinators: dict[tuple[int, str], int] = {}

    async def __aenter__(self) -> ClusterClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all calls in progress, and close all connections."""
        self.calls.close()
        await self._connections.close(self._metadata.requests())

    # -- connections ----------------------------------------------------------------------------------------------

    async def connection(self, node_id: int, purpose: str = "") -> ClientConnection:
        """Return a connection to a broker; open one if needed. Each `purpose` (fetches, group, produce) has its own.

        Raises ConnectionFailedError if the broker cannot be reached or is not in the metadata, and AuthenticationError.
        """
        self.calls.check()
        found = self.open_connection(node_id, purpose)
        if found is not None:
            return found
        address = self.topology.brokers.get(node_id)
        if address is None:
            raise errors.ConnectionFailedError(f"broker {node_id} is not in the cluster's metadata")
        try:
            name = f"broker {node_id} ({address[0]}:{address[1]}) has not"
            why = unconnected(name, "Check that it runs and is not overloaded")
            with slow(self.retries.waits, ("connection", node_id), why):
                found = await self._connections.get((node_id, purpose), address)
        except ConnectionLostError as error:
            raise errors.ConnectionFailedError(f"broker {node_id}: {error}") from error
        self._outage.over()
        return found

    def open_connection(self, node_id: int, purpose: str = "") -> ClientConnection | None:
        """Return the open connection to a broker, if there is one."""
        return self._connections.find((node_id, purpose))

    def metrics(self) -> ClientMetrics:
        """Return the metrics of requests and connections. Any thread may call this."""
        return self.requests.metrics(self._client_id, self._connections.open_connections())

    async def _any_connection(self) -> ClientConnection:
        self.calls.check()
        return await self._metadata.any_connection()

    @property
    def unreachable(self) -> str:
        """Why the last attempt to reach a broker failed; empty if it succeeded."""
        return self._outage.reason

    def troubles(self, log: logging.Logger) -> Troubles:
        """Return the log of what keeps a part of this client waiting. Use it on the client's event loop."""
        return Troubles(log, _now, attempt_s=self._attempt_s, outage=lambda: self.unreachable)

    def backoff(self, failures: int = 0, *, first_ms: float | None = None) -> Backoff:
        """Return the delays of an attempt that has failed `failures` times. `first_ms`: instead of retry.backoff.ms."""
        return self.retries.backoff(failures, first_ms=first_ms)

    async def reach(self, timeout_ms: float) -> None:
        """Connect to any broker within this time. Raises ConnectionFailedError that names the addresses."""
        await self.retries.until_connected(self._any_connection, timeout_ms)

    async def features(self) -> dict[str, int]:
        """Return the cluster's finalized features, as `{"transaction.version": 2, ...}`."""
        return (await self.retries.until_connected(self._any_connection, None)).features

    # -- metadata -------------------------------------------------------------------------------------------------

    async def refresh(
        self, topics: Iterable[str] | None = None, *, create: bool = False, patient: bool = False
    ) -> None:
        """Request brokers and some topics (None: all). The errors of topics are in `topology`.

        Raises ConnectionFailedError at once if no broker can be reached, with `patient` after api_timeout_ms.
        """
        self.calls.check()
        wanted = None if topics is None else frozenset(topics)
        if patient:
            await self.retries.until_connected(lambda: self.refresh(wanted, create=create), None)
        else:
            await self._metadata.refresh(wanted, create=create)

    async def topic(
        self,
        name: str,
        *,
        create: bool = False,
        timeout_ms: float | None = None,
        missing_ms: float | None = None,
        partition: int = 0,
    ) -> Topic:
        """Return a topic with this partition. Request metadata if it is unknown. Raises UnknownTopicError and others.

        If a broker answers that the topic or partition does not exist, retry for `missing_ms` from that response on
        (default: as for all topics).
        """
        now = asyncio.get_running_loop().time
        found = self.topology.topics.get(name)
        if found is not None and partition in found.partitions and self._metadata.is_fresh(self._max_age):
            return found
        missing_ms = self.missing_topic_ms if missing_ms is None else missing_ms
        begun = now()
        limit = begun + (self.api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        answered = None
        backoff = self.backoff()
        waits, subject = self.retries.waits, ("topic", name)
        while True:
            await self.retries.until_connected(lambda: self.refresh([name], create=create), timeout_ms, begun)
            answered = now() if answered is None else answered
            found = self.topology.topics.get(name)
            if found is not None and partition in found.partitions:
                waits.over(subject)
                return found
            code = self.topology.failures.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            delay = backoff.next_s()
            if not code.retriable or now() + delay > min(limit, answered + missing_ms / 1000):
                waits.forget(subject)
                if found is not None:
                    raise unknown_partition(name, len(found.partitions), partition)
                raise errors.error_for(code, f"topic {name!r}: {code.text}")
            if missing_ms > MISSING_TOPIC_MS:  # otherwise, the error follows soon
                waits.waiting(subject, f"a call waits: topic {name!r}, partition {partition}: {code.text}".rstrip("."))
            await asyncio.sleep(delay)

    async def partition(self, topic: str, partition: int, *, timeout_ms: float | None = None) -> Partition:
        """Return leader and epoch of a partition. Raises UnknownTopicError if the topic has no such partition."""
        return (await self.topic(topic, timeout_ms=timeout_ms, partition=partition)).partitions[partition]

    async def topics(self, *, internal: bool = False) -> dict[str, Topic]:
        """Return all topics by name."""
        await self.retries.until_connected(self.refresh, None)
        return {name: topic for name, topic in self.topology.topics.items() if internal or not topic.internal}

    async def brokers(self) -> dict[int, tuple[str, int]]:
        """Return the address of each broker by node id."""
        await self.retries.until_connected(lambda: self.refresh([]), None)
        return dict(self.topology.brokers)

    async def require_broker(self, node_id: int) -> None:
        """Raise RequestError (BROKER_ID_NOT_REGISTERED) at once if the cluster has no such broker, or it is down."""
        known = await self.brokers()
        if node_id not in known:
            there = ", ".join(map(str, sorted(known)))
            raise errors.error_for(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"broker {node_id} does not exist or is down; the cluster has: {there}",
            )

    # -- calls ----------------------------------------------------------------------------------------------------

    async def call_any(self, request: Request, version: int | None = None, *, timeout_ms: float | None = None) -> Any:
        """Return the response of any broker."""
        return await self.retries.call(request, self._any_connection, version, timeout_ms)

    async def call_broker(
        self, node_id: int, request: Request, version: int | None = None, *, timeout_ms: float | None = None
    ) -> Any:
        """Return one broker's response. Wait for a broker that is down, also if it returns at another address."""
        lost = False

        async def where() -> ClientConnection:
            if lost or node_id not in self.topology.brokers:
                await self.refresh([])
            return await self.connection(node_id)

        def failed(code: ErrorCode) -> None:
            nonlocal lost
            lost = code is ErrorCode.NETWORK_EXCEPTION

        return await self.retries.call(request, where, version, timeout_ms, failed)

    async def call_controller(
        self, request: Request, version: int | None = None, *, timeout_ms: float | None = None
    ) -> Any:
        """Return the response of the controller (in KRaft, of a broker that forwards the request)."""

        async def where() -> ClientConnection:
            if self.topology.controller_id not in self.topology.brokers:
                await self.refresh([])
            return await self.connection(self.topology.controller_id)

        def moved(code: ErrorCode) -> None:
            if code is ErrorCode.NOT_CONTROLLER:
                self.topology.controller_id = -1

        return await self.retries.call(request, where, version, timeout_ms, moved)

    async def call_leader(
        self,
        topic: str,
        partition: int,
        request: Request,
        version: int | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> Any:
        """Return the response of a partition's leader to a request about that partition."""

        async def where() -> ClientConnection:
            leader = (await self.partition(topic, partition)).leader
            if leader < 0:
                self.topology.forget(topic)
                raise errors.error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
            return await self.connection(leader)

        def moved(code: ErrorCode) -> None:
            if code in LEADER_MOVED or code is ErrorCode.NETWORK_EXCEPTION:
                self.topology.forget(topic)

        return await self.retries.call(request, where, version, timeout_ms, moved, about_topic=True)

    async def call_coordinator(
        self,
        kind: str,
        key: str,
        request: Request,
        version: int | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> Any:
        """Return the response of the coordinator (`kind` "group" or "transaction") of a group or transactional id."""
        slot = (KINDS[kind], key)

        async def where() -> ClientConnection:
            return await self.connection(await self.coordinator(kind, key))

        def moved(code: ErrorCode) -> None:
            if code in COORDINATOR_MOVED or code is ErrorCode.NETWORK_EXCEPTION:
                self._coordinators.pop(slot, None)

        return await self.retries.call(request, where, version, timeout_ms, moved)

    async def coordinator(self, kind: str, key: str) -> int:
        """Return the node id of the coordinator of a group or transactional id. Try once. Raises KafkaError."""
        found = self.known_coordinator(kind, key)
        if found is not None:
            return found
        connection = await self._any_connection()
        request = FindCoordinatorRequest(key_type=KINDS[kind])
        version = connection.version_for(FindCoordinatorRequest)
        if version < 4:
            request.key = key
        else:
            request.coordinator_keys = [key]
        about = f"coordinator of {kind} {key!r}"
        try:
            with noticed(self.retries.waits, about, f"broker {connection.address}", "FindCoordinatorRequest"):
                response = await connection.call(request, version)
        except ConnectionLostError as error:
            raise errors.ConnectionFailedError(str(error)) from error
        answer = response if version < 4 else next(iter(response.coordinators), None)
        if answer is None:
            raise errors.error_for(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{about}: the broker's response does not contain it"
            )
        if answer.error_code:
            text = answer.error_message or ErrorCode.of(answer.error_code).text
            raise errors.error_for(answer.error_code, f"{about}: {text}")
        self.learn_coordinator(kind, key, answer)
        return int(answer.node_id)

    def known_coordinator(self, kind: str, key: str) -> int | None:
        """Return the cached node id of the coordinator, if any."""
        found = self._coordinators.get((KINDS[kind], key))
        return found if found in self.topology.brokers else None

    def learn_coordinator(self, kind: str, key: str, answer: Any) -> None:
        """Cache a coordinator and its address from a response to FindCoordinator."""
        self.topology.brokers[answer.node_id] = (answer.host, answer.port)
        self._coordinators[KINDS[kind], key] = answer.node_id

    def forget_coordinator(self, kind: str, key: str) -> None:
        """Look the coordinator up again before its next request."""
        self._coordinators.pop((KINDS[kind], key), None)


def _now() -> float:
    return asyncio.get_running_loop().time()
